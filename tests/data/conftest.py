"""Folders of images for the tests of data."""

import pytest
from picture_data import write


@pytest.fixture
def splits(tmp_path):
    """`root/train`, `root/val`, `root/test` of 21, 9 and 6 images."""
    classes = {}
    for split, count, start in (("train", 7, 0), ("val", 3, 50), ("test", 2, 100)):
        classes |= write(tmp_path / "root" / split, count, start)
    return tmp_path / "root", classes
