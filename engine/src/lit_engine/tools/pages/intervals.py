"""Averages per-class metrics and adds 95 % confidence intervals, treating the evaluated samples as a random sample."""

import math
from collections.abc import Mapping

import numpy as np

from lit_engine.tools.runs.significance import Z

RESAMPLES = 1000
Interval = tuple[float, float, float]  # value, lower and upper limit


def wilson(hits: int, count: int) -> Interval:
    """Return a proportion with its score interval (Wilson 1927), which is also valid near 0 and 1."""
    share = hits / count
    centre = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return share, max(0.0, centre - half), min(1.0, centre + half)


def averages(confusion: Mapping[str, Mapping[str, int]]) -> dict[str, list[Interval]]:
    """Return the macro and weighted averages of precision, recall and F1 over the classes that have samples.

    The intervals are percentiles over 1,000 bootstrap resamples (Efron 1979). The metrics depend only on the confusion
    matrix, so each resample is drawn from a multinomial distribution over the cells of the matrix. The precision of a
    class that is never predicted counts as 0.

    Args:
        confusion: true class → predicted class → number of samples.
    """
    names = {name: k for k, name in enumerate(confusion)}
    cells = [(names[true], names[other], n) for true, row in confusion.items() for other, n in row.items()]
    true, predicted, counts = (np.array(column) for column in zip(*cells, strict=True))
    total = counts.sum()
    draws = np.random.default_rng(0).multinomial(total, counts / total, RESAMPLES)
    values = [_averages(true, predicted, drawn, len(names)) for drawn in [counts, *draws]]
    low, high = np.percentile(values[1:], [2.5, 97.5], axis=0)
    limits = np.stack([values[0], low, high], axis=-1)
    return {kind: [tuple(one) for one in limits[k].tolist()] for k, kind in enumerate(("macro", "weighted"))}


def _averages(true: np.ndarray, predicted: np.ndarray, counts: np.ndarray, classes: int) -> np.ndarray:
    """Return the macro and weighted averages `(2, 3)` of precision, recall and F1."""
    samples, guesses = (np.bincount(which, counts, classes) for which in (true, predicted))
    hits = np.bincount(true, counts * (true == predicted), classes)
    each = [hits / np.maximum(guesses, 1), hits / np.maximum(samples, 1), 2 * hits / np.maximum(samples + guesses, 1)]
    metrics = np.stack(each)[:, samples > 0]
    return np.stack([metrics.mean(axis=1), metrics @ (samples[samples > 0] / samples.sum())])
