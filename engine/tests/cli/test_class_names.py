"""Classes given by name only, by a former path, or in a package that was renamed."""

import json
import sys

import pytest
import torch

from helpers import (
    TINY,
    SaveAt,  # noqa: F401  (an installed module outside this package)
)
from lit_engine.checkpoints.io import read
from lit_engine.classes import names
from lit_engine.classes.names import _note, resolve_class_paths

PACKAGE = "toy"


@pytest.fixture(autouse=True)
def _forgetful():
    """Reset the notes before each test, because each note is printed only once per process."""
    _note.cache_clear()


def test_class_paths_of_a_missing_package_resolve_to_this_package(capsys):
    config = {
        "class_path": "before_now.tasks.ImageClassifier",
        "init_args": {"net": {"class_path": "before_now.models.MLP"}, "loss": "before_now.data.Noise"},
    }
    assert resolve_class_paths(config) == {
        "class_path": f"{PACKAGE}.tasks.ImageClassifier",
        "init_args": {"net": {"class_path": f"{PACKAGE}.models.MLP"}, "loss": f"{PACKAGE}.data.Noise"},
    }
    assert capsys.readouterr().err == f"note: before_now cannot be imported, so the classes of {PACKAGE} are used\n"


def test_a_class_is_found_by_name_or_former_path(capsys):
    checkpoint = "lit_engine.checkpoints.callback.Checkpoint"
    for path in ("Checkpoint", f"{PACKAGE}.engine.checkpoints.Checkpoint", "lit_engine.Checkpoint", checkpoint):
        assert resolve_class_paths({"class_path": path}) == {"class_path": checkpoint}
    assert resolve_class_paths({"class_name": "Checkpoint"}) == {"class_name": "Checkpoint"}
    assert capsys.readouterr().err == ""


def test_a_class_of_the_project_precedes_a_class_of_the_library(monkeypatch):
    paths = {"EMA": [f"{PACKAGE}.mine.EMA", "lit_engine.callbacks.averaging.EMA"]}
    monkeypatch.setattr(names, "index_classes", lambda: paths)
    assert resolve_class_paths({"class_path": "EMA"}) == {"class_path": f"{PACKAGE}.mine.EMA"}
    assert resolve_class_paths({"class_path": paths["EMA"][1]}) == {"class_path": paths["EMA"][1]}


def test_copies_by_editors_are_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "find_package_folder", lambda _: tmp_path)
    for file in ("models/cnn.py", "models/.ipynb_checkpoints/cnn-checkpoint.py", "models/cnn copy.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("class CNN:\n")
    (tmp_path / "models" / ".#cnn.py").symlink_to("me@host.1:1")  # an Emacs lock
    assert names.index_package("kites") == {"CNN": ["kites.models.cnn.CNN"]}


def test_schedulers_may_be_given_by_name():
    """The project and torch each define a OneCycleLR, so its name has two meanings."""
    path = "lit_engine.training.schedules.OneCycleLR"
    config = {"scheduler": "OneCycleLR", "init_args": {"schedulers": ["OneCycleLR", "StepLR"]}}
    assert resolve_class_paths(config) == {"scheduler": path, "init_args": {"schedulers": [path, "StepLR"]}}
    plateau = {"class_path": "ReduceLROnPlateau"}  # Lightning has a class of the same name
    assert resolve_class_paths(plateau) == {"class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau"}


def test_other_values_are_unchanged(capsys):
    config = {
        "of torch": "torch.optim.SGD",
        "of another module": "helpers.SaveAt",
        "unknown": "before_now.tasks.NoSuchTask",
        "a package": "before_now",
        "a file": "data/before_now.tasks",
        "a table": "houses.Digits",
        "a table with a date": "houses.2026.Digits",
        "a text": "e.g.",
        "numbers": [7, None, ("a", 2)],
        "words of a vocabulary": ["before_now.tasks.ImageClassifier"],
    }
    assert resolve_class_paths(config) == config
    assert capsys.readouterr().err == ""


def test_a_run_can_be_tested_resumed_and_repeated_after_a_package_rename(lit, trained):
    """The package was renamed after the run."""
    for file in (trained / "checkpoints").glob("*.ckpt"):
        content = torch.load(file, weights_only=True)
        text = json.dumps(content["hyper_parameters"])
        assert PACKAGE in text
        content["hyper_parameters"] = json.loads(text.replace(PACKAGE, "before_now"))
        torch.save(content, file)
        assert "before_now" not in repr(read(file)["hyper_parameters"])
    config = trained / "config.yaml"
    config.write_text(config.read_text().replace(PACKAGE, "before_now"))
    for command in (f"test --run {trained}", f"fit --run {trained}"):
        result = lit(command)
        assert result.status == 0, result.err
        assert result.err.count("note: before_now cannot be imported") <= 1
    again = lit(f"fit -c {config} {TINY} --trainer.max_epochs=1 --test_after_fit=false --run_name=again")
    assert again.status == 0, again.err
    assert again.run.parent == trained.parent
    assert "before_now" not in sys.modules
