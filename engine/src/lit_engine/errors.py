"""Errors that the command line shows as a few lines instead of a traceback, and the hint that ends many of them."""

import errno
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class UserError(Exception):
    """Something that the user can put right: the message says what, where and how (exit code 2)."""


class DataError(UserError):
    """The data are missing, corrupt or do not fit the config."""


class RunError(UserError):
    """A run directory or a checkpoint cannot be used as asked."""


class CheckpointError(RunError):
    """A checkpoint cannot be written, read or does not fit the model."""


NO_ACCESS = tuple(getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EACCES", "EPERM"))


def no_access(error: OSError) -> str | None:
    """The line for a disk that is full or read-only, and for permissions that are missing; None for anything else."""
    if error.errno not in NO_ACCESS or (error.filename is None and error.errno in (errno.EACCES, errno.EPERM)):
        return None
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror


def first_of(items: Sequence[Any], number: int = 5, separator: str = ", ") -> str:
    """The first so many, and how many more there are."""
    more = f" and {len(items) - number} more" if len(items) > number else ""
    return separator.join(map(str, items[:number])) + more


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like a name: first the one that differs in case alone; None if nothing is like it."""
    candidates = list(candidates)
    other_case = [candidate for candidate in candidates if candidate.lower() == name.lower()]
    return next(iter(other_case or get_close_matches(name, candidates, n=1)), None)


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """`; did you mean X?` with the `nearest` candidate, or `otherwise` if nothing is near."""
    near = nearest(name, candidates)
    return otherwise if near is None else f"; did you mean {near}?"
