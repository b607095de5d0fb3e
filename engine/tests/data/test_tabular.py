"""Tests the splits, training statistics and argument checks of tabular data."""

import pytest
import torch

from lit_engine.data.module import random_split
from lit_engine.data.tables import CSVFile, TabularData
from lit_engine.errors import DataError

SPLITS = ("train", "val", "test")


def table(rows=40, **kwargs):
    """Return features `(rows, 3)` and two targets. The first feature is the row number, the last is constant."""
    generator = torch.Generator().manual_seed(0)
    features = torch.stack(
        [torch.arange(rows).float(), torch.randn(rows, generator=generator), torch.full((rows,), 0.1)], 1
    )
    targets = 5 + 3 * torch.randn(rows, 2, generator=generator)
    return TabularData(features, targets, ["row", "noise", "constant"], ["u", "v"], **kwargs)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [((0.2, 0.15), (27, 5, 8)), ((4, 6), (30, 6, 4)), ((1, 1), (38, 1, 1))],
)
def test_splits_partition_the_rows_with_the_requested_sizes(sizes, expected):
    data = table(test_size=sizes[0], val_size=sizes[1])
    assert tuple(data.size_of(split) for split in SPLITS) == expected
    rows = torch.cat([data.splits[split][0][:, 0] for split in SPLITS])
    assert sorted(rows.tolist()) == list(range(40))


def test_splits_ignore_the_seed_and_the_test_split_ignores_val_size(seed_run):
    seed_run(1)
    one = table(seed=1)
    seed_run(2)
    two = table(seed=2, val_size=10)
    assert torch.equal(one.splits["test"][0], two.splits["test"][0])
    assert torch.equal(one.splits["val"][0], table().splits["val"][0])
    assert one.splits["test"][0][:, 0].tolist() == random_split(40, 8)[1].tolist()


def test_statistics_are_computed_from_training_rows_only():
    data = table()
    features, targets = (part.double() for part in data.splits["train"])
    assert data.feature_mean == pytest.approx(features.mean(0).tolist(), rel=1e-12)
    assert data.feature_std[:2] == pytest.approx(features.std(0, correction=0).tolist()[:2], rel=1e-12)
    assert data.target_mean == pytest.approx(targets.mean(0).tolist(), rel=1e-12)
    assert data.target_std == pytest.approx(targets.std(0, correction=0).tolist(), rel=1e-12)
    assert data.feature_std[2] == 1  # constant
    tiny = TabularData(1e-170 * torch.arange(40.0, dtype=torch.double)[:, None], torch.rand(40, 1), ["a"], ["y"])
    assert tiny.feature_std == [1]
    assert (data.input_size, data.output_size) == (3, 2)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"rows": 0}, "0 rows are too few"),
        ({"test_size": 39}, "40 rows are too few: test_size 39 .* result in 39 test, 0 validation"),
        ({"test_size": 38, "val_size": 1}, "and 1 training rows"),
        ({"val_size": 0}, "val_size must be a fraction between 0 and 1 or a number of samples, got 0"),
        ({"test_size": float("nan")}, "test_size must be a fraction"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"feature_mean": [1.0]}, "1 means and 3 standard deviations for columns row, noise, constant"),
    ],
)
def test_rejects_invalid_arguments(kwargs, message):
    with pytest.raises(DataError, match=message):
        table(**kwargs)


def test_another_delimiter_is_suggested_if_a_line_has_the_wrong_length(tmp_path):
    (tmp_path / "a.csv").write_text("area;price\n1,5;2\n")
    with pytest.raises(DataError, match=r"line 2: 2 values for the 1 columns of line 1; .* is the delimiter ';'\?"):
        CSVFile(tmp_path / "a.csv").cells()
