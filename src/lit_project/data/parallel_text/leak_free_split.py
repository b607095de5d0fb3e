"""Splits of a parallel corpus that share no sentence.

A corpus with many translations per sentence is a graph: sentences are nodes, pairs are edges. If a random share of the
pairs is held out, most of its sentences stay in train with another translation. Here whole connected components are
held out instead.
"""

import unicodedata
from collections.abc import Sequence

import numpy as np
import torch

from lit_engine.data.module import SPLIT_SEED
from lit_engine.data.sampler import derive
from lit_engine.errors import DataError

Pairs = Sequence[tuple[str, str]]


def sentence_key(sentence: str) -> str:
    """What two spellings of one sentence have in common: its letters and digits, without case and accents.

    It is coarser than every `Preparation`: with any of them, sentences that become equal have equal keys. So one split
    serves all of them, and none of them makes it leak.
    """
    folded = sentence.lower()
    if not folded.isascii():
        folded = unicodedata.normalize("NFD", folded)
    letters = "".join(filter(str.isalnum, folded))
    return letters or "".join(mark for mark in folded if not mark.isspace() and not unicodedata.combining(mark))


def components(pairs: Pairs) -> np.ndarray:
    """The number of the connected component of each pair: `(N,)`, from 0 in the order of the pairs.

    It does not depend on which side is the source, so that both directions of a corpus are split alike.
    """
    sides = []
    start = 0
    for side in range(2):
        nodes: dict[str, int] = {}
        sides.append([nodes.setdefault(sentence_key(pair[side]), start + len(nodes)) for pair in pairs])
        start += len(nodes)
    source, target = (np.array(side, dtype=np.int64) for side in sides)
    labels = connected_components(source, target, start)[source]
    _, first, labels = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[labels]


def connected_components(source: np.ndarray, target: np.ndarray, size: int) -> np.ndarray:
    """Return a label per node of an undirected graph, `(size,)`: the smallest node of its connected component.

    Args:
        source: one end of each edge: `(E,)`, from 0 to `size - 1`.
        target: the other ends.
        size: number of nodes.
    """
    labels = np.arange(size)
    while (labels[source] != labels[target]).any():
        lower, higher = np.sort([labels[source], labels[target]], axis=0)
        np.minimum.at(labels, higher, lower)  # join the components at the ends of each edge
        while (labels != labels[labels]).any():  # so that all nodes of a component have one label again
            labels = labels[labels]
    return labels


def leak_free_split(pairs: Pairs, *, val: int = 0, test: int = 0) -> dict[str, np.ndarray]:
    """Indices of the pairs of train, val and test, ascending; no sentence (by `sentence_key`) occurs in two of them.

    Test and validation take components in a random order that is always the same until they have as many pairs as
    asked, or slightly more. Components that would be more than a hundredth of a split (and more than ten pairs) stay
    in train: one of thousands of pairs would be the whole split.

    Args:
        pairs: the corpus.
        val: pairs of validation.
        test: pairs of test.

    Raises:
        DataError: the corpus cannot give that many pairs.
    """
    labels = components(pairs) if len(pairs) else np.zeros(0, dtype=np.int64)
    sizes = np.bincount(labels)
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(derive(SPLIT_SEED, len(sizes)))).numpy()
    owner = np.zeros(len(sizes), dtype=np.int64)  # of each component: 0 train, 1 val, 2 test
    for number, name, wanted in ((2, "test", test), (1, "val", val)):
        if wanted < 0:
            raise DataError(f"{name}_size must not be negative, got {wanted}")
        free = order[(owner[order] == 0) & (sizes[order] <= max(10, wanted // 100))]
        taken = free[: int(np.searchsorted(np.cumsum(sizes[free]), wanted)) + 1] if wanted else free[:0]
        if sizes[taken].sum() < wanted:
            raise DataError(
                f"--data.{name}_size={wanted} is too large: of {len(pairs)} pairs only {int(sizes[free].sum())} more "
                "can be held out without a sentence that also occurs in train"
            )
        owner[taken] = number
    split = {name: np.flatnonzero(owner[labels] == number) for number, name in enumerate(("train", "val", "test"))}
    if not len(split["train"]):
        raise DataError(f"val_size {val} and test_size {test} leave nothing of {len(pairs)} pairs to train on")
    return split


def leak_free_folds(pairs: Pairs, folds: int) -> torch.Tensor:
    """The fold of each pair, from 0: `(N,)`. No sentence is in two of them; they are about as large as each other.

    Components go to the smallest fold, the largest first.

    Raises:
        DataError: there are more folds than components.
    """
    labels = components(pairs)
    sizes = np.bincount(labels)
    if len(sizes) < folds:
        raise DataError(f"{len(pairs)} pairs in {len(sizes)} groups that share sentences cannot be {folds} folds")
    owner, filled = np.zeros_like(sizes), [0] * folds
    for group in (-sizes).argsort(kind="stable"):
        owner[group] = smallest = filled.index(min(filled))
        filled[smallest] += int(sizes[group])
    return torch.from_numpy(owner[labels])


def drop_shared_sentences(pairs: Pairs, given: Pairs) -> list[tuple[str, str]]:
    """Those of `pairs` that share no sentence (by `sentence_key`) with `given`, on either side."""
    sources, targets = ({sentence_key(pair[side]) for pair in given} for side in range(2))
    return [(s, t) for s, t in pairs if sentence_key(s) not in sources and sentence_key(t) not in targets]


def overlap(train: Pairs, other: Pairs) -> dict[str, int]:
    """How many distinct sources, targets and pairs of another split also occur in train."""
    return {
        "sources": len({source for source, _ in other} & {source for source, _ in train}),
        "targets": len({target for _, target in other} & {target for _, target in train}),
        "pairs": len(set(other) & set(train)),
    }
