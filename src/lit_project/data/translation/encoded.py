"""Sentences as one flat tensor of token ids, and batches of pairs by indexing it."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from lit_project.data.order import IndexLoader
from lit_project.data.translation.batch import PairBatch, PairText
from lit_project.data.translation.batches import TokenBatches
from lit_project.text.vocabulary import PAD


class EncodedText:
    """N sentences of token ids.

    Args:
        sentences: the ids of each.

    Attributes:
        flat: int32 `(number of tokens,)`, all sentences one after another.
        offsets: int64 `(N + 1,)`, where each begins.
        lengths: int64 `(N,)`, tokens of each.
    """

    def __init__(self, sentences: Sequence[Sequence[int]]) -> None:
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        flat = np.fromiter(chain.from_iterable(sentences), np.int32, int(lengths.sum()))
        self.flat = torch.from_numpy(flat)
        self.lengths = torch.from_numpy(lengths)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])

    def __len__(self) -> int:
        """Number of sentences."""
        return len(self.lengths)

    def padded(self, indices: Tensor) -> Tensor:
        """The sentences `indices` `(B,)` as int64 `(B, L)`, padded with PAD to the longest of them."""
        lengths = self.lengths[indices]
        position_L = torch.arange(int(lengths.max()))
        inside_BL = position_L < lengths[:, None]
        at_BL = (self.offsets[indices][:, None] + position_L).clamp_(max=max(len(self.flat) - 1, 0))
        return torch.where(inside_BL, self.flat[at_BL].long(), PAD)


class PairLoader(IndexLoader):
    """Iterates over batches of encoded pairs by indexing; as resumable as its `sampler`.

    Args:
        source: ids, each sentence ends with EOS.
        target: ids, each sentence is BOS … EOS.
        order: the batches of indices.
        texts: the pairs as text, which then accompany the batches.
    """

    def __init__(
        self, source: EncodedText, target: EncodedText, order: TokenBatches, texts: list[PairText] | None = None
    ) -> None:
        super().__init__(order)
        self.source = source
        self.target = target
        self.texts = texts

    def __iter__(self) -> Iterator[PairBatch]:
        """Yields the batches of the epoch from the current position on."""
        for indices in self.sampler:
            texts = None if self.texts is None else [self.texts[i] for i in indices.tolist()]
            yield PairBatch(
                self.source.padded(indices), self.source.lengths[indices], self.target.padded(indices), indices, texts
            )
