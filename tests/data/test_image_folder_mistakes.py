"""What is wrong with a user's folders of images is said in a line that names it."""

import gc
import shutil

import pytest
from PIL import Image

from lit_project.engine.errors import DataError
from picture_data import CLASSES, batches, small, write


def test_classes_that_differ_between_splits_are_an_error(splits):
    root, _ = splits
    (root / "val" / "cat").rename(root / "val" / "dog")
    with pytest.raises(DataError, match="val has other classes than expected; they differ in: cat, dog"):
        small(root)


def test_class_names_that_differ_from_the_folders_are_an_error(splits):
    root, _ = splits
    with pytest.raises(DataError, match="train has other classes than expected; they differ in: cat, dog"):
        small(root, class_names=["ant", "bee", "dog"])
    with pytest.raises(DataError, match="their order"):
        small(root, class_names=["bee", "ant", "cat"])
    assert small(root, class_names=list(CLASSES)).class_names == list(CLASSES)


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_is_an_error_that_names_the_file(splits, workers, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)  # torch then waits 5 s for a worker
    root, _ = splits
    broken = root / "train" / "bee" / "03.png"
    broken.write_bytes(broken.read_bytes()[:50])
    with pytest.raises(DataError) as error:
        batches(small(root, num_workers=workers), "train")
    assert str(error.value).startswith(f"cannot read the image {broken}: ")
    assert "\n" not in str(error.value)
    del error
    gc.collect()  # ends the worker


def test_folder_without_classes_or_with_an_empty_class_is_an_error(tmp_path, splits):
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty"):
        small(tmp_path / "empty")
    root, _ = splits
    (root / "train" / "zebra").mkdir()
    with pytest.raises(DataError, match="zebra"):
        small(root)


@pytest.mark.parametrize("val_size", [0.0, 21, 0.01, float("nan"), float("inf")])
def test_impossible_val_size_is_an_error(splits, val_size):
    root, _ = splits
    shutil.rmtree(root / "val")
    with pytest.raises(DataError, match="leaves no training or no validation sample of 21"):
        small(root, val_size=val_size).setup("fit")


def test_links_that_lead_up_or_to_a_folder_again_add_no_images(tmp_path):
    write(tmp_path, 10)
    (tmp_path / "ant" / "more").mkdir()
    Image.new("L", (6, 5), 99).save(tmp_path / "ant" / "more" / "10.png")
    for link, target in (("ant/up", "."), ("ant/more/self", "ant"), ("ant/z", "ant/more"), ("bee/up", "bee")):
        (tmp_path / link).symlink_to(tmp_path / target)
    outside = tmp_path.with_name("outside")
    (tmp_path / "cat").rename(outside)
    (tmp_path / "cat").symlink_to(outside)  # as are data on another disk
    (outside / "back").symlink_to(tmp_path)
    data = small(tmp_path, test_size=0, val_size=1)
    data.setup("fit")
    assert data.size_of("train") + data.size_of("val") == 31
