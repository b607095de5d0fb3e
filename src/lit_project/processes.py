"""Which of several processes this is, and a folder that one process at a time may write to."""

import os
from pathlib import Path

from lightning.pytorch.utilities import rank_zero_only

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


def is_first() -> bool:
    """Whether this process has global rank 0, also before a strategy has started."""
    return getattr(rank_zero_only, "rank", 0) == 0


def print_once(text: str) -> None:
    """Prints in the first process only."""
    if is_first():
        print(text, flush=True)


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
            os.close(self._handle)
            self._handle = None
