"""Lists all runs, including the runs of repeats and sweeps (`runs [DIR…]`)."""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lit_engine.cli.arguments import OptionParser
from lit_engine.errors import UserError, did_you_mean
from lit_engine.run.directory import STATES
from lit_engine.run.metric_names import counterpart, get_stage, is_detail, strip_stage
from lit_engine.tools.output import HELP, json_document, run_entry
from lit_engine.tools.runs.columns import Column, cell_of, duration, in_terminal, number
from lit_engine.tools.runs.reading import Run, lower_is_better, read_runs, runs_in

FOLDERS = ("runs", "repeats", "sweeps")
ORDERS: dict[str, Callable[[Run], Any]] = {
    "started": lambda run: -run.started.timestamp(),
    "time": lambda run: run.seconds if run.seconds == run.seconds else math.inf,
    "name": lambda run: str(run.path),
    "state": lambda run: run.state,
}


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `runs`."""
    parser = OptionParser("runs", "Lists runs, newest first.")
    add = parser.add_argument
    add("runs", nargs="*", metavar="DIR", help=f"folders of runs (default: {', '.join(FOLDERS)}, if they contain runs)")
    add("--metric", nargs="+", default=[], metavar="NAME",
        help="metrics to show, such as accuracy (default: the monitored metric and the main metric)")  # fmt: skip
    add("--sort", default="started", metavar="KEY",
        help="started (newest first), time, name, state, or a metric (best first); default: started")  # fmt: skip
    add("--state", action="append", choices=STATES, help="show only runs in this state (can be repeated)")
    add("--json", action="store_true", help=HELP)
    return parser


def runs(args: Sequence[str]) -> int:
    """List runs and return the exit status.

    Raises:
        UserError: no runs were found, or a metric in the arguments does not exist in any run.
    """
    options = option_parser().parse_args(args)
    with json_document(options.json) as document:
        found = read_runs(options.runs or [name for name in FOLDERS if any(runs_in(Path(name)))] or ["runs"])
        known = {strip_stage(name) for run in found for name in run.metrics}
        for name in (*options.metric, *({options.sort} - ORDERS.keys())):
            if strip_stage(name) not in known:
                raise UserError(f"no run has the metric {name}{did_you_mean(name, [*ORDERS, *known])}")
        found = [run for run in found if options.state is None or run.state in options.state]
        if not found:
            raise UserError(f"no run is {' or '.join(options.state)}")
        found.sort(key=ORDERS.get(options.sort, partial(_quality, name=options.sort)))
        document["runs"] = [run_entry(run) for run in found]
        print("\n".join(in_terminal(_columns(found, options.metric), "--json")))
    return 0


def _columns(found: Sequence[Run], chosen: Sequence[str]) -> list[Column]:
    columns = [
        Column("run", [str(run.path) for run in found]),
        Column("state", [run.state for run in found]),
        Column("started", [f"{run.started.astimezone():%Y-%m-%d %H:%M}" for run in found], 5),
        Column("time", [duration(run.seconds) for run in found], 4),
    ]
    if chosen:
        for rank, name in enumerate(chosen):
            stages = ("val", "test") if name == strip_stage(name) else (get_stage(name),)
            if not any(counterpart(name, stage, run.metrics) for stage in stages for run in found):
                stages = ("train",)  # recorded only by `fit`, such as `parameters`
            for stage in stages:
                title = name if stage == "train" else f"{stage}/{strip_stage(name)}"
                columns.append(Column(title, [cell_of(_value(run, name, stage)) for run in found], rank))
        return columns
    headline = [run.headline if strip_stage(run.monitor or "loss") != run.headline else "" for run in found]
    metrics = [
        Column("best", [_name_and_value(run, run.monitor or "loss", "val") for run in found], 2),
        Column("validation", [_name_and_value(run, name, "val") for run, name in zip(found, headline, strict=True)], 3),
        Column("test", [_test_result(run) for run in found], 1),
    ]
    return [*columns, *(column for column in metrics if any(column.cells))]


def _quality(run: Run, name: str) -> float:
    """Return a sort key that sorts runs by a metric, best first. Runs without the metric, or with NaN, come last.

    If the name contains a stage, such as `val/loss`, only metrics of that stage are used.
    """
    stages = ("test", "val", "train") if name == strip_stage(name) else (get_stage(name),)
    value = next((one for stage in stages if (one := _value(run, name, stage)) is not None), math.nan)
    return math.inf if math.isnan(value) else (1 if lower_is_better(run, name) else -1) * value


def _value(run: Run, name: str, stage: str) -> float | None:
    return run.metrics.get(counterpart(name, stage, run.metrics) or "")


def _test_result(run: Run) -> str:
    """Return the name and value of the main metric in `test`, or of the first test metric of a plain module."""
    others = [name for name in run.metrics if get_stage(name) == "test" and not is_detail(name)]
    return _name_and_value(run, run.headline or run.monitor or "loss", "test") or _name_and_value(
        run, next(iter(others), None), "test"
    )


def _name_and_value(run: Run, name: str | None, stage: str) -> str:
    """Return the name and value of a metric in a stage, or an empty string if the run has no such metric."""
    found = name and counterpart(name, stage, run.metrics)
    return f"{found} {number(run.metrics[found])}" if found else ""
