"""Finds likely label errors by confident learning, and near-duplicates by comparing features."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]

# Near-duplicates are closer than this fraction of the median nearest-neighbour distance. cleanlab uses the same value.
NEAR = 0.13
BLOCK = 1024  # number of rows of the distance matrix to compute at a time


def find_label_errors(probabilities: Floats, labels: Integers) -> tuple[Integers, int]:
    """Rank samples by the probability of their label, and estimate the number of errors using confident learning.

    Class k is a candidate for a sample if the sample's probability of k is at least the mean probability of k over all
    samples labelled k. A sample with a candidate counts as an error if its label is neither the most probable class
    nor the most probable candidate (Northcutt et al., 2021). cleanlab calls this method `low_self_confidence`.

    Args:
        probabilities: probabilities `(N, K)`, each predicted by a model that was not trained on the sample.
        labels: classes `(N,)`.

    Returns:
        The indices `(N,)` of all samples, starting with the most doubtful, and the estimated number of errors.
    """
    own = probabilities[np.arange(len(labels)), labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    thresholds = np.bincount(labels, own, minlength=len(counts)) / np.maximum(counts, 1)
    confident = (probabilities >= thresholds - 1e-6) & (counts > 0)
    guess = np.where(confident, probabilities, -1).argmax(axis=1)
    wrong = confident.any(axis=1) & (guess != labels) & (probabilities.argmax(axis=1) != labels)
    return own.argsort(kind="stable"), int(wrong.sum())


def find_near_duplicates(features: Floats, labels: Integers, folds: Integers) -> list[tuple[int, int, float]]:
    """Return pairs of near-duplicates that differ in label or fold, and their distances. The closest pairs come first.

    The distance is 1 − cosine similarity. Each sample is only paired with its closest match.

    Args:
        features: features `(N, D)` from a single network.
        labels: classes `(N,)`.
        folds: fold numbers `(N,)`.
    """
    unit = (features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    nearest, distances, partners = np.empty(len(unit)), np.empty(len(unit)), np.empty(len(unit), int)
    for start in range(0, len(unit), BLOCK):
        block = slice(start, start + BLOCK)
        distance = 1 - unit[block] @ unit.T
        rows = np.arange(len(distance))
        distance[rows, rows + start] = np.inf
        nearest[block] = distance.min(axis=1)
        distance[(labels[block, None] == labels) & (folds[block, None] == folds)] = np.inf
        partners[block] = distance.argmin(axis=1)
        distances[block] = distance[rows, partners[block]]
    limit = NEAR * max(float(np.median(nearest)), 1e-6)
    close = np.flatnonzero(distances < limit)
    pairs = {tuple(sorted((int(i), int(partners[i])))): max(0.0, float(distances[i])) for i in close}
    return sorted(((i, j, d) for (i, j), d in pairs.items()), key=lambda pair: (pair[2], pair))
