"""Batches of rows of a table."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from lit_project.data.order import EpochBatches, IndexLoader


class TableBatch(NamedTuple):
    """Rows of a table, and which samples of the split they are.

    `features` is float32 `(B, F)` and `targets` float32 `(B, T)`, both in their own units; `indices` is
    int64 `(B,)`. Targets that are not known, where rows are only to be predicted, are NaN.
    """

    features: Tensor
    targets: Tensor
    indices: Tensor


class TableLoader(IndexLoader):
    """Iterates over batches of rows by indexing; as resumable as its `sampler`.

    Args:
        features: float32 `(N, F)`.
        targets: float32 `(N, T)`.
        order: the batches of indices.
    """

    def __init__(self, features: Tensor, targets: Tensor, order: EpochBatches) -> None:
        super().__init__(order)
        self.features = features
        self.targets = targets

    def __iter__(self) -> Iterator[TableBatch]:
        """Yields the batches of the epoch from the current position on."""
        for indices in self.sampler:
            yield TableBatch(self.features[indices], self.targets[indices], indices)
