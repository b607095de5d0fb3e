"""A tiny translator that is trained once, and the command that translates with it."""

import io
import sys

import pytest

from lit_project.__main__ import main
from translation_run import shared


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    return shared(tmp_path_factory)


@pytest.fixture
def translate(run, capfd, monkeypatch):
    """Return a function that runs the command and returns the status, the lines of stdout and the text of stderr."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))

    def call(*args, stdin=None, of=run):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        status = main(["translate", *([] if of is None else ["--run", str(of)]), *map(str, args)])
        out, err = capfd.readouterr()
        return status, out.splitlines(), err

    return call
