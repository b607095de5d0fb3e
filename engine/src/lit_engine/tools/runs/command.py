"""Shows the differing options and the metrics of runs in the terminal, on a page and as CSV (`compare RUN…`)."""

import argparse
import glob
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from lit_engine.cli.arguments import OptionParser, expanded_path
from lit_engine.errors import UserError
from lit_engine.project import program
from lit_engine.tools.output import HELP, json_document, run_entry, write_file
from lit_engine.tools.runs.columns import as_csv, columns_of, find_common_folder, in_terminal, labels, table_of
from lit_engine.tools.runs.differences import Comparison
from lit_engine.tools.runs.reading import read_runs
from lit_engine.tools.runs.report import changes, page_of, summary
from lit_engine.tools.runs.verdict import STATUS, find_all, render_page


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `compare`."""
    what = "Compares the configs, commits, versions, metrics and learning curves of runs, and writes an HTML page."
    parser = OptionParser("compare", what)
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="run directories, glob patterns, or folders of runs, such as a sweep")
    add("--over", nargs="+", default=[], metavar="KEY",
        help="average runs that differ only in these options, and show the standard deviation "
        "(example: seed_everything)")  # fmt: skip
    add("--metric", nargs="+", default=[], metavar="NAME",
        help="metrics to show, such as accuracy (default: monitored metrics, and metrics that differ)")  # fmt: skip
    add("--test", nargs="+", default=[], metavar="METRIC", help="test whether each later RUN is better than the first "
        "(exit status 0 if better, 3 if not distinguishable, 4 if worse)")  # fmt: skip
    add("--csv", type=expanded_path, metavar="FILE", help="also write the table to this file at full precision")
    add("--json", action="store_true", help=HELP)
    add("--html", type=expanded_path, metavar="FILE",
        help="file for the page (default: compare.html in the folder of the runs)")  # fmt: skip
    return parser


def compare(args: Sequence[str]) -> int:
    """Compare runs, print the table, write the page and return the exit status. For `--test`, see `STATUS`.

    Raises:
        UserError: a run, option or metric does not exist, or a file cannot be written.
    """
    options = option_parser().parse_args(args)
    for name in ("over", "metric", "test"):  # ignore repeated names
        setattr(options, name, list(dict.fromkeys(getattr(options, name))))
    footer = shorten(f"{program()} compare {shlex.join(args)}", 200)
    with json_document(options.json) as document:
        if options.test:
            return _test(options, footer, document)
        runs = read_runs(options.runs)
        found = Comparison(runs, options.over, options.metric)
        print("\n".join([*in_terminal(table_of(found)), "", *found.notes()]))
        for kind, lines in changes(found).items():
            print(f"{kind} from {' to '.join(labels(found, found.given))}: {summary(lines)}")
        folder = _folder([run.path for run in runs])
        if options.csv is not None:
            write_file("table", "csv", options.csv, as_csv(columns_of(found, found.rows, found.keys)))
        file = options.html or folder / "compare.html"
        write_file("page", "html", file, page_of(found, f"Runs of {folder.resolve().name}", footer, file.parent))
        document.update(_document(found, file))
    return 0


def _test(options: argparse.Namespace, footer: str, document: dict[str, Any]) -> int:
    """Test the runs, write the page, and return the exit status of the worst verdict."""
    for name in ("over", "metric", "csv"):
        if getattr(options, name):
            raise UserError(f"--{name} cannot be used with --test")
    found = find_all(options.runs, options.test)
    print("\n\n".join("\n  ".join([f"{one.b} compared with {one.a}", *one.lines()]) for one in found))
    paths = [Path(path) for name in options.runs for path in glob.glob(name) or [name]]
    file = options.html or _folder(paths) / "test.html"
    write_file("page", "html", file, render_page(found, footer))
    document.update(tests=[one.document() for one in found], page=file)
    return max(STATUS[one.verdict] for one in found)


def _folder(paths: Sequence[Path]) -> Path:
    """Return the common folder of paths, as a relative path if it is inside the working folder."""
    folder = find_common_folder(paths)
    return Path(os.path.relpath(folder)) if folder.is_relative_to(Path.cwd()) else folder


def _document(found: Comparison, file: Path) -> dict[str, Any]:
    """Return a comparison as JSON data, with its runs, the differing options, and the means of each group."""
    rows = []
    for row in found.rows:
        values = {name: dict(zip(("mean", "sd", "n"), row.metric(name), strict=True)) for name in found.metrics}
        options = {key: row.runs[0].options.get(key) for key in found.keys}
        rows.append({"runs": [run.path for run in row.runs], "options": options, "metrics": values})
    return {"runs": [run_entry(run) for run in found.runs], "differ": [*found.keys, *found.facts], "rows": rows,
            "notes": found.notes(), "page": file}  # fmt: skip
