"""Command-line entry point.

This module imports neither torch nor Lightning, so that commands that need no config start immediately.
"""

import atexit
import contextlib
import ctypes
import gc
import logging
import os
import re
import signal
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from functools import partial
from glob import glob
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from lit_engine._lazy_imports import import_lazily
from lit_engine.cli.arguments import CONFIG, SUBCOMMANDS, fit_width, pairs
from lit_engine.cli.explain import short_message
from lit_engine.cli.options import format_short_help
from lit_engine.cli.shorthand import expand
from lit_engine.errors import UserError, nearest
from lit_engine.project import Project, current, is_debugging, program, use
from lit_engine.run.directory import RunDir
from lit_engine.run.provenance import command_line

# Maps commands to their functions in `lit_engine.tools` and their descriptions. The functions receive the remaining
# arguments, return the exit status and may raise UserError.
COMMANDS = {
    "sweep": ("sweep.command:sweep", "search hyperparameters"),
    "repeat": ("sweep.repeat:repeat", "train with several seeds or on each fold; report mean and standard deviation"),
    "runs": ("runs.listing:runs", "list runs"),
    "compare": ("runs.command:compare", "compare runs: options, metrics, curves"),
    "reproduce": ("reproduce.command:reproduce", "train a run again, and report whether the result is the same"),
    "doubts": ("doubts.command:doubts", "find label errors and near-duplicates after repeat --folds"),
    "export": ("export.command:export", "export a model to a .pt2, ONNX or safetensors file"),
    "serve": ("serve.command:serve", "try out a run in the browser"),
    "examples": ("examples:examples", "list the configs"),
    "completion": ("completion:completion", "print a completion script for your shell"),
    "schema": ("schema:schema", "write a JSON schema of configs for your editor"),
}
HELP = """usage: {name} COMMAND [OPTIONS], for example `{name} fit quickstart`

Commands that accept a config or a run:
  fit          train in a new run directory, or resume a run
  validate     evaluate a run on the validation split
  test         evaluate a run on the test split
  predict      write predictions for the test split or for new samples
Other commands:
{others}
  --version    print the version
`{name} COMMAND --help` shows the options of a command."""
# Maps unknown commands to the commands that users probably meant. A script is suggested only if it exists.
SYNONYMS = {
    **dict.fromkeys(("train", "run", "start"), "fit"),
    **dict.fromkeys(("resume", "continue"), "fit RUN"),
    **dict.fromkeys(("eval", "evaluate"), "test"),
    **dict.fromkeys(("val", "valid"), "validate"),
    **dict.fromkeys(("infer", "inference", "pred"), "predict"),
    **dict.fromkeys(("list", "ls"), "runs"),
    **dict.fromkeys(("tune", "search", "hpo"), "sweep"),
    "diff": "compare",
    **dict.fromkeys(("configs", "recipes"), "examples"),
    "new": "python scripts/new_task.py NAME",
    "init": "python scripts/init_project.py NAME",
    "help": "--help",
    "version": "--version",
}
_ADVERTISEMENTS = (
    "💡",
    "GPU available",
    "TPU available",
    "Seed set to",
    "[rank: ",  # start of the seed message in multi-process runs
    "Restoring states",
    "Found current_model_state",
    "Finished batch size finder, will continue",  # `--find batch_size` does not continue
    "The batch size ",  # `--find batch_size` already reports the largest size that it tries
    "`weights_only` was not set",
    "Restored all states",
    "Loaded model weights",
    "Loading `train_dataloader`",
    "`Trainer.fit` stopped",
    "Using bfloat16",
)


# Options that specify what to train or evaluate, or that only print something.
_SOURCES = ("--config", "--run", "--fork", "--model", "--data", "--print_config", "--help")


def run_program(project: Project) -> None:
    """Run the command line of this process, and exit with its status."""
    keep_freed_memory()
    warnings.showwarning = partial(_show_warning, warnings.showwarning)
    # Make the user's modules importable. The path is absolute, because the parser changes the working directory.
    sys.path.append(os.getcwd())
    statuses: list[int] = []
    atexit.register(_leave, statuses)  # runs after all other handlers, because it is registered first
    try:
        statuses.append(main(project, sys.argv[1:]))
    finally:
        atexit.register(_kill_workers)  # runs before multiprocessing's exit handler, which would wait for the workers
    sys.exit(statuses[0])


