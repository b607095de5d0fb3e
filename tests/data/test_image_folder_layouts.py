"""Which folders of a user's are splits, which are classes."""

import shutil

import pytest

from lit_project.engine.errors import DataError
from picture_data import small, write


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"train": None}, r"has split folders \(test, val\), but no `train`"),
        (
            {"train": "Fit", "val": "Check", "test": None},
            r"\(Check, Fit\) hold folders \(ant, bee, cat\) and no images",
        ),
        ({"val": "training"}, "several folders for the train split: train, training"),
    ],
    ids=["no train", "unknown names", "twice"],
)
def test_splits_are_never_taken_for_classes(tmp_path, renamed, message):
    root = tmp_path / "root"
    for split in ("train", "val", "test"):
        write(root / split, 2)
    for old, new in renamed.items():
        (root / old).rename(root / new) if new else shutil.rmtree(root / old)
    with pytest.raises(DataError, match=message):
        small(root)


def test_a_class_may_be_called_train_and_classes_may_hold_folders(tmp_path):
    write(tmp_path / "vehicles", 3)
    (tmp_path / "vehicles" / "cat").rename(tmp_path / "vehicles" / "train")
    assert small(tmp_path / "vehicles").class_names == ["ant", "bee", "train"]
    for name in ("hot", "cold"):
        write(tmp_path / "years" / name, 3)
    assert small(tmp_path / "years", class_names=["cold", "hot"]).class_names == ["cold", "hot"]
