"""The same `fit` for several seeds, or with each fold of the data as the test: mean and standard deviation.

%(prog)s -c configs/quickstart.yaml --seeds 1 2 3 --workers 2     started again, it continues; other seeds are added
%(prog)s -c configs/quickstart.yaml --folds 5                     with --seeds too, each fold has all of them

Options of `fit` are those of each run: `-c OVERLAY.yaml`, `--init_from RUN`, all with a dot. Give the same ones each
time.
"""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ..compare.columns import columns_of, in_terminal, number
from ..compare.differences import Comparison, mean_sd
from ..compare.differences import Row as Group
from ..compare.reading import Run, monitor_of, options_of, read_runs
from ..compare.report import page_of
from ..errors import UserError
from ..messages import OptionParser
from ..project import PROGRAM, this_project
from ..run import RunDir, write_text
from .command import parsed, stored

if TYPE_CHECKING:
    from ..cli import LitCLI
    from .config import SweepConfig
    from .study import Row, Study

# Means over the samples of the test, or over its tokens: over all folds they are weighted by how many there are.
POOLED = re.compile(r"test/(loss|mse|mae|(token_|top\d+_)?accuracy)")


def option_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    form = argparse.RawDescriptionHelpFormatter
    parser = OptionParser(prog=f"{PROGRAM} repeat", description=__doc__, formatter_class=form, allow_abbrev=False)
    parser.add_argument("--seeds", nargs="+", type=int, default=[], help="a run for each seed")
    parser.add_argument("--folds", type=int, help="a run for each of so many parts of the data, which is its test")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time (default: 1)")
    parser.add_argument("--dir", type=Path, help="where all is kept (default: repeats/CONFIG, with -5-folds if so)")
    return parser


def repeat(args: Sequence[str]) -> int:
    """Runs the command and returns its exit status: 1 if a run has failed.

    Raises:
        UserError: an option, the config, the data or the folder is wrong; nothing has begun then.
    """
    own, given = parsed(option_parser(), args)
    seeds, count = own.seeds, own.folds
    if not seeds and count is None:
        raise UserError(f"{PROGRAM} repeat needs --seeds 1 2 3, or --folds 5")
    if len(set(seeds)) < len(seeds):
        raise UserError(f"each seed once: --seeds {' '.join(map(str, seeds))}")
    if count is not None and count < 2:
        raise UserError(f"--folds must be at least 2, got {count}")
    by_seed = [(f"seed-{seed}", {"seed_everything": seed}) for seed in seeds] or [("", {})]
    by_fold = [(f"fold-{k}", {"data.folds": count, "data.fold": k}) for k in range(count or 0)] or [("", {})]
    points = {"-".join(filter(None, (f, s))): {**fold, **seed} for (f, fold), (s, seed) in product(by_fold, by_seed)}
    over = [key for key in next(iter(points.values())) if key != "data.folds"]
    for option in given:
        if (key := option.partition("=")[0].replace(".init_args", "").removeprefix("--")) in [*over, "data.folds"]:
            raise UserError(f"--{key} cannot be set, because the runs differ in it")
    name, config = _read(given, points, over)
    folder = own.dir or Path("repeats", name if count is None else f"{name}-{count}-folds")
    from .study import Study
    from .worker import Workers

    with stored(folder):
        study = Study(folder, config)
        left = _plan(study, name, points)
        print(f"repeat: {folder} ({left} of {len(study.rows())} runs left, {own.workers} at a time)", flush=True)
        try:
            status = Workers(study, name, own.workers, 0, tests=True).run()
        finally:
            good = _report(study, name, over, args)
    print("interrupted; the same command continues" if status else f"repeat: {folder}", flush=True)
    return status or int(not good)


def _read(given: list[str], points: dict[str, dict[str, int]], over: list[str]) -> "tuple[str, SweepConfig]":
    """Parses the first command; the name of its config, and the runs as a sweep whose trials are given to it.

    Raises:
        UserError: the command line does not accept it, or the data have no folds.
    """
    from optuna.pruners import NopPruner

    from ..cli import LitCLI, prepare
    from .config import SweepConfig

    first, command = next(iter(points.values())), ["fit", *given, "${args}"]
    words = ["fit", *given, *(f"--{key}={value}" for key, value in first.items()), "--test_after_fit=true"]
    invocation = prepare(words)
    cli = LitCLI(this_project(), invocation.args)
    if "data.fold" in first:
        _check_folds(cli)
    options = dict(options_of(yaml.safe_load(cli.config_text())))
    metric, maximize = monitor_of(options)
    known = {key: value for key, value in options.items() if key not in over}
    known |= {key: cli.options[key] for key in ("init_from", "init_prefixes", "init_strict")} | {"over": over}
    identity = json.loads(json.dumps(known))
    return invocation.config_name, SweepConfig(
        "grid", metric or "epoch", maximize, [], command, NopPruner(), 0, identity
    )


