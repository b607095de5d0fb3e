"""Commands that take no config of LightningCLI, each by the function that is given the rest of the command line.

Importing this file imports neither torch nor Lightning: a command takes the time that its own module needs. A new one
is a line of `COMMANDS`; its function returns the exit status and raises UserError for what the user can put right.
"""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from lit_project import __version__
from lit_project.errors import UserError
from lit_project.explain import explain
from lit_project.quiet import quiet_lightning

COMMANDS = {
    "translate": "lit_project.translate:translate",  # family: translation
    "sweep": "lit_project.sweep.command:sweep",
    "examples": "lit_project.examples:examples",
    "completion": "lit_project.completion:completion",
    "--version": "lit_project.commands:version",
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
