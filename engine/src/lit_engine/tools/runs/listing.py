"""`runs [DIR…]`: the runs there are, the newest first."""

import argparse
from collections.abc import Sequence

from lit_engine.cli.explain import OptionParser
from lit_engine.tools.runs.columns import Column, duration, in_terminal, number
from lit_engine.tools.runs.reading import Run, read_runs


def option_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = OptionParser("runs", "Lists runs, the newest first.")
    parser.add_argument("runs", nargs="*", default=["runs"], metavar="DIR", help="folders of runs (default: runs)")
    return parser


def runs(args: Sequence[str]) -> int:
    """Lists runs and returns the exit status.

    Raises:
        UserError: there are no runs.
    """
    found = read_runs(option_parser().parse_args(list(args)).runs)
    found.sort(key=lambda run: run.begun, reverse=True)
    columns = [
        Column("run", [str(run.path) for run in found]),
        Column("state", [run.state for run in found]),
        Column("begun", [f"{run.begun.astimezone():%Y-%m-%d %H:%M}" for run in found], 4),
        Column("time", [duration(run.seconds) for run in found], 3),
        Column("best", [_metric(run, run.monitor or "val/loss") for run in found], 1),
        Column("test", [_metric(run, (run.monitor or "val/loss").replace("val/", "test/", 1)) for run in found], 2),
    ]
    print("\n".join(in_terminal(columns)))
    return 0


def _metric(run: Run, name: str) -> str:
    return f"{name} {number(run.metrics[name])}" if name in run.metrics else ""
