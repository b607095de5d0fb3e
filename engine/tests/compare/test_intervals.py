"""Confidence intervals agree with independent implementations."""

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import f1_score

from lit_engine.tools.pages.intervals import averages, wilson


@pytest.mark.parametrize(("hits", "count"), [(0, 5), (5, 5), (350, 360), (1, 2)])
def test_wilson_interval_matches_scipy(hits, count):
    interval = binomtest(hits, count).proportion_ci(method="wilson")
    assert wilson(hits, count) == pytest.approx((hits / count, interval.low, interval.high), abs=1e-6)


def test_wilson_limits_stay_between_0_and_1():
    limits = [limit for n in range(1, 100) for hits in (0, n) for limit in wilson(hits, n)]
    assert (min(limits), max(limits)) == (0, 1)


def test_bootstrap_over_confusion_matrix_matches_bootstrap_over_predictions():
    random = np.random.default_rng(1)
    true = random.integers(0, 3, 200)
    predicted = np.where(random.random(200) < 0.8, true, random.integers(0, 3, 200))
    confusion = {
        str(t): {str(p): int(n) for p in range(3) if (n := ((true == t) & (predicted == p)).sum())} for t in range(3)
    }
    confusion["never"] = {}  # a class without samples is excluded from the averages
    found = averages(confusion)
    for kind in ("macro", "weighted"):
        draws = [random.integers(0, 200, 200) for _ in range(300)]
        values = [f1_score(true[which], predicted[which], average=kind) for which in draws]
        value, low, high = found[kind][2]
        assert value == pytest.approx(f1_score(true, predicted, average=kind))
        assert (low, high) == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=0.015)
