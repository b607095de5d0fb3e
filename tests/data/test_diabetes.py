"""Tests the bundled diabetes table."""

import torch
from sklearn.datasets import load_diabetes

from lit_project.data.tables import Diabetes


def test_diabetes_matches_the_unscaled_original():
    data, original = Diabetes(), load_diabetes(scaled=False)
    assert data.feature_names == original.feature_names
    assert [data.size_of(split) for split in ("train", "val", "test")] == [301, 53, 88]
    rows = sorted((*f, *t) for split in data.splits.values() for f, t in zip(*(p.tolist() for p in split), strict=True))
    expected = torch.cat([torch.from_numpy(original.data), torch.from_numpy(original.target)[:, None]], 1)
    assert rows == sorted(map(tuple, expected.tolist()))
    assert data.feature_names[0] == "age"
    assert 18 < data.feature_mean[0] < 80  # in years
