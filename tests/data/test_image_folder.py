"""Tests image folders: layouts, classes, hidden files, and the same batch type as for in-memory data."""

import shutil

import pytest
import torch
from PIL import Image

from lit_engine.data.images import ImageBatch
from lit_engine.errors import DataError
from picture_data import batches, small
from tiny import CLASSES, write


def brightness(images):
    """Return the brightness of each image, which identifies it. Images are uint8 or floats in [0, 1]."""
    scale = 1 if images.dtype == torch.uint8 else 255
    return (images.float() * scale).flatten(1).mean(1).round().long().tolist()


def test_images_are_read_from_split_folders_with_their_classes(splits):
    root, classes = splits
    data = small(root)
    assert data.class_names == list(CLASSES)
    assert data.input_shape == (1, 4, 4)
    for split, values in (("train", range(21)), ("val", range(50, 59)), ("test", range(100, 106))):
        found = {}
        for batch in batches(data, split):
            assert isinstance(batch, ImageBatch)
            assert batch.images.dtype == torch.uint8
            assert batch.images.shape[1:] == (1, 4, 4)
            found |= dict(zip(brightness(batch.images), batch.targets.tolist(), strict=True))
        assert found == {value: classes[value] for value in values}
        assert data.size_of(split) == len(values)


def values(data, split):
    return [value for batch in batches(data, split) for value in brightness(batch.images)]


def test_validation_uses_a_fixed_part_of_train_if_there_is_no_val_folder(splits):
    root, _ = splits
    shutil.rmtree(root / "val")
    data = small(root, val_size=6, seed=1)
    assert len(values(data, "val")) == 6
    assert values(data, "val") == values(small(root, val_size=6, seed=2), "val")
    assert sorted(values(data, "train") + values(data, "val")) == list(range(21))


def test_single_folder_is_split_into_train_val_and_test(tmp_path):
    classes = write(tmp_path / "root", 20)
    data = small(tmp_path / "root", test_size=0.25, val_size=0.2)
    found = {split: values(data, split) for split in ("train", "val", "test")}
    assert sorted(value for own in found.values() for value in own) == list(range(60))
    for split, of_each in (("train", 12), ("val", 3), ("test", 5)):
        assert [[classes[value] for value in found[split]].count(label) for label in range(3)] == [of_each] * 3
    assert values(small(tmp_path / "root", test_size=0.25, seed=9), "test") == found["test"]


def test_testing_known_classes_needs_no_training_split(splits):
    root, classes = splits
    for split in ("train", "val"):
        shutil.rmtree(root / split)
    data = small(root, class_names=list(CLASSES), batch_size=6)
    data.setup("test")
    (batch,) = data.loader("test")
    assert brightness(batch.images) == list(range(100, 106))
    assert batch.targets.tolist() == [classes[value] for value in range(100, 106)]
    with pytest.raises(DataError, match="no train split: only test"):
        data.setup("fit")


def test_hidden_files_and_folders_are_ignored_and_gifs_are_read(tmp_path):
    write(tmp_path, 3)
    for name in (".ipynb_checkpoints", "ant/.ipynb_checkpoints"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "ant" / "00.png", tmp_path / name / "00-checkpoint.png")
    (tmp_path / "bee" / "._00.png").write_bytes(b"of a Mac")
    Image.new("L", (6, 5), 200).save(tmp_path / "cat" / "moving.gif")
    data = small(tmp_path, test_size=0.3)
    data.setup("fit")
    assert data.class_names == list(CLASSES)
    assert sum(data.size_of(split) for split in ("train", "val", "test")) == 10
