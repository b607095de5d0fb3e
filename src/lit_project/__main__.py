"""What `lit-project` and `python -m lit_project` call. Only a command that needs Lightning waits for it."""

import atexit
import os
import signal
import sys

from lit_project.engine.entry import COMMANDS, run


def entry_point() -> None:
    """Runs the command line and ends the process with its exit status."""
    args = sys.argv[1:]
    # your modules; behind all that is installed, and by its full path: the parser changes the folder while it reads
    sys.path.append(os.getcwd())
    if args and args[0] in COMMANDS:
        sys.exit(run(args))
    statuses: list[int] = []
    if "WANDB_SWEEP_ID" in os.environ:
        atexit.register(_end_by_signal, statuses)  # registered first, it is the last to run
    try:
        from lit_project.engine.cli import main
    except KeyboardInterrupt:  # while Lightning is imported, which takes seconds
        sys.exit(128 + signal.SIGINT)
    statuses.append(main(args))
    sys.exit(statuses[0])


def _end_by_signal(statuses: list[int]) -> None:
    """An agent of W&B gives up after a few trials that exit with 143, though not after those that SIGTERM ends."""
    if statuses == [128 + signal.SIGTERM]:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    entry_point()