def keep_freed_memory() -> None:
    """Speed up the allocation of large tensors on Linux, with huge pages (torch) and memory reuse (glibc).

    By default, glibc returns freed memory to the system, so each step has to touch new pages, which is slow.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError):  # the C library is not glibc
            set_option = ctypes.CDLL(None).mallopt
            set_option(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: amount of unused memory to keep
            set_option(-4, 0)  # M_MMAP_MAX: also reuse the memory of large tensors


def main(project: Project, args: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status, which is 2 for an error that the user can fix."""
    use(project)
    args = list(sys.argv[1:] if args is None else args)
    command_line[:] = args
    if "" in sys.path and os.getcwd() not in sys.path:  # the parser changes the working directory
        sys.path.insert(sys.path.index("") + 1, os.getcwd())
    quiet_lightning()
    commands = all_commands(project)
    has_frozen = gc.get_freeze_count() > 0  # the caller may freeze objects itself
    try:
        args = expand(project, args)
        if args and args[0] in commands:
            module, _, function = commands[args[0]].partition(":")
            status = getattr(_import_quickly(module), function)(args[1:])
            sys.stdout.flush()
            return status
        if text := _information(project, args):
            print(text, flush=True)
            return 0
        check_early(args, [*SUBCOMMANDS, *commands])
        return _run_with_config(project, args)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes stdout at exit
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception as error:
        if (message := short_message(error, args)) is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        return 2
    finally:
        if not has_frozen:
            gc.unfreeze()  # a notebook that calls `main` must be able to free its objects


def _information(project: Project, args: Sequence[str]) -> str:
    """Return the text for `--help` or `--version` without a command, or an empty string for other arguments."""
    if args[:1] in (["-h"], ["--help"]):
        others = "\n".join(f"  {name:12} {about}" for name, (_, about) in COMMANDS.items())
        lines = [HELP.format(name=project.program, others=others)]
        if project.commands:
            lines.append(f"Commands of this project: {', '.join(project.commands)}")
        return fit_width("\n".join(lines))
    if args[:1] == ["--version"]:
        own = getattr(import_module(project.name), "__version__", "(no version)")
        return f"{project.program} {own} (lit-engine {metadata.version('lit-engine')})"
    return ""


def _run_with_config(project: Project, args: Sequence[str]) -> int:
    """Run `fit`, `validate`, `test` or `predict`, or print its help."""
    if {"-h", "--help"} & set(args):
        print(format_short_help(args[0]))
        return 0
    if not any(word.startswith(_SOURCES) or re.fullmatch(r"--\S+\.help(=.*)?", word) for word in args):
        raise UserError(_missing_source(args[0]))
    if sys.stdout.isatty() and os.environ.get("LOCAL_RANK", "0") == "0":
        used = [value for option, value in pairs(args) if option in (CONFIG, "--run") and value]
        print(f"{args[0]}: {', '.join(used) or 'command-line options'}", flush=True)  # the imports take seconds
    args = ["--help" if word == "--help=all" else word for word in args]
    return _import_quickly("lit_engine.session").run(project, args)


def all_commands(project: Project) -> dict[str, str]:
    """Return the `module:function` of each command that needs no config, keyed by the command's name."""
    own = {name: f"{project.name}.{place}" for name, place in project.commands.items()}
    tools = {name: f"lit_engine.tools.{place}" for name, (place, _) in COMMANDS.items()}
    return {**tools, **own}


def _import_quickly(name: str) -> ModuleType:
    """Import a module. To save time, the many objects that the import creates are excluded from garbage collection."""
    if name not in sys.modules:
        import_lazily()
        gc.disable()
        try:
            import_module(name)
        finally:
            if not gc.get_freeze_count():
                gc.freeze()
            gc.enable()
    return sys.modules[name]