def _check_folds(cli: "LitCLI") -> None:
    """Loads the test of the first fold."""
    from ..datamodule import made

    data = made(cli.plain["data"])
    data.prepare_data()
    data.setup("test")


def _plan(study: "Study", name: str, points: dict[str, dict[str, int]]) -> int:
    """Adds the runs that are not there, and again those that have failed; returns how many are left to do."""
    with study.lock:
        rows = {row.run.name: row for row in study.rows()}
        new = [run for run in points if run not in rows]
        failed = [row for row in rows.values() if row.state == "failed"]
        todo = [(row.number, row.run.name, row.values) for row in failed]
        todo += [(number, run, points[run]) for number, run in enumerate(new, len(rows))]
        for number, run, values in todo:
            study.connect().enqueue_trial({}, {"number": number, "run": f"{name}/{run}", "values": values})
        return sum(row.state != "finished" for row in study.rows())


def _report(study: "Study", config: str, over: list[str], args: Sequence[str]) -> bool:
    """Prints the tables, writes summary.json and the page; returns whether all runs have finished."""
    rows = sorted(study.rows(), key=lambda row: row.number)
    begun = [str(row.run) for row in rows if RunDir(row.run).config_file.exists()]
    runs = {run.path.name: run for run in (read_runs(begun) if begun else [])}
    counted = [run for run in runs.values() if run.state == "finished"]
    for row in rows:
        if runs.get(row.run.name) not in counted:
            print(f"in no mean: {row.run} ({row.state}){row.error and f': {row.error}'}")
    if counted:
        found = Comparison([*runs.values()], over)
        metrics = _metrics(counted, "data.fold" in over)
        alone = [Group([run], False) for run in runs.values()]
        print("\n".join([*in_terminal(columns_of(found, found.rows, found.keys)), ""]))
        print("\n".join(in_terminal(columns_of(found, alone, found.keys))))
        pooled = [f"{name} {number(one['pooled']['value'])}" for name, one in metrics.items() if "pooled" in one]
        more = [f"over all folds: {', '.join(pooled)}"] if pooled else []
        if not any(metric.startswith("test/") for metric in metrics):
            more.append("no run was tested: the data have no test split")
        if found.facts:
            more.append(f"the runs differ in: {', '.join(found.facts)}")
        print(*more, sep="\n", end="\n" if more else "")
        summary, page = study.folder / "summary.json", study.folder / "compare.html"
        command = f"{PROGRAM} repeat {shlex.join(args)}"
        last = RunDir(counted[-1].path).entries()[-1]
        told = {
            "command": command,
            "config": config,
            "over": over,
            "runs": {row.run.name: _told(row, runs.get(row.run.name), study.folder) for row in rows},
            "seconds": round(sum(run.seconds for run in counted), 2),
            "differ": found.facts,
            **{key: last.get(key) for key in ("git", "versions", "host", "platform", "devices", "cpu_threads")},
            "metrics": metrics,
        }
        write_text(summary, json.dumps(told, indent=2) + "\n")
        write_text(
            page, page_of(found, f"{config} over {' and '.join(over)}", " · ".join([command, *more]), study.folder)
        )
        print(f"summary: {summary}\npage: {page}")
    return len(counted) == len(rows)


def _told(row: "Row", run: Run | None, folder: Path) -> dict[str, Any]:
    """What the summary says of a run."""
    ended = {"state": run.state, "seconds": round(run.seconds, 2)} if run and run.seconds == run.seconds else {}
    error = {"error": row.error} if row.error else {}
    return {**row.values, "path": str(row.run.relative_to(folder)), "state": row.state, **ended, **error}


def _metrics(runs: Sequence[Run], folds: bool) -> dict[str, dict[str, Any]]:
    """By name: n, mean, standard deviation (n − 1), values by run; over folds also what a mean over all samples is."""
    found: dict[str, dict[str, Any]] = {}
    unit = "test/tokens" if "test/tokens" in runs[0].metrics else "test/samples"
    for name in dict.fromkeys(name for run in runs for name in run.metrics):
        values = {run.path.name: run.metrics[name] for run in runs if name in run.metrics}
        mean, sd, n = mean_sd([*values.values()])
        found[name] = {"n": n, "mean": mean, "sd": sd if n > 1 else None, "values": values}
        weights = [run.metrics.get(unit, 0) for run in runs if name in run.metrics]
        if folds and POOLED.fullmatch(name) and all(weights):
            total = sum(weight * value for weight, value in zip(weights, values.values(), strict=True))
            found[name]["pooled"] = {"value": total / sum(weights), "over": unit, "count": sum(weights)}
    return found
