"""Tests which folders are treated as splits or classes, and that invalid folders cause one-line errors."""

import gc
import shutil

import pytest
from PIL import Image

from lit_engine.errors import DataError
from picture_data import batches, small
from tiny import CLASSES, write


@pytest.mark.parametrize(
    ("renamed", "message"),
    [
        ({"train": None}, r"has split folders \(test, val\), but no `train`"),
        ({"train": "Fit", "val": "Check", "test": None}, r"the folders in .* \(Check, Fit\) contain no images"),
        ({"val": "training"}, "several folders for the train split: train, training"),
    ],
    ids=["no train", "unknown names", "train twice"],
)
def test_split_folders_are_never_mistaken_for_classes(splits, renamed, message):
    root, _ = splits
    for old, new in renamed.items():
        (root / old).rename(root / new) if new else shutil.rmtree(root / old)
    with pytest.raises(DataError, match=message):
        small(root)


def test_classes_may_be_named_train_and_may_contain_subfolders(tmp_path, capsys):
    write(tmp_path / "vehicles", 3)
    (tmp_path / "vehicles" / "cat").rename(tmp_path / "vehicles" / "train")
    assert small(tmp_path / "vehicles").class_names == ["ant", "bee", "train"]
    assert f"note: {tmp_path}/vehicles/train is used as a class" in capsys.readouterr().out
    for name in ("hot", "cold"):
        write(tmp_path / "years" / name, 3)
    assert small(tmp_path / "years", class_names=["cold", "hot"]).class_names == ["cold", "hot"]


def test_unsorted_class_names_and_unknown_classes_in_a_split_are_rejected(splits):
    root, _ = splits
    with pytest.raises(DataError, match="must be sorted"):
        small(root, class_names=["bee", "ant", "cat"])
    assert small(root, class_names=list(CLASSES)).class_names == list(CLASSES)
    (root / "val" / "cat").rename(root / "val" / "dog")
    with pytest.raises(DataError, match="val are not as expected: no cat; also dog"):
        small(root)


def test_classes_may_be_missing_from_the_val_and_test_splits(splits):
    root, _ = splits
    shutil.rmtree(root / "val" / "bee")
    for file in (root / "test" / "ant").iterdir():
        file.unlink()
    data = small(root)
    data.setup("fit")
    for split, classes in (("val", {0, 2}), ("test", {1, 2})):
        folders = [image["file"].split("/")[-2] for image in data.inputs(split).values()]
        targets = data.splits[split].targets
        assert [data.class_names[target] for target in targets] == folders
        assert set(targets) == classes
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    with pytest.raises(DataError, match="the val split is empty"):
        small(root).setup("fit")


def test_class_folder_without_images_and_images_without_class_folder_are_reported(splits):
    root, _ = splits
    shutil.rmtree(root / "test")
    shutil.copytree(root / "train" / "ant", root / "test")
    with pytest.raises(DataError, match=r"/test has loose images: .* use `predict --images`"):
        small(root)
    for file in (root / "train" / "bee").iterdir():
        file.unlink()
    with pytest.raises(DataError, match="train/bee has no images: add images or delete this class folder"):
        small(root)


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_is_reported_with_its_path(splits, workers, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # torch's default is 5 s
    root, _ = splits
    broken = root / "train" / "bee" / "03.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DataError) as error:
        batches(small(root, num_workers=workers), "train")
    assert str(error.value).startswith(f"cannot read the image {broken}: ")
    assert "\n" not in str(error.value)
    del error
    gc.collect()  # stops the worker


def test_folder_without_classes_or_with_an_empty_class_is_an_error(tmp_path, splits):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty needs at least two class folders; it has: none"):
        small(tmp_path / "empty")
    root, _ = splits
    (root / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match="zebra"):
        small(root)


@pytest.mark.parametrize("val_size", [0.0, 21, float("nan")])
def test_impossible_val_size_is_an_error(splits, val_size):
    root, _ = splits
    shutil.rmtree(root / "val")
    with pytest.raises(DataError, match="one split of the 21 samples would be empty"):
        small(root, val_size=val_size).setup("fit")
    with pytest.raises(DataError, match="val_size must be a fraction between 0 and 1 or a number of samples"):
        small(root, val_size=2.5).setup("fit")


def test_symlinks_to_parents_or_visited_folders_add_no_images(tmp_path):
    write(tmp_path, 10)
    (tmp_path / "ant" / "more").mkdir()
    Image.new("L", (6, 5), 99).save(tmp_path / "ant" / "more" / "10.png")
    for link, target in (("ant/up", "."), ("ant/more/self", "ant"), ("ant/z", "ant/more"), ("bee/up", "bee")):
        (tmp_path / link).symlink_to(tmp_path / target)
    outside = tmp_path.with_name("outside")
    (tmp_path / "cat").rename(outside)
    (tmp_path / "cat").symlink_to(outside)  # like data on a different disk
    (outside / "back").symlink_to(tmp_path)
    data = small(tmp_path, test_size=0, val_size=1)
    data.setup("fit")
    assert data.size_of("train") + data.size_of("val") == 31
    assert len(data.predict_from(tmp_path)) == 31
