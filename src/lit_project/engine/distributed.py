"""Which of several processes this is, and a folder that one process at a time may write to."""

import contextlib
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException


def is_first() -> bool:
    """Whether this process has global rank 0, also before a strategy has started."""
    return getattr(rank_zero_only, "rank", 0) == 0


def first_if_alone(options: Any) -> None:
    """Makes this the first process if its trainer will have no other.

    Lightning takes the rank from the variables of SLURM and torchrun when it is imported, whatever the world size: in a
    SLURM job of several runs, a run that is not the first task would write nothing.

    Args:
        options: of the trainer.
    """
    if is_first():
        return
    strategy = options.strategy if isinstance(options.strategy, str) else "auto"
    given = {name: options[name] for name in ("accelerator", "devices", "num_nodes")}
    with contextlib.suppress(RuntimeError, ValueError, MisconfigurationException):  # which the real trainer raises
        if Trainer(**given, strategy=strategy, logger=False, enable_checkpointing=False).world_size == 1:
            setattr(rank_zero_only, "rank", 0)  # noqa: B010  (mypy knows no such attribute)


def print_once(text: str) -> None:
    """Prints in the first process only."""
    if is_first():
        print(text, flush=True)


class Hold:
    """A lock on a folder, which ends with the process at the latest.

    The file `.lock` in it is removed at the end; one that is left by a process that was killed locks nothing.

    Raises:
        BlockingIOError: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / ".lock"
        self._lock = FileLock(self._file)
        try:
            self._lock.acquire(blocking=False)
        except Timeout as error:
            raise BlockingIOError(f"{folder} is locked") from error

    def release(self) -> None:
        """Ends it."""
        if self._lock.is_locked:
            with contextlib.suppress(OSError):  # Windows removes none that is open
                self._file.unlink()  # while it is held: afterwards it may be another's
            self._lock.release()
