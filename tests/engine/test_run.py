"""A run is a directory: made once, found again, with its books in order."""

import json
import re
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch

from lit_project.engine.errors import RunError
from lit_project.engine.run import RunDir, git_state, provenance, write_text


def save(run, name, step=1):
    run.checkpoints.mkdir(exist_ok=True)
    torch.save({"global_step": step, "state_dict": {"weight": torch.rand(500)}}, run.checkpoints / name)
    return run.checkpoints / name


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path / "runs", "example", "first")
    write_text(run.config_file, "seed_everything: 1\n")
    return run


@pytest.mark.parametrize("name", ["", "..", "../a", "/tmp/a", "a\\b"])
def test_name_must_be_a_plain_folder_name(tmp_path, name):
    with pytest.raises(RunError, match="run_name must be a plain folder name"):
        RunDir.create(tmp_path / "runs", "example", name)
    assert list(tmp_path.iterdir()) == []


def test_open_on_what_is_no_run_is_an_error(tmp_path, run):
    with pytest.raises(RunError, match="no such run directory"):
        RunDir.open(run.config_file)
    with pytest.raises(RunError) as error:
        RunDir.open(tmp_path / "runs" / "example")
    assert "is not a run directory: it has no config.yaml; runs inside it: " in str(error.value)
    assert str(run.path) in str(error.value)


def test_best_of_several_is_the_recorded_one_or_else_the_newest(run):
    for epoch in (3, 4, 5):
        save(run, f"best-epoch00{epoch}.ckpt", 10 * epoch)
    assert run.checkpoint().name == "best-epoch005.ckpt"
    run.record("fit", {"best_checkpoint": "best-epoch004.ckpt"})
    assert run.checkpoint().name == "best-epoch004.ckpt"


@pytest.mark.parametrize("names", [("best-epoch003.ckpt", "best-epoch004.ckpt"), ("epoch=3.ckpt", "epoch=4.ckpt")])
def test_best_is_what_the_newest_checkpoint_says_whatever_was_recorded_before(run, names):
    """A run that was extended and then killed; a callback of Lightning's, and a run that has moved."""
    for step, name in enumerate(names):
        save(run, name, step)
    run.record("fit", {"best_checkpoint": names[1]})
    state = {"best_model_path": f"/old/place/{names[0]}", "best_model_score": torch.tensor(0.5)}
    content = {"global_step": 9, "state_dict": {}, "callbacks": {"ModelCheckpoint": state, "Other": {"skipped": 1}}}
    torch.save(content, run.checkpoints / "last.ckpt")
    assert run.checkpoint().name == names[0]


def test_provenance_is_appended(run):
    for seed in (1, 2):
        run.describe("", {"seed": seed, **provenance()})
    entries = json.loads((run.path / "provenance.json").read_text())
    assert [entry["seed"] for entry in entries] == [1, 2]
    for entry in entries:
        assert entry["command"] == sys.argv
        assert entry["versions"]["torch"] == version("torch")
        assert entry["versions"]["lit-project"] == version("lit-project")
        assert entry["devices"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", entry["time"])


def test_git_state_knows_commit_and_changes(tmp_path):
    assert git_state(tmp_path) is None
    environment = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.hooksPath=/dev/null"]

    def git(*args):
        done = subprocess.run(["git", "-C", tmp_path, *environment, *args], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "file").write_text("two")
    assert git_state(tmp_path) == {"commit": commit, "dirty": True}


def test_the_checkpoint_before_a_nan_is_not_resumed_from(run):
    """Its position in the epoch is behind the batches that failed, which no step has seen."""
    save(run, "last.ckpt", 7)
    save(run, "before-nan.ckpt", 9)
    assert run.newest()[0].name == "last.ckpt"
