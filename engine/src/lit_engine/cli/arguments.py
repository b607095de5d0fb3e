"""Splits command lines, and parses the options of commands that need no config."""

import argparse
import math
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Never

from lit_engine.errors import UserError
from lit_engine.project import program

CONFIG = "--config"
SUBCOMMANDS = ("fit", "validate", "test", "predict")


class UsageError(UserError):
    """A command line or config that could not be parsed. `parser` is the parser that raised the error."""

    def __init__(self, message: str, parser: Any) -> None:
        super().__init__(message)
        self.parser = parser


def pairs(args: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield each option with its value. The value is None for flags and for words that are not options."""
    rest = list(reversed(args))
    while rest:
        word = rest.pop()
        if short := re.fullmatch(r"-c=?(.*)", word, re.DOTALL):
            word = f"{CONFIG}={short[1]}" if short[1] else CONFIG
        option, joined, value = word.partition("=")
        if not option.startswith("--") or option in ("--help", "--print_config"):
            yield word, None
        elif joined:
            yield option, value
        else:
            yield option, None if not rest or re.match(r"-[^\d.]", rest[-1]) else rest.pop()


class OptionParser(argparse.ArgumentParser):
    """Parser for a command with its own options. It rejects abbreviations and does not print the usage on errors."""

    def __init__(self, command: str, about: str | None, **more: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(f"{program()} {command}", description=about, formatter_class=form, allow_abbrev=False, **more)

    def format_help(self) -> str:
        return fit_width(super().format_help()) + "\n"

    def error(self, message: str) -> Never:
        """Stop parsing with an error.

        Raises:
            UserError: an argument is missing.
            UsageError: any other error occurred.
        """
        if missing := re.search(r"arguments are required: (.*)|one of the arguments (\S+) .*is required", message):
            raise UserError(f"{self.prog} needs {missing[1] or missing[2]}; see {self.prog} --help")
        raise UsageError(message.removeprefix("argument "), self)


def fit_width(text: str) -> str:
    """Wrap lines that are wider than the terminal. If a line has two columns, only the second one is wrapped."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    lines: list[str] = []
    for line in text.splitlines():
        if len(line) > width:
            margin = len(line) - len(line.lstrip())
            first = re.match(r"\s*\S+(?: \S+)* {2,}", line)  # the first of two columns
            column = first.end() if first else margin
            if first and column > width / 2:  # too little space for the second column
                lines.append(line[:column].rstrip())
                line, column = f"{' ' * (margin + 4)}{line[column:]}", margin + 4
            lines += textwrap.wrap(line, int(width), subsequent_indent=" " * column, break_long_words=False,
                                   break_on_hyphens=False)  # fmt: skip
        else:
            lines.append(line)
    return "\n".join(lines)


def expanded_path(text: str) -> Path:
    """Convert an argument to a path and expand `~`, because shells do not expand it in `--dir=~/sweeps`."""
    return Path(text).expanduser()


def at_least(least: int) -> Callable[[str], int]:
    """Return an argparse type that rejects integers below `least`."""

    def parse(text: str) -> int:
        number = int(text)
        if number < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {number}")
        return number

    parse.__name__ = "int"  # argparse shows this name if a value is not a number
    return parse
