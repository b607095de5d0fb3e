"""Padded batches of sentence pairs of similar length, with a limited number of tokens per batch."""

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
    """The text of a pair for scoring and display, after applying `Preparation` and `restore`."""

    source: str
    target: str
    references: list[str]  # all translations of this source in the split, including `target`
    memory: str  # the most frequent translation of this source in train (the first if tied), or an empty string


class PairBatch(NamedTuple):
    """A batch of encoded pairs.

    Attributes:
        source: int64 `(B, S)`, source tokens and EOS, padded with PAD on the right.
        source_lengths: int64 `(B,)`, number of source tokens including EOS. This tensor is always on the CPU.
        target: int64 `(B, T)`, BOS, target tokens and EOS, padded with PAD on the right.
        indices: int64 `(B,)`, indices of the pairs in the split.
        texts: the pairs as text, or None in training.
    """

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    indices: Tensor
    texts: list[PairText] | None


class TokenBatches(EpochBatches):
    """Batch sampler of pair indices for one process and epoch. The pairs in a batch have similar lengths.

    The pairs are sorted by (target length, source length) and cut into batches. Shuffling permutes pairs of equal
    length and the order of the batches, depending on the seed and the epoch. The sorted lengths are the same in every
    epoch, and so are the number of batches and their shapes. Each pair is used by exactly one process, once per epoch.
    The largest batches are split in two until every process has the same number of batches. In each step, all processes
    have batches of similar length, so that they finish at about the same time.

    Args:
        lengths_source: `(N,)`, number of tokens of each source, including EOS.
        lengths_target: `(N,)`, number of tokens of each target, including BOS and EOS.
        batch_tokens: maximum number of tokens per batch and process, including padding. The limit applies to source
            and target separately. A longer pair forms a batch of its own.
        batch_size: pairs per batch and process.
        global_batch_size: pairs per optimizer step (see `EpochBatches`). Set exactly one of the three sizes.
        shuffle: shuffle as described above. If false, sort from short to long and keep ties in the order of the data.
        share: the arguments `seed`, `num_replicas`, `rank` and `accumulate` of `EpochBatches`.

    Raises:
        DataError: no size or several sizes are set, the size is below 1, there are fewer pairs than processes, or
            the global size is not divisible by the number of processes and micro-batches.
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
        size = len(lengths_source)
        limit = _only_size(batch_tokens, batch_size, global_batch_size)
        self.lengths_source = lengths_source.numpy()
        self.lengths_target = lengths_target.numpy()
        if global_batch_size:
            super().__init__(size, global_batch_size=global_batch_size, shuffle=shuffle, **share)
            return
        # With one batch for all pairs, the base class only checks that there are enough pairs for all processes.
        super().__init__(size, max(size, 2), shuffle=shuffle, **share)
        longest = np.maximum(self.lengths_source, self.lengths_target)[self._sort(0)]
        bounds = [*range(0, size, batch_size), size] if batch_size else _cut(longest.tolist(), limit)
        self.bounds = _divisible(bounds, self.num_replicas)  # boundaries of the batches in the sorted pairs
        # `Loader` saves these two values, and compares them when a run resumes.
        self.together = self.step = limit * self.num_replicas  # number of tokens or pairs
        if batch_tokens or self.parts > 1:  # Otherwise, `batch_size` has the same effect as `global_batch_size`.
            self.step = f"{limit} × {self.num_replicas} × {self.parts // self.num_replicas}"

    def batches(self) -> list[Tensor]:
        order = torch.from_numpy(self._sort(self.epoch))
        return self.parts_of(order, self._own_numbers())

    def _own_numbers(self) -> list[int]:
        """Return the indices of this process's batches in the order of the epoch. Batches are indexed by length.

        Consecutive batches form a block, which is either one optimizer step or one batch per process. Shuffling
        permutes the blocks.
        """
        block = self.parts if self.global_batch_size else self.num_replicas
        count = (len(self.bounds) - 1) // block
        blocks = torch.arange(count)
        places = torch.arange(self.rank, block, self.num_replicas).expand(count, -1)  # of this process in each block
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "batches", self.epoch))
            blocks = torch.randperm(count, generator=generator)
            if not self.global_batch_size:  # Assign batches randomly, so that no process always gets the shortest.
                places = torch.rand(count, block, generator=generator).argsort(dim=1)[:, self.rank, None]
        return (blocks[:, None] * block + places).flatten().tolist()

    def padding_waste(self) -> tuple[float, float]:
        """Return the fraction of padding in an epoch's source and target batches, over all processes."""
        bounds = np.unique(self.bounds)  # Some batches may be empty.
        order, starts, counts = self._sort(0), bounds[:-1], np.diff(bounds)
        waste = []
        for lengths in (self.lengths_source, self.lengths_target):
            positions = (np.maximum.reduceat(lengths[order], starts) * counts).sum()
            waste.append(float(1 - lengths.sum() / positions))
        return waste[0], waste[1]

    def _sort(self, epoch: int) -> np.ndarray:
        """Return the pair indices sorted by length, int64 `(N,)`. Ties are shuffled or sorted by index."""
        ties = np.arange(self.size)
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "ties", epoch))
            ties = torch.randperm(self.size, generator=generator).numpy()
        return np.lexsort((ties, self.lengths_source, self.lengths_target))


