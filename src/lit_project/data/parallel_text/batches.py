"""Batches of sentence pairs: sorted by length, filled by tokens, padded."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_project.engine.errors import DataError
from lit_project.engine.sampler import EpochBatches, derive
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
        batch_size: pairs per batch and process. Exactly one of the two is given.
        shuffle: see above; otherwise from short to long, ties in the order of the data.
        seed: with the epoch, all that the order depends on.
        num_replicas: number of processes.
        rank: this process, from 0.

    Raises:
        DataError: not exactly one size, a size below 1, or fewer pairs than processes.
    """

    def __init__(
        self,
        lengths_source: Tensor,
        lengths_target: Tensor,
        *,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        shuffle: bool,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        if (batch_tokens is None) == (batch_size is None):
            raise DataError(f"give one of batch_tokens and batch_size, got {batch_tokens} and {batch_size}")
        budget = batch_tokens or batch_size or 0
        if budget < 1:
            raise DataError(f"batch_tokens or batch_size must be at least 1, got {budget}")
        size = len(lengths_source)
        super().__init__(
            size, max(size, 2), shuffle=shuffle, seed=seed, num_replicas=num_replicas, rank=rank
        )  # which refuses fewer pairs than processes
        self.together = budget * num_replicas  # positions, or pairs
        self.lengths_source = lengths_source.numpy()
        self.lengths_target = lengths_target.numpy()
        longest = np.maximum(self.lengths_source, self.lengths_target)[self._sorted(0)]
        bounds = [*range(0, size, batch_size), size] if batch_size else _cut(longest.tolist(), budget)
        self.bounds = _divisible(bounds, num_replicas)  # where batches begin in the sorted sequence, and its end

    def __len__(self) -> int:
        return (len(self.bounds) - 1) // self.num_replicas

    def batches(self) -> list[Tensor]:
        """All batches of this epoch: index tensors `(b,)`."""
        order = torch.from_numpy(self._sorted(self.epoch))
        count = len(self)
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "batches", self.epoch))
            steps = torch.randperm(count, generator=generator)
            # who takes which batch of a step, so that no process always has the shortest
            shares = torch.rand(count, self.num_replicas, generator=generator).argsort(dim=1)
        else:
            steps = torch.arange(count)
            shares = torch.arange(self.num_replicas).expand(count, -1)
        chosen = (steps * self.num_replicas + shares[:, self.rank]).tolist()
        return [order[self.bounds[i] : self.bounds[i + 1]] for i in chosen]

    def padding_waste(self) -> tuple[float, float]:
        """Share of padding among the positions of an epoch, of the source and of the target, over all processes."""
        order, starts = self._sorted(0), np.array(self.bounds[:-1])
        counts = np.diff(self.bounds)
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

    def __init__(self, source: EncodedText, target: EncodedText, texts: list[PairText] | None = None) -> None:
        self.source, self.target, self.texts = source, target, texts

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, indices: Tensor) -> PairBatch:
        texts = None if self.texts is None else [self.texts[i] for i in indices.tolist()]
        source, target = self.source.padded(indices), self.target.padded(indices)
        return PairBatch(source, self.source.lengths[indices], target, indices, texts)
