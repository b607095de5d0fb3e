"""Batches of sentence pairs: sorted by length, filled by tokens, padded."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_engine.data.sampler import EpochBatches, derive
from lit_engine.errors import DataError
from lit_project.text.vocabulary import PAD


class PairText(NamedTuple):
    """The text of a pair, prepared and restored: what a reader sees and what is scored."""

    source: str
    target: str
    references: list[str]  # every translation of this source in the split, `target` among them
    memory: str  # the most frequent translation of an identical training source (the earliest among equals), or ""


class PairBatch(NamedTuple):
    """Encoded pairs.

    Attributes:
        source: int64 `(B, S)`, ends with EOS, padded with PAD on the right.
        source_lengths: int64 `(B,)`, EOS counted.
        target: int64 `(B, T)`, BOS … EOS, padded with PAD on the right.
        indices: int64 `(B,)`, which pairs of the split they are.
        texts: the pairs as text; None in training.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    indices: Tensor
    texts: list[PairText] | None


class TokenBatches(EpochBatches):
    """Yields this process's batches of pair indices for one epoch: length buckets under a token budget.

    The pairs are sorted by (target length, source length) and cut into batches; when shuffling, pairs of equal lengths
    trade places and the batches change their order with (seed, epoch). The sequence of lengths is the same in each
    epoch, hence so are the number and the shapes of the batches. Over all processes each pair occurs exactly once per
    epoch, and every process makes the same number of batches: the largest are split in two until that holds. The
    batches of one step have similar lengths on all processes, so that none waits long for another.

    Args:
        lengths_source: `(N,)`, tokens of each source (EOS counted).
        lengths_target: `(N,)`, tokens of each target (BOS and EOS counted).
        batch_tokens: at most this many positions per batch and process, with padding, in the source and in the target;
            a longer pair is a batch of its own.
        batch_size: pairs per batch and process.
        global_batch_size: pairs per optimizer step; see `EpochBatches`. Exactly one of the three is given.
        shuffle: see above; otherwise from short to long, ties in the order of the data.
        share: `seed`, `num_replicas`, `rank` and `accumulate` of `EpochBatches`.

    Raises:
        DataError: not exactly one size, a size below 1, fewer pairs than processes, or a global size that processes
            and micro-batches do not divide.
    """

    def __init__(
        self,
        lengths_source: Tensor,
        lengths_target: Tensor,
        *,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        shuffle: bool,
        **share: Any,
    ) -> None:
        names, sizes = "batch_tokens, batch_size, global_batch_size", (batch_tokens, batch_size, global_batch_size)
        given = [value for value in sizes if value is not None]
        if len(given) != 1:
            raise DataError(f"give one of {names}, got {', '.join(map(str, sizes))}")
        if given[0] < 1:
            raise DataError(f"{names}: must be at least 1, got {given[0]}")
        size = len(lengths_source)
        whole = None if global_batch_size else max(size, 2)  # of which fewer pairs than processes are refused
        super().__init__(size, whole, global_batch_size=global_batch_size, shuffle=shuffle, **share)
        self.lengths_source = lengths_source.numpy()
        self.lengths_target = lengths_target.numpy()
        if global_batch_size:
            return
        self.together = self.step = given[0] * self.num_replicas  # positions, or pairs
        if batch_tokens or self.parts > 1:  # otherwise it is as good as a global batch size
            self.step = f"{given[0]} × {self.num_replicas} × {self.parts // self.num_replicas}"
        longest = np.maximum(self.lengths_source, self.lengths_target)[self._sorted(0)]
        bounds = [*range(0, size, batch_size), size] if batch_size else _cut(longest.tolist(), given[0])
        self.bounds = _divisible(bounds, self.num_replicas)  # where batches begin in the sorted sequence, and its end

    def batches(self) -> list[Tensor]:
        order = torch.from_numpy(self._sorted(self.epoch))
        block = self.parts if self.global_batch_size else self.num_replicas  # parts of a step, which stay together
        count = (len(self.bounds) - 1) // block
        steps = torch.arange(count)
        own = torch.arange(self.rank, block, self.num_replicas).expand(count, -1)
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "batches", self.epoch))
            steps = torch.randperm(count, generator=generator)
            if not self.global_batch_size:  # who takes which batch, so that no process always has the shortest
                own = torch.rand(count, block, generator=generator).argsort(dim=1)[:, self.rank, None]
        return self.parts_of(order, (steps[:, None] * block + own).flatten().tolist())

    def padding_waste(self) -> tuple[float, float]:
        """Share of padding among the positions of an epoch, of the source and of the target, over all processes."""
        bounds = np.unique(self.bounds)  # some parts may be empty
        order, starts, counts = self._sorted(0), bounds[:-1], np.diff(bounds)
        waste = []
        for lengths in (self.lengths_source, self.lengths_target):
            positions = (np.maximum.reduceat(lengths[order], starts) * counts).sum()
            waste.append(float(1 - lengths.sum() / positions))
        return waste[0], waste[1]

    def _sorted(self, epoch: int) -> np.ndarray:
        """Indices of the pairs by length, ties by (seed, epoch) or ascending: `(N,)` int64."""
        ties = np.arange(self.size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "ties", epoch))
            ties = torch.randperm(self.size, generator=generator).numpy()
        return np.lexsort((ties, self.lengths_source, self.lengths_target))


def _cut(longest: list[int], batch_tokens: int) -> list[int]:
    """Bounds of the greedy batches over sentences of these lengths."""
    bounds, width = [0], 0
    for index, length in enumerate(longest):
        width = max(width, length)
        if index > bounds[-1] and (index - bounds[-1] + 1) * width > batch_tokens:
            bounds.append(index)
            width = length
    return [*bounds, len(longest)]


def _divisible(bounds: list[int], count: int) -> list[int]:
    """Splits the largest batches until their number is a multiple of `count`."""
    bounds = list(bounds)
    for _ in range(-(len(bounds) - 1) % count):
        largest = int(np.argmax(np.diff(bounds)))
        bounds.insert(largest + 1, (bounds[largest] + bounds[largest + 1]) // 2)
    if len(set(bounds)) < len(bounds):
        raise DataError(f"{bounds[-1]} pairs cannot be shared by {count} processes in equally many batches")
    return bounds


class EncodedText:
    """N sentences of token ids.

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
        return len(self.lengths)

    def padded(self, indices: Tensor) -> Tensor:
        """The sentences `indices` `(B,)` as int64 `(B, L)`, padded with PAD to the longest of them."""
        lengths = self.lengths[indices]
        position_L = torch.arange(int(lengths.max()))
        inside_BL = position_L < lengths[:, None]
        at_BL = (self.offsets[indices][:, None] + position_L).clamp_(max=max(len(self.flat) - 1, 0))
        return torch.where(inside_BL, self.flat[at_BL].long(), PAD)


class EncodedPairs:
    """N pairs of encoded sentences, `… EOS` and `BOS … EOS`; a tensor of indices `(b,)` gives a batch.

    Args:
        source: ids.
        target: ids.
        texts: the pairs as text, which then accompany the batches.
    """

    draws = False  # nothing random happens here

    def __init__(self, source: EncodedText, target: EncodedText, texts: list[PairText] | None = None) -> None:
        self.source, self.target, self.texts = source, target, texts

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, indices: Tensor) -> PairBatch:
        texts = None if self.texts is None else [self.texts[i] for i in indices.tolist()]
        source, target = self.source.padded(indices), self.target.padded(indices)
        return PairBatch(source, self.source.lengths[indices], target, indices, texts)
