"""Fixtures: sweeps whose trials are `fake_fit.py`."""

import sys
from pathlib import Path

import pytest

from lit_project.sweep import process
from lit_project.sweep.runner import Runner
from lit_project.sweep.study import Study


@pytest.fixture
def running(tmp_path, monkeypatch):
    """Makes the runner of a sweep in the test's folder, its study, and the list of what it says."""
    monkeypatch.setattr(process, "PROGRAM", [sys.executable, str(Path(__file__).with_name("fake_fit.py"))])

    def make(config, workers=1, most=100):
        said = []
        study = Study(tmp_path, config)
        runner = Runner(study, tmp_path, tmp_path / "x", [f"--runs_dir={tmp_path}"], workers, most, say=said.append)
        return runner, study, said

    return make
