"""Silences what Lightning says in every run and nobody can act on."""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module

from lit_project import __version__

from .errors import UserError
from .messages import explain

_ADVERTISEMENTS = (
    "💡",
    "GPU available",
    "TPU available",
    "HPU available",
    "Seed set to",
    "Restoring states",
    "Restored all states",
    "Loaded model weights",
    "Loading `train_dataloader`",
    "`Trainer.fit` stopped",
    "Using bfloat16",
)


def _wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ADVERTISEMENTS)


def quiet_lightning() -> None:
    """Leaves warnings and errors, and drops advertisements and notices that the command line gives itself."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero",
                 "lightning.fabric.utilities.seed"):  # fmt: skip
        logger = logging.getLogger(name)
        if _wanted not in logger.filters:
            logger.addFilter(_wanted)
    for message in (
        r".*does not have many workers.*",  # in-memory loaders need none
        r".*number of training batches .* is smaller than the logging interval.*",
        r".*LeafSpec.* is deprecated.*",  # within Lightning
        r".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
    ):
        warnings.filterwarnings("ignore", message)


COMMANDS = {
    "translate": "lit_project.tasks.translation.command:translate",  # family: translation
    "sweep": "lit_project.engine.sweep.command:sweep",
    "examples": "lit_project.engine.examples:examples",
    "completion": "lit_project.engine.completion:completion",
    "--version": "lit_project.engine.entry:version",
}


def run(args: Sequence[str]) -> int:
    """Runs the command that `args` begins with and returns its exit status: 2 is an error of the user's."""
    quiet_lightning()
    module, _, function = COMMANDS[args[0]].partition(":")
    try:
        status = getattr(import_module(module), function)(list(args[1:]))
        sys.stdout.flush()
        return status
    except UserError as error:
        if os.environ.get("LIT_PROJECT_DEBUG", "0") not in ("", "0"):
            raise
        print(f"error: {explain(error, args)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python would flush at its end
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def version(args: Sequence[str]) -> int:
    """Prints the version of the project."""
    if args:
        raise UserError(f"--version stands alone, got {' '.join(args)}")
    print(f"lit-project {__version__}")
    return 0
