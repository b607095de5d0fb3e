"""`compare RUN…`: what differs between runs beside their metrics, in the terminal, as a page and as CSV."""

import argparse
import os
import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from textwrap import shorten

from lit_engine.cli.explain import OptionParser
from lit_engine.errors import UserError
from lit_engine.project import program
from lit_engine.run.directory import write_text
from lit_engine.tools.runs.columns import as_csv, columns_of, common_folder, in_terminal, labels, table_of
from lit_engine.tools.runs.differences import Comparison
from lit_engine.tools.runs.reading import read_runs
from lit_engine.tools.runs.report import changes, page_of, summary


def option_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    what = "Compares runs: what differs in their configs, commits and versions, metrics, curves. Makes a page of it."
    parser = OptionParser("compare", what)
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run directories, patterns, or folders of runs, also of a sweep")
    add("--over", nargs="+", default=[], metavar="KEY", help="mean and standard deviation of runs that differ in these "
        "options alone, such as seed_everything")  # fmt: skip
    add("--metric", nargs="+", default=[], metavar="NAME", help="such as accuracy; default: those monitored, and "
        "others that differ")  # fmt: skip
    add("--csv", type=Path, metavar="FILE", help="also write the table, with all digits")
    add("--html", type=Path, metavar="FILE", help="the page (default: compare.html in the folder of the runs)")
    return parser


def compare(args: Sequence[str]) -> int:
    """Compares, prints the table, writes the page, and returns the exit status.

    Raises:
        UserError: no such run, option or metric; or a file cannot be written.
    """
    options = option_parser().parse_args(list(args))
    runs = read_runs(options.runs)
    found = Comparison(runs, options.over, options.metric)
    print("\n".join([*in_terminal(table_of(found)), "", *found.notes()]))
    for kind, lines in changes(found).items():
        print(f"{kind} from {' to '.join(labels(found, found.given))}: {summary(lines)}")
    folder = common_folder([run.path for run in runs])
    folder = Path(os.path.relpath(folder)) if folder.is_relative_to(Path.cwd()) else folder
    if options.csv is not None:
        _write("table", "csv", options.csv, as_csv(columns_of(found, found.rows, found.keys)))
    footer = f"{shorten(f'{program()} compare {shlex.join(args)}', 200)} · {datetime.now():%Y-%m-%d %H:%M}"
    file = options.html or folder / "compare.html"
    _write("page", "html", file, page_of(found, f"Runs of {folder.resolve().name}", footer, file.parent))
    return 0


def _write(what: str, option: str, file: Path, text: str) -> None:
    try:
        write_text(file, text)
    except OSError as error:
        raise UserError(f"cannot write the {what} {file}: {error.strerror}; --{option} FILE names another") from error
    print(f"{what}: {file}")
