"""What a batch of sentence pairs is."""

from typing import NamedTuple

from torch import Tensor


class PairText(NamedTuple):
    """The text of a pair, prepared and restored: what a reader sees and what scores are computed on.

    Attributes:
        source: the source sentence.
        target: its translation in this pair.
        references: every translation of this source in the split, `target` among them.
        memory: the most frequent translation of an identical training source (the earliest among equals), or "".
    """

    source: str
    target: str
    references: list[str]
    memory: str


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
