"""`lit-project sweep`: a sweep in W&B's format on this machine, without an account.

lit-project sweep configs/sweeps/fashion_mnist_mlp.yaml --workers 2     searches; again: goes on
lit-project sweep configs/sweeps/fashion_mnist_mlp.yaml --report        the table and the plots so far
lit-project sweep configs/sweeps/fashion_mnist_mlp.yaml --dry_run       all commands, nothing is run
"""

import argparse
import contextlib
import io
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lit_project.errors import UserError
from lit_project.explain import OptionParser
from lit_project.sweep.config import SweepConfig

if TYPE_CHECKING:
    from lit_project.sweep.study import Study

WANDB = "WandbLogger"  # local trials do without it: its runs would belong to no sweep


def option_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = OptionParser(
        prog="lit-project sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("file", type=Path, metavar="FILE", help="such as configs/sweeps/fashion_mnist_mlp.yaml")
    parser.add_argument("--workers", type=int, default=1, help="trials at a time (default: 1)")
    parser.add_argument("--count", type=int, help="trials in all (default: run_cap of the file, or the whole grid)")
    parser.add_argument("--dir", type=Path, help="where the sweep is kept (default: sweeps/NAME_OF_THE_FILE)")
    parser.add_argument("--seed", type=int, default=0, help="of the search (default: 0)")
    parser.add_argument(
        "--dry_run",
        action="store_true",
        help="check everything and print all commands (bayes: as they are without results), run none",
    )
    parser.add_argument("--report", action="store_true", help="only write and print what is known")
    return parser


def sweep(args: Sequence[str]) -> int:
    """Runs the command and returns its exit status: 1 if no trial has finished.

    Args:
        args: the command line after `sweep`.

    Raises:
        UserError: the file, a parameter, the folder or an option is wrong; no trial has begun then.
    """
    options = option_parser().parse_args(list(args))
    if find_spec("optuna") is None:
        raise UserError("sweeps on this machine need Optuna: pip install 'lit-project[sweep]'")
    for name, least in (("workers", 1), ("count", 1), ("seed", 0)):
        if getattr(options, name) is not None and getattr(options, name) < least:
            raise UserError(f"{name} must be at least {least}, got {getattr(options, name)}")
    config = SweepConfig.read(options.file)
    folder = options.dir or Path("sweeps") / options.file.stem
    if options.report:
        return _report(_study(folder, config, options.seed, create=False), folder)
    most = options.count or config.run_cap or (config.grid_size() if config.method == "grid" else None)
    if most is None:
        raise UserError(f"{config.method} search has no end: give --count N, or run_cap in {options.file}")
    trial_options = [f"--runs_dir={folder}", "--test_after_fit=false", *_without_wandb(_check(config, options.file))]
    if options.dry_run:
        return _print_commands(config, most, options.seed, folder, trial_options)
    if find_spec("fcntl") is None:
        raise UserError("sweeps on this machine need the locks of Linux or macOS; on Windows they run in WSL")
    from lit_project.arguments import prepare  # Lightning takes seconds

    with _alone(folder):
        study = _study(folder, config, options.seed, create=True)
        return _run(study, folder, folder / prepare(config.command).config_name, trial_options, options.workers, most)


def _study(folder: Path, config: SweepConfig, seed: int, create: bool) -> "Study":
    from lit_project.sweep.study import Study  # Optuna takes a second

    return Study(folder, config, seed, create)


def _run(study: "Study", folder: Path, runs: Path, options: list[str], workers: int, most: int) -> int:
    import torch

    from lit_project.sweep.runner import Runner

    left = study.unfinished()
    done = len(study.trials()) - len(left)
    more = f", {done} done, {len(left)} to go on with" if done or left else ""
    print(f"sweep: {folder} ({most} trials, {workers} at a time{more})", flush=True)
    devices = torch.cuda.device_count() if workers > 1 else 0
    runner = Runner(study, folder, runs, options, workers, most, devices, lambda line: print(line, flush=True))
    try:
        status = runner.run()
    except BaseException:
        with contextlib.suppress(UserError):  # what ended the sweep is the error to tell
            _report(study, folder)
        raise
    found = _report(study, folder)
    if status:
        print("interrupted; the same command goes on")
    return status or found


def _report(study: "Study", folder: Path) -> int:
    from lit_project.sweep.report import lines, report

    rows = study.rows()
    for line in lines(rows, study.config.metric):
        print(line, flush=True)
    report(study, folder)
    if (folder / "best.yaml").exists():
        print(f"best config: {folder / 'best.yaml'}")
    print(f"report: {folder / 'index.html'}", flush=True)
    return 0 if any(row.good for row in rows) else 1


def _print_commands(config: SweepConfig, most: int, seed: int, folder: Path, options: list[str]) -> int:
    """Draws trials into a study in memory."""
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        study = _study(Path(scratch), config, seed, create=True)
        while (job := study.next(most)) is not None:
            values = folder / "values" / f"{job.number:04d}.json"
            words = [*config.words(job.values, values), *options, f"--run_name=trial-{job.number:04d}"]
            print(f"lit-project {shlex.join(words)}")
            print(f"    {values}: {json.dumps(job.values)}")
    return 0


def _check(config: SweepConfig, file: Path) -> dict[str, Any]:
    """Parses command lines that show all parameters, as a trial would; returns the config of one.

    Raises:
        UserError: names each parameter that the command line does not accept.
    """
    import tempfile

    if not Path("configs").is_dir() and any(word.startswith("configs/") for word in config.command):
        raise UserError(f"{file} names configs/: start the sweep where that folder is")
    with tempfile.TemporaryDirectory() as scratch:
        values = Path(scratch) / "values.json"
        parsed: dict[str, Any] = {}
        for point in config.examples():
            parsed, error = _parsed(config, point, values)
            if error:
                raise UserError(
                    "\n".join([f"{file}: the command line does not accept", *_wrong(config, point, values)])
                )
    return parsed


def _wrong(config: SweepConfig, point: dict[str, Any], values: Path) -> list[str]:
    """Which parameters of a point are wrong, a line each: they are added one by one to those that are right."""
    right: dict[str, Any] = {}
    wrong = []
    _, error = _parsed(config, right, values)
    if error:
        return [f"the command itself: {error}"]
    for name, value in point.items():
        _, error = _parsed(config, {**right, name: value}, values)
        if error:
            wrong.append(f"parameter {name}: {error}")
        else:
            right[name] = value
    return wrong


def _parsed(config: SweepConfig, point: dict[str, Any], values: Path) -> tuple[dict[str, Any], str]:
    from lit_project.cli import main  # Lightning takes seconds
    from lit_project.run import write_text

    write_text(values, json.dumps(point))
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            status: Any = main([*config.words(point, values), "--print_config"])
        except SystemExit as ended:
            status = ended.code
    if status:
        return {}, errors.getvalue().strip().removeprefix("error: ")
    return yaml.safe_load(out.getvalue()), ""


def _without_wandb(parsed: dict[str, Any]) -> list[str]:
    """The option that leaves out the W&B logger, where there is one."""
    loggers = parsed.get("trainer", {}).get("logger")
    listed = loggers if isinstance(loggers, list) else [loggers]
    kept = [one for one in listed if not (isinstance(one, dict) and one["class_path"].endswith(WANDB))]
    if len(kept) == len(listed):
        return []
    return [f"--trainer.logger={json.dumps(kept or None)}"]


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Makes the folder and keeps a second sweep out of it.

    Raises:
        UserError: another process works on it, or it cannot be written.
    """
    from lit_project.processes import Hold  # Lightning takes seconds

    try:
        folder.mkdir(parents=True, exist_ok=True)
        hold = Hold(folder)
    except BlockingIOError as error:
        raise UserError(f"another process works on {folder}; see how it is with --report") from error
    except OSError as error:
        raise UserError(f"cannot write the sweep to {folder}: {error.strerror}") from error
    try:
        yield
        sys.stdout.flush()
    finally:
        hold.release()
