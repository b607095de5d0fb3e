"""What `small_data` and test_configs.py know of the configs of tables."""

import pytest
from sklearn.metrics import r2_score

SCORE, FIGURE, AS_WHILE_FITTING = "r2", "test_predicted.png", True
OPTIONS: dict[str, str] = {}


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come with scikit-learn, and are small."""


def check(rows: list[dict[str, str]], metrics: dict[str, float]) -> None:
    """Predictions are as good as the test says."""
    assert [int(row["index"]) for row in rows] == sorted({int(row["index"]) for row in rows})  # rows of the whole table
    predicted, true = ([float(row[name]) for row in rows] for name in ("prediction", "target"))
    assert r2_score(true, predicted) == pytest.approx(metrics["test/r2"], rel=1e-4)
