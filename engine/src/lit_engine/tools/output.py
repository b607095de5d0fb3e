"""Output of commands: files, and the JSON document printed with `--json`."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

from lit_engine.errors import UserError
from lit_engine.run.directory import write_text
from lit_engine.tools.runs.reading import Run

HELP = "print one JSON document to standard output, and all messages to standard error"


@contextmanager
def json_document(wanted: bool) -> Iterator[dict[str, Any]]:
    """Yield a dictionary, and print it as JSON at the end if `wanted`. Non-finite numbers become null."""
    document: dict[str, Any] = {}
    with redirect_stdout(sys.stderr) if wanted else nullcontext():
        yield document
    if wanted:
        print(as_json(document), flush=True)


def as_json(document: dict[str, Any]) -> str:
    """Return a document as indented JSON. Non-finite numbers become null."""
    return json.dumps(_plain(document), indent=2, allow_nan=False)


def run_entry(run: Run) -> dict[str, Any]:
    """Return a run's path, state, start (ISO 8601), duration, monitored metric, metrics and options as JSON data."""
    names = ("path", "state", "seconds", "monitor", "headline", "metrics", "options")
    more = {"started": run.started.isoformat(), "mode": "max" if run.maximize else "min"}
    return {**{name: getattr(run, name) for name in names}, **more}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def write_file(what: str, option: str, file: Path, text: str) -> None:
    """Write a file and print its path. If this fails, raise UserError and suggest a different value for the option."""
    try:
        if stream := _stream_of(file):
            stream.flush()
            with open(stream.fileno(), "w", encoding="utf-8", closefd=False) as output:
                output.write(text)
        elif file.exists() and not file.is_file():  # a pipe or a device, which must not be replaced
            file.write_text(text, encoding="utf-8")
        else:
            write_text(file, text)
    except OSError as error:
        raise UserError(f"cannot write the {what} {file}: {error.strerror}; choose another --{option} FILE") from error
    print(f"{what}: {file}")


def _stream_of(file: Path) -> TextIO | None:
    """Return the standard stream that is redirected to the given file, or None."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(OSError, ValueError):
            if stream is not None and os.path.samestat(file.stat(), os.fstat(stream.fileno())):
                return stream
    return None
