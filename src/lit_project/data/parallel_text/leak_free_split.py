"""Splits a parallel corpus so that no sentence occurs in two splits.

If a corpus has many translations per sentence and random pairs are held out, most held-out sentences also occur in
train with a different translation. This module therefore treats the corpus as a graph with sentences as nodes and pairs
as edges, and holds out whole connected components.
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
    """Return a sentence's key, which consists of its letters and digits in lower case, without accents.

    If two sentences are equal after some `Preparation`, their keys are also equal. Splitting by keys therefore avoids
    leakage between splits, regardless of the preparation.
    """
    folded = sentence.lower()
    if not folded.isascii():
        folded = unicodedata.normalize("NFD", folded)
    letters = "".join(filter(str.isalnum, folded))
    return letters or "".join(mark for mark in folded if not mark.isspace() and unicodedata.category(mark) != "Mn")


def components(pairs: Pairs) -> np.ndarray:
    """Return the index of each pair's connected component, `(N,)`. Components are numbered in the order of the pairs.

    The result does not depend on which side is the source, so both directions of a corpus have the same split.
    """
    parents = list(range(len(pairs)))  # a union-find structure, in which the root of a component is its first pair

    def find_root(pair: int) -> int:
        while parents[pair] != pair:
            parents[pair] = pair = parents[parents[pair]]  # shortens the path for later calls
        return pair

    for side in range(2):
        first: dict[str, int] = {}  # the first pair with each sentence
        for number, pair in enumerate(pairs):
            roots = find_root(number), find_root(first.setdefault(sentence_key(pair[side]), number))
            parents[max(roots)] = min(roots)
    return np.unique([find_root(number) for number in range(len(pairs))], return_inverse=True)[1]


def leak_free_split(pairs: Pairs, *, val: int = 0, test: int = 0) -> dict[str, np.ndarray]:
    """Return the pair indices of train, val and test in ascending order. No `sentence_key` occurs in two splits.

    Components are added to test and validation in a fixed random order until each split has at least the requested
    number of pairs. Components with more than ten pairs and more than 1 % of the requested number stay in train,
    because a component with thousands of pairs could fill a whole split.

    Args:
        pairs: the corpus.
        val: requested number of validation pairs.
        test: requested number of test pairs.

    Raises:
        DataError: the corpus is too small for the requested numbers of pairs.
    """
    component = components(pairs)  # of each pair
    sizes = np.bincount(component)  # number of pairs in each component
    generator = torch.Generator().manual_seed(derive(SPLIT_SEED, len(sizes)))
    order = torch.randperm(len(sizes), generator=generator).numpy()
    split_of = np.full(len(sizes), "train")  # of each component
    for name, wanted in (("test", test), ("val", val)):
        if wanted < 0:
            raise DataError(f"{name}_size must not be negative, got {wanted}")
        is_free = (split_of == "train") & (sizes <= max(10, wanted // 100))
        free = order[is_free[order]]
        if sizes[free].sum() < wanted:
            raise DataError(
                f"--data.{name}_size={wanted} is too large: only {int(sizes[free].sum())} of {len(pairs)} pairs "
                "can still be held out without sharing a sentence with train"
            )
        if wanted:
            count = np.searchsorted(np.cumsum(sizes[free]), wanted) + 1  # the first components with enough pairs
            split_of[free[:count]] = name
    split = {name: np.flatnonzero(split_of[component] == name) for name in ("train", "val", "test")}
    if not len(split["train"]):
        raise DataError(f"val_size {val} and test_size {test} leave none of the {len(pairs)} pairs for training")
    return split


def leak_free_folds(pairs: Pairs, folds: int) -> torch.Tensor:
    """Return the fold index of each pair, `(N,)`. No sentence occurs in two folds, and all folds have similar sizes.

    Starting with the largest component, each component is added to the fold that is currently the smallest.

    Raises:
        DataError: there are more folds than components.
    """
    labels = components(pairs)
    sizes = np.bincount(labels)
    if len(sizes) < folds:
        raise DataError(f"cannot create {folds} folds: pairs with shared sentences form only {len(sizes)} groups")
    owner, filled = np.zeros_like(sizes), [0] * folds
    for group in (-sizes).argsort(kind="stable"):
        owner[group] = smallest = filled.index(min(filled))
        filled[smallest] += int(sizes[group])
    return torch.from_numpy(owner[labels])


def drop_shared_sentences(pairs: Pairs, given: Pairs) -> list[tuple[str, str]]:
    """Return the pairs that do not share a source or a target with `given`, as determined by `sentence_key`."""
    sources, targets = ({sentence_key(pair[side]) for pair in given} for side in range(2))
    return [(s, t) for s, t in pairs if sentence_key(s) not in sources and sentence_key(t) not in targets]


def overlap(train: Pairs, other: Pairs) -> dict[str, int]:
    """Count the distinct sources, targets and pairs in another split that also occur in train."""
    return {
        "sources": len({source for source, _ in other} & {source for source, _ in train}),
        "targets": len({target for _, target in other} & {target for _, target in train}),
        "pairs": len(set(other) & set(train)),
    }
