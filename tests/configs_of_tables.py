"""Settings of the table configs for `small_data` and test_configs.py."""

import pytest
from sklearn.metrics import r2_score

SCORE, FIGURE, AS_WHILE_FITTING = "r2", "test_predicted.png", True
OPTIONS: dict[str, str] = {}


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace nothing, because the data is small and included in the package."""


def check(rows: list[dict[str, str]], metrics: dict[str, float]) -> None:
    """Check that the predictions match the test score."""
    # The indices are row numbers in the whole table.
    assert [int(row["index"]) for row in rows] == sorted({int(row["index"]) for row in rows})
    predicted, true = ([float(row[name]) for row in rows] for name in ("prediction", "target"))
    assert r2_score(true, predicted) == pytest.approx(metrics["test/r2"], rel=1e-4)
