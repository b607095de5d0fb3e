"""Makes the modules in this folder importable, including in processes that a command starts."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
