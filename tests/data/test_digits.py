"""Tests the contents, splits and statistics of the bundled digits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lit_project.data import digits as module
from lit_project.data.digits import Digits


@pytest.fixture(scope="module")
def digits():
    data = Digits()
    data.setup("fit")
    data.setup("test")
    return data


def test_bundled_file_matches_scikit_learn():
    found, expected = np.load(Path(module.__file__).parent / "files" / "digits.npz"), load_digits()
    assert np.array_equal(found["images"].astype(float), expected.images)
    assert np.array_equal(found["target"].astype(int), expected.target)


def test_splits_have_the_expected_sizes_shapes_and_dtypes(digits):
    assert [digits.size_of(split) for split in ("train", "val", "test")] == [1257, 180, 360]
    assert digits.input_shape == (1, 8, 8)
    assert digits.num_classes == 10
    for images, targets in digits.splits.values():
        assert images.shape == (len(targets), 1, 8, 8)
        assert images.dtype == torch.uint8
        assert targets.dtype == torch.int64
        assert set(targets.tolist()) == set(range(10))


def test_splits_partition_the_original_dataset(digits):
    def rows(images, targets):
        return sorted((int(t), *image.flatten().tolist()) for image, t in zip(images, targets, strict=True))

    original = load_digits()
    grey = torch.from_numpy(original.images).mul(255 / 16).round().long()
    joined = [row for split in digits.splits.values() for row in rows(*split)]
    assert sorted(joined) == rows(grey, original.target)
    assert len({tuple(row) for row in joined}) == 1797  # no duplicates, so the splits are disjoint


def test_mean_and_std_match_the_training_split(digits):
    values = digits.splits["train"][0].double() / 255
    assert digits.mean == [pytest.approx(values.mean().item(), abs=0.01)]
    assert digits.std == [pytest.approx(values.std().item(), abs=0.01)]