def check_early(args: Sequence[str], commands: Sequence[str]) -> None:
    """Raise UserError for mistakes that can be found before the slow import of Lightning."""
    if not args or args[0].startswith("-"):
        raise UserError(
            f"the first argument must be a command, as in `{program()} fit -c configs/quickstart.yaml`; "
            f"`{program()} --help` lists the commands, and `{program()} examples` lists the configs"
        )
    if args[0] not in commands:
        raise UserError(_unknown_command(args[0], commands))
    runs = [str(value) for option, value in pairs(args) if option == "--run"]
    if len(runs) > 1:
        raise UserError(f"--run accepts one run, got {' and '.join(runs)}")
    for option, value in pairs(args):
        if option == "--run" and value not in (None, "", "~", "latest"):
            RunDir.open(value)
        if option == "--fork" and value and value.partition("@")[0] not in ("~", "latest"):
            RunDir.to_fork(value)
        is_file = value is not None and re.fullmatch(r"[\w./-]+|.*\.ya?ml", value)  # a file, not the text of a config
        if option == CONFIG and value and is_file and not Path(value).exists():
            files = [*glob("configs/**/*.yaml", recursive=True), *glob(f"{Path(value).parent}/*.yaml")]
            files_of = {Path(file).stem: file for file in files}
            near = nearest(Path(value).stem, files_of)
            raise UserError(f"no such config: {value}{f'; did you mean {files_of[near]}?' if near else ''}")


def _unknown_command(name: str, commands: Sequence[str]) -> str:
    meant = SYNONYMS.get(name, "")
    if meant.startswith("python ") and not Path(meant.split()[1]).exists():
        meant = ""
    meant = meant or nearest(name, commands) or ""
    if not meant and name in current().configs():
        meant = f"fit {name}"
    hint = f" Did you mean `{meant}`?" if meant else ""
    return f"{name!r} is not a command.{hint} The commands are {', '.join(commands)}."


def _missing_source(command: str) -> str:
    """Return the message for a command that needs a config or a run but got neither."""
    if command == "fit":
        return (
            f"fit needs a config, for example `{program()} fit configs/quickstart.yaml`. "
            f"`{program()} examples` lists the configs."
        )
    runs = RunDir.newest("runs")[:3]
    latest = "".join(f"\n  {run.path}" for run in runs)
    which = f"Your latest runs:{latest}" if runs else "There are no runs in `runs` yet."
    example = f"{program()} {command} {runs[0].path if runs else 'RUN'}"
    return f"{command} needs a run, for example `{example}`, or --run RUN. {which}"


def quiet_lightning() -> None:
    """Hide Lightning's advertisements and messages that are redundant or wrong in this project."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero",
                 "lightning.fabric.utilities.seed", "lightning.pytorch.tuner.batch_size_scaling",
                 "lightning.pytorch.trainer.connectors.checkpoint_connector"):  # fmt: skip
        logging.getLogger(name).addFilter(_is_wanted)
    for message in (
        r"You requested to overfit but .*",  # `SplitData.shuffles` already disables shuffling
        r"The '.*_dataloader' does not have many workers.*",  # loading may take no time
        r"Couldn't infer the batch indices.*",  # the batches of our own loaders contain the indices
        r".*LeafSpec.* is deprecated.*",  # used inside Lightning
        r"torch\.distributed\.nn\.functional\.all_gather is deprecated.*",  # used inside Lightning
        r".*Checkpoint directory .* exists and is not empty.*",  # normal for a resumed run
        # Running a single process on a login node without srun is fine.
        r"The `srun` command is available on your system but is not used.*",
        r".*using `ckpt_path`.* callbacks: \['(EMA|SWA)'\]",  # evaluation uses the averaged weights in any case
    ):
        warnings.filterwarnings("ignore", message)


def _show_warning(
    show: Any, message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print warnings from installed packages without file and line. Pass all other warnings to `show`."""
    installed = sysconfig.get_path("purelib"), sysconfig.get_path("platlib")
    if file is None and filename.startswith(installed) and not is_debugging():
        print(f"warning: {message}", file=sys.stderr)
    else:
        show(message, category, filename, lineno, file, line)


def _is_wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ADVERTISEMENTS)


def _kill_workers() -> None:
    """Kill the data-loading workers that are left after an interruption.

    Python would send SIGTERM to the workers and wait for them to exit, but workers ignore the first SIGTERM.
    """
    if multiprocessing := sys.modules.get("multiprocessing"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would report an error
        for worker in multiprocessing.active_children():
            if worker.daemon:
                worker.kill()


def _leave(statuses: list[int]) -> None:
    """Exit immediately, because Python would take seconds to destroy all objects of the imported modules.

    A W&B agent gives up once a few trials have exited with status 143. A process that was stopped by SIGTERM therefore
    kills itself with SIGTERM instead of exiting with this status.
    """
    # After an uncaught exception, or if coverage still has to save its data, let Python exit as usual.
    if not statuses or "coverage" in sys.modules:
        return
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    if statuses == [128 + signal.SIGTERM] and "WANDB_SWEEP_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    os._exit(statuses[0])
