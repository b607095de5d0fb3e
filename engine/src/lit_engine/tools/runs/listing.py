"""`runs [DIR…]`: lists all runs, newest first."""

import argparse
from collections.abc import Sequence

from lit_engine.cli.explain import OptionParser
from lit_engine.run.metric_names import counterpart
from lit_engine.tools.runs.columns import Column, duration, in_terminal, number
from lit_engine.tools.runs.reading import Run, read_runs


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `runs`."""
    parser = OptionParser("runs", "Lists runs, newest first.")
    parser.add_argument("runs", nargs="*", default=["runs"], metavar="DIR", help="folders of runs (default: runs)")
    return parser


def runs(args: Sequence[str]) -> int:
    """List runs and return the exit status.

    Raises:
        UserError: no runs were found.
    """
    found = read_runs(option_parser().parse_args(list(args)).runs)
    found.sort(key=lambda run: run.begun, reverse=True)
    columns = [
        Column("run", [str(run.path) for run in found]),
        Column("state", [run.state for run in found]),
        Column("begun", [f"{run.begun.astimezone():%Y-%m-%d %H:%M}" for run in found], 4),
        Column("time", [duration(run.seconds) for run in found], 3),
        Column("best", [_metric(run, "val") for run in found], 1),
        Column("test", [_metric(run, "test") for run in found], 2),
    ]
    print("\n".join(in_terminal(columns)))
    return 0


def _metric(run: Run, stage: str) -> str:
    """Return the name and value of the monitored metric for a stage. Without a monitored metric, use the loss."""
    name = run.monitor if stage == "val" and run.monitor else counterpart(run.monitor or "loss", stage, run.metrics)
    return f"{name} {number(run.metrics[name])}" if name in run.metrics else ""
