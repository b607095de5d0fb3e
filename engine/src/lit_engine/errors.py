"""Errors that the command line prints without a traceback, and the "did you mean" hints that they contain."""

import errno
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any


class UserError(Exception):
    """A mistake that the user can fix. The message says what is wrong, where, and how to fix it (exit status 2)."""


class DataError(UserError):
    """Data that are missing, corrupt or inconsistent with the config."""


class RunError(UserError):
    """A run directory or checkpoint that cannot be used as requested."""


class CheckpointError(RunError):
    """A checkpoint that cannot be written, cannot be read, or does not fit the model."""


class NonFiniteError(UserError):
    """A loss or gradient that is NaN or infinite."""


NO_ACCESS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)


def explain_no_access(error: OSError) -> str | None:
    """Return a message for errors caused by the disk, permissions or the length of a name. Otherwise, return None."""
    if error.errno not in NO_ACCESS or (error.filename is None and error.errno in (errno.EACCES, errno.EPERM)):
        return None
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror


def first_of(items: Sequence[Any], number: int = 5, separator: str = ", ") -> str:
    """Join the first `number` items, and state how many more there are."""
    more = f" and {len(items) - number} more" if len(items) > number else ""
    return separator.join(map(str, items[:number])) + more


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the most similar candidate, preferably one that differs only in case, or None if none is similar."""
    candidates = list(candidates)
    other_case = [candidate for candidate in candidates if candidate.lower() == name.lower()]
    return next(iter(other_case or get_close_matches(name, candidates, n=1)), None)


def did_you_mean(name: str, candidates: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that suggests the `nearest` candidate, or `otherwise` if no candidate is similar."""
    near = nearest(name, candidates)
    return otherwise if near is None else f"; did you mean {near}?"
