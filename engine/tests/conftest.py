"""Fixtures of the toy project. The `lit` fixture, which runs a command in-process, is in `lit_engine.tools.testing`."""

import os
import shutil
from pathlib import Path

import pytest

from helpers import TINY, TOY
from lit_engine.project import use
from lit_engine.tools.testing import blank_figures
from toy.__main__ import PROJECT, main


@pytest.fixture(autouse=True)
def _toy(_no_project, monkeypatch):
    """Use the toy project, even if another one is installed. Subprocesses can import it."""
    monkeypatch.setenv("PYTHONPATH", str(TOY.parent), prepend=os.pathsep)
    use(PROJECT)


@pytest.fixture
def command_line():
    return main


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty working folder with the toy project's configs."""
    shutil.copytree(TOY / "configs", tmp_path / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """The `runs/` folder with one run, which `trained` copies."""
    runs = tmp_path_factory.mktemp("trained") / "runs"
    command = f"fit -c {TOY}/configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false"
    with pytest.MonkeyPatch.context() as patch:
        blank_figures(patch)
        assert main([*command.split(), "--run_name=tiny", f"--runs_dir={runs}"]) == 0
    return runs


@pytest.fixture
def trained(trained_once, workspace):
    """A run of three epochs, copied for each test so that tests may change it."""
    shutil.copytree(trained_once, "runs")
    return Path("runs/quickstart/tiny")
