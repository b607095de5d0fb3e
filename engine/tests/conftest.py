"""Fixtures of the toy project. `lit`, which runs a command in this process, is one of `lit_engine.tools.testing`."""

import shutil
from pathlib import Path

import pytest

from helpers import TINY
from lit_engine.tools.testing import blank_figures

TOY = Path(__file__).parent / "toy"


@pytest.fixture
def command_line():
    from toy.__main__ import main

    return main


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """An empty working folder with the configs of the toy project, which processes started here can import."""
    shutil.copytree(TOY / "configs", tmp_path / "configs")
    monkeypatch.setenv("PYTHONPATH", str(TOY.parent))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory):
    """`runs/` with one run, for `trained`."""
    from toy.__main__ import main

    runs = tmp_path_factory.mktemp("trained") / "runs"
    command = f"fit -c {TOY}/configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false"
    with pytest.MonkeyPatch.context() as patch:
        blank_figures(patch)
        assert main([*command.split(), "--run_name=tiny", f"--runs_dir={runs}"]) == 0
    return runs


@pytest.fixture
def trained(trained_once, workspace):
    """A run of three epochs: a copy for each test, which may change it."""
    shutil.copytree(trained_once, "runs")
    return Path("runs/quickstart/tiny")