def _only_size(batch_tokens: int | None, batch_size: int | None, global_batch_size: int | None) -> int:
    """Return the only size that is set. Raise DataError if none or several are set, or the size is below 1."""
    sizes = batch_tokens, batch_size, global_batch_size
    given = [size for size in sizes if size is not None]
    if len(given) != 1:
        raise DataError(
            f"set exactly one of batch_tokens, batch_size and global_batch_size, got {', '.join(map(str, sizes))}: "
            "--data.batch_size=null unsets batch_size"
        )
    if given[0] < 1:
        raise DataError(f"the size of a batch must be at least 1, got {given[0]}")
    return given[0]


def _cut(longest: list[int], batch_tokens: int) -> list[int]:
    """Return the bounds of batches that are filled greedily with sentences of these lengths."""
    bounds, width = [0], 0
    for index, length in enumerate(longest):
        width = max(width, length)
        if index > bounds[-1] and (index - bounds[-1] + 1) * width > batch_tokens:
            bounds.append(index)
            width = length
    return [*bounds, len(longest)]


def _divisible(bounds: list[int], count: int) -> list[int]:
    """Split the largest batches until the number of batches is a multiple of `count`."""
    bounds = list(bounds)
    for _ in range(-(len(bounds) - 1) % count):
        largest = int(np.argmax(np.diff(bounds)))
        bounds.insert(largest + 1, (bounds[largest] + bounds[largest + 1]) // 2)
    if len(set(bounds)) < len(bounds):
        raise DataError(
            f"{bounds[-1]} batches of one pair each cannot be divided equally among {count} processes: "
            "increase the batch size"
        )
    return bounds


class EncodedText:
    """N encoded sentences.

    Attributes:
        flat: int32 `(number of tokens,)`, concatenated token ids of all sentences.
        offsets: int64 `(N + 1,)`, the start of each sentence in `flat` and the end of the last one.
        lengths: int64 `(N,)`, number of tokens of each sentence.
    """

    def __init__(self, sentences: Sequence[Sequence[int]]) -> None:
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        flat = np.fromiter(chain.from_iterable(sentences), np.int32, int(lengths.sum()))
        self.flat = torch.from_numpy(flat)
        self.lengths = torch.from_numpy(lengths)
        self.offsets = torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])

    def __len__(self) -> int:
        return len(self.lengths)

    def pad_batch(self, indices: Tensor) -> Tensor:
        """Return the sentences at `indices` `(B,)`, padded with PAD to the longest of them, as int64 `(B, L)`."""
        lengths = self.lengths[indices]
        position_L = torch.arange(int(lengths.max()))
        inside_BL = position_L < lengths[:, None]
        at_BL = (self.offsets[indices][:, None] + position_L).clamp_(max=len(self.flat) - 1)
        return torch.where(inside_BL, self.flat[at_BL].long(), PAD)


class EncodedPairs:
    """N pairs of encoded sentences. Indexing with a tensor of indices `(b,)` returns a `PairBatch`.

    Args:
        source: encoded source sentences, which end with EOS.
        target: encoded target sentences, which start with BOS and end with EOS.
        texts: the pairs as text. If set, batches include them.
    """

    draws = False  # Indexing is deterministic.

    def __init__(self, source: EncodedText, target: EncodedText, texts: list[PairText] | None = None) -> None:
        self.source, self.target, self.texts = source, target, texts

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, indices: Tensor) -> PairBatch:
        texts = None if self.texts is None else [self.texts[i] for i in indices.tolist()]
        source, target = self.source.pad_batch(indices), self.target.pad_batch(indices)
        return PairBatch(source, self.source.lengths[indices], target, indices, texts)
