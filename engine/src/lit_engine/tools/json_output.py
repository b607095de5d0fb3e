"""Implements the `--json` option, which prints one JSON document to stdout and everything else to stderr."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from lit_engine.tools.runs.reading import Run

HELP = "print one JSON document to standard output, and all messages to standard error"


@contextmanager
def json_document(wanted: bool) -> Iterator[dict[str, Any]]:
    """Yield a dictionary, and print it as JSON at the end if `wanted`. Non-finite numbers become null."""
    document: dict[str, Any] = {}
    if not wanted:
        yield document
        return
    with redirect_stdout(sys.stderr):
        yield document
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
