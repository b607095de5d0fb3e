"""Runs a sweep in W&B's format without a W&B account.

The `fit` options `-c OVERLAY.yaml`, `--seed_everything=1` and all options with a dot, such as
`--trainer.max_epochs=2`, apply to each trial. Pass the same options when you continue a sweep.

%(prog)s configs/sweeps/quickstart_cnn.yaml --workers 2     start or continue the search, on one or more machines
%(prog)s configs/sweeps/quickstart_cnn.yaml --report        write the table and the plots so far
%(prog)s configs/sweeps/quickstart_cnn.yaml --dry_run       print commands that cover all values and limits
"""

import argparse
import json
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_engine.cli.arguments import CONFIG, OptionParser, at_least, expanded_path, pairs
from lit_engine.cli.explain import explain
from lit_engine.cli.main import check_early
from lit_engine.cli.shorthand import expand
from lit_engine.errors import UserError
from lit_engine.project import current, program
from lit_engine.run.options import options_of
from lit_engine.tools.output import HELP, json_document

if TYPE_CHECKING:
    from lit_engine.tools.sweep.config import SweepConfig
    from lit_engine.tools.sweep.study import Study


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `sweep`."""
    parser = OptionParser("sweep", __doc__)
    parser.add_argument("file", type=Path, metavar="FILE", help="such as configs/sweeps/quickstart_cnn.yaml")
    parser.add_argument("--workers", type=at_least(1), default=1, help="concurrent trials in this process (default: 1)")
    parser.add_argument(
        "--count", type=at_least(1), help="total number of trials (default: run_cap in the file, or the whole grid)"
    )
    parser.add_argument("--dir", type=expanded_path, help="folder of the sweep (default: sweeps/NAME_OF_THE_FILE)")
    parser.add_argument("--storage", metavar="URL", help="database that machines share (default: a file in --dir)")
    parser.add_argument("--lost_after", type=at_least(1), metavar="SECONDS",
                        help="retry a trial if it sends no heartbeat for this many seconds (default: 60)")  # fmt: skip
    parser.add_argument("--seed", type=at_least(0), default=0, help="seed of the search (default: 0)")
    parser.add_argument("--dry_run", action="store_true", help="only check the sweep and print commands")
    parser.add_argument("--report", action="store_true", help="only write and print the results so far")
    parser.add_argument("--json", action="store_true", help=HELP)
    return parser


def sweep(args: Sequence[str]) -> int:
    """Run the command and return its exit status, which is 1 if no trial has a result.

    Raises:
        UserError: the file, a parameter, the folder or an option is invalid, or a trial did not log the metric.
    """
    options, overrides = split_fit_options(option_parser(), args)
    from lit_engine.tools.sweep.config import SweepConfig
    from lit_engine.tools.sweep.study import Study

    config, folder = SweepConfig.read(options.file, overrides), options.dir or Path("sweeps") / options.file.stem
    most = config.trials(options.count)
    if not most and not options.report:
        raise UserError(f"{config.method} search never ends: set --count N, or run_cap in {options.file}")
    with json_document(options.json) as document:
        commands, shared = ([], {}) if options.report else _check(config, options.file)
        if commands and options.dry_run:
            for command, point in commands:
                print(f"{command}\n    values.json: {json.dumps(point)}")
            document["commands"] = [{"command": command, "values": point} for command, point in commands]
            return 0
        with convert_study_errors("--storage" if options.storage else folder):
            study = Study(folder, config, options.seed, options.storage, options.lost_after)
            if not options.report:
                study.require_same(shared)
            status = _report(study) if options.report else _run(study, options.workers, most)
            rows = study.rows()
        trials = [{**row._asdict(), "error": row.error or None} for row in rows]
        best = trials[0] if rows and rows[0].has_result else None
        document.update(dir=folder, metric=config.metric, best=best, trials=trials, page=folder / "index.html")
    return status


def split_fit_options(parser: argparse.ArgumentParser, args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into the command's own options and the `fit` options (as `--OPTION=VALUE`).

    Raises:
        UserError: an option is invalid, or Optuna is not installed.
    """
    own: list[str] = []
    overrides: list[str] = []
    for option, value in pairs(args):
        words = [option] if value is None else [option, value]
        if option in (CONFIG, "--model", "--data", "--seed_everything") or re.match(r"--(\w+\.|init_)", option):
            overrides.append("=".join(words))
        else:
            own += words
    options = parser.parse_args(own)
    check_early(["fit", *overrides], ["fit"])
    if find_spec("optuna") is None:
        raise UserError(f"{parser.prog} needs Optuna: pip install optuna")
    return options, overrides


@contextmanager
def convert_study_errors(place: Path | str) -> Iterator[None]:
    """Convert errors from a study's folder or database to UserError."""
    from optuna.exceptions import OptunaError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (OptunaError, SQLAlchemyError, ImportError, FileExistsError, NotADirectoryError) as error:
        cause = getattr(error.__cause__, "orig", None) or error.__cause__ or error
        reason = str(cause).partition("\n")[0]
        if isinstance(error, ImportError):
            reason += "; postgresql+psycopg://… needs pip install 'psycopg[binary]'"
        raise UserError(f"cannot use the study in {place}: {reason}") from error


def _run(study: "Study", workers: int, most: int) -> int:
    from lit_engine.cli.invocation import prepare
    from lit_engine.tools.sweep.worker import Workers

    started = len(study.rows())
    more = f", {started} already started" if started else ""
    print(f"sweep: {study.folder} ({most} trials, {workers} at a time{more})", flush=True)
    name = prepare(expand(current(), study.config.words({}, Path("values.json")))).config_name
    try:
        status = Workers(study, name, workers, most).run()
    finally:
        found = _report(study)
    if status:
        print("interrupted; run the same command to continue")
    return status or found


def _report(study: "Study") -> int:
    from lit_engine.tools.sweep.report import lines, write_report

    rows = study.rows()
    print("\n".join(lines(rows, study.config.metric)), flush=True)
    write_report(study, rows)
    if (study.folder / "best.yaml").exists():
        print(f"best config: {study.folder / 'best.yaml'}")
    elif rows and rows[0].has_result:
        print(f"best run: {rows[0].run} on {rows[0].host}")
    print(f"page: {study.folder / 'index.html'}", flush=True)
    return 0 if any(row.has_result for row in rows) else 1


def _check(config: "SweepConfig", file: Path) -> tuple[list[tuple[str, dict[str, Any]]], dict[str, Any]]:
    """Check that `fit` accepts command lines that cover all values and limits.

    Returns:
        the command lines with these values, and the options that are the same in all trials.

    Raises:
        UserError: the parser rejects a command line.
    """
    from lit_engine.cli.invocation import prepare
    from lit_engine.cli.parser import LitCLI
    from lit_engine.tools.sweep.config import option_key

    found = []
    for point in config.examples():
        with tempfile.TemporaryDirectory() as scratch:
            values = Path(scratch) / "values.json"
            values.write_text(json.dumps(point))
            words = config.words(point, values)
            found.append((f"{program()} {shlex.join(config.words(point, Path(values.name)))}", point))
            try:
                cli = LitCLI(current(), prepare(expand(current(), words)).args)
            except UserError as error:
                reason = explain(error, words)
                raise UserError(f"{file}: `fit` does not accept {json.dumps(point)}: {reason}") from error
    swept = tuple(f"{option_key(parameter.name)}." for parameter in config.parameters)
    plain = {**cli.plain, "seed_everything": True} if cli.drawn else cli.plain  # each trial draws its own seed
    return found, {key: value for key, value in options_of(plain) if not f"{key}.".startswith(swept)}
