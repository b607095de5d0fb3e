"""Tests `doubts` for image folders: copies with different labels, and corrections for a dataset of files."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch

from lit_engine.data.sampling import labels_of
from lit_project.data.image_folder import ImageFolder
from tiny import TINY

FOLDER = f"{TINY} --data.image_size=16 --data.num_workers=0 --data.batch_size=16 --trainer.max_epochs=2"
FIT = f"fit -c configs/image_folder.yaml {FOLDER} --trainer.callbacks=[]"


@pytest.fixture
def repeated(lit):
    """Return a function that trains a config on each of two folds, as `repeat` does in separate processes."""

    def train(command):
        runs = {}
        for fold in range(2):
            result = lit(f"{command} --data.folds=2 --data.fold={fold} --runs_dir=mine --run_name=fold-{fold}")
            state, path = "failed" if result.status else "finished", str(result.run.relative_to("mine"))
            runs[result.run.name] = {"data.folds": 2, "data.fold": fold, "path": path, "state": state}
        Path("mine/summary.json").write_text(json.dumps({"runs": runs}))

    return train


def test_copies_with_different_labels_are_found_and_corrected(lit, image_folder, repeated):
    shutil.copy(image_folder / "cat" / "3.png", image_folder / "dog" / "copy.png")  # a cat among the dogs
    repeated(FIT)
    told = lit("doubts mine")
    assert told.status == 0, told.err
    with open("mine/doubts.csv", newline="") as handle:
        rows = list(csv.DictReader(handle))
    pairs = [row for row in rows if row["reason"] == "different labels"]
    assert {Path(row["file"]).name for row in pairs} >= {"3.png", "copy.png"}
    assert "Near-duplicates with different labels: 1\n" in told.out
    (copy,) = (row for row in pairs if row["file"].endswith("copy.png"))
    assert (copy["label"], copy["suggestion"]) == ("dog", "cat")
    Path("c.csv").write_text(f"id,correction\n{copy['id']},cat\n")
    result = lit(f"{FIT} --data.corrections=c.csv --data.val_size=5 --data.test_size=0")
    assert result.status == 0, result.err
    assert "corrections: 1 of 76 training labels changed\n" in result.out
    data = ImageFolder(image_size=16, val_size=5, test_size=0, corrections="c.csv")
    data.setup("fit")
    places = [number for number, row in data.inputs("train").items() if row["file"].endswith("copy.png")]
    assert data.dataset("train")[torch.tensor(places)].targets.tolist() == [0]
    assert int((labels_of(data.splits["train"]) == 0).sum()) == 38 + 1


def test_regression_is_rejected(lit, repeated):
    repeated("fit -c configs/regression_quickstart.yaml --trainer.max_epochs=1 --trainer.callbacks=[]")
    told = lit("doubts mine")
    assert (told.status, told.err) == (
        2, "error: doubts needs one class label per sample, which Diabetes does not provide\n"
    )  # fmt: skip
