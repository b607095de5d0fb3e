"""Which of several processes this is, and a folder that one process at a time may write to."""

import contextlib
import os
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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


_handles: set[int] = set()  # of the locks that this process has


def _forget() -> None:
    """In a child that has been forked, such as a worker of a loader: the lock is its parent's and ends with it."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class Hold:
    """A lock on a folder, which leaves nothing in it and ends with the process at the latest.

    Does nothing on systems and file systems without such locks.

    Raises:
        BlockingIOError: another process holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        if fcntl is None:
            return
        self._handle = os.open(folder, os.O_RDONLY)
        _handles.add(self._handle)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise
        except OSError:  # this file system has none
            self.release()

    def release(self) -> None:
        """Ends it."""
        if self._handle is not None:
            _handles.discard(self._handle)
            with contextlib.suppress(OSError):  # there may be no locks
                fcntl.flock(self._handle, fcntl.LOCK_UN)  # for a child as well that has not forgotten it yet
            os.close(self._handle)
            self._handle = None
