"""Tests that splits share no sentences."""

import random

import numpy as np
import pytest
from scipy.sparse import coo_array, csgraph

from lit_engine.errors import DataError
from lit_project.data.parallel_text.leak_free_split import (
    components,
    leak_free_split,
    overlap,
    sentence_key,
)
from lit_project.text.preparation import Preparation


def many_to_many(size=3000, seed=0):
    """Return a corpus in which sentences have several translations in both directions."""
    generator = random.Random(seed)
    pairs = []
    for number in range(size // 3):
        for _ in range(3):
            pairs.append((f"source {number} {generator.randrange(2)}", f"target {number} {generator.randrange(3)}"))
    return pairs


def test_components_connect_pairs_that_share_a_sentence():
    pairs = [("a", "x"), ("b", "y"), ("c", "x"), ("c", "z"), ("d", "w"), ("b", "v")]
    assert components(pairs).tolist() == [0, 1, 0, 0, 2, 1]
    assert components([(t, s) for s, t in pairs]).tolist() == [0, 1, 0, 0, 2, 1]


@pytest.mark.parametrize(("sentences", "size"), [(1, 3), (400, 100), (400, 300), (400, 2000)])
def test_components_match_scipy(sentences, size):
    random_edges = np.random.default_rng(sentences + size).integers(sentences, size=(2, size))
    path = np.random.default_rng(1).permutation(sentences)
    for source, target in (random_edges, (path, path), (path, np.roll(path, 1)), (path // 2, (path + 1) // 2)):
        edges = (source, target + sentences)
        graph = coo_array((np.ones(len(source)), edges), shape=(2 * sentences, 2 * sentences))
        _, expected = csgraph.connected_components(graph, directed=False)
        _, first, labels = np.unique(expected[source], return_index=True, return_inverse=True)
        pairs = [(f"s{s}", f"t{t}") for s, t in zip(source, target, strict=True)]
        assert (components(pairs) == first.argsort().argsort()[labels]).all()


def test_splits_share_no_sentence_and_have_about_the_requested_sizes():
    pairs = many_to_many()
    split = leak_free_split(pairs, val=200, test=300)
    part = {key: [pairs[i] for i in own] for key, own in split.items()}
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert overlap(part[one], part[other]) == {"sources": 0, "targets": 0, "pairs": 0}
    assert sorted(np.concatenate(list(split.values()))) == list(range(len(pairs)))
    assert 200 <= len(split["val"]) < 210
    assert 300 <= len(split["test"]) < 310


def test_split_depends_only_on_the_data():
    pairs = many_to_many()
    first = leak_free_split(pairs, val=200, test=300)
    np.random.seed(5)  # noqa: NPY002 (the global state is the point)
    second = leak_free_split([(t, s.upper()) for s, t in pairs], val=200, test=300)
    for name, own in first.items():
        assert (own == second[name]).all()


@pytest.mark.parametrize(
    "preparation",
    [Preparation(), Preparation(True), Preparation(True, True), Preparation(True, True, True)],
    ids=["plain", "lower", "accents", "all"],
)
def test_splits_share_no_sources_after_any_preparation(preparation):
    spellings = ["Été {}!", "été {} !", "ETE {}", "Ete, {}."]
    generator = random.Random(3)
    pairs = [(generator.choice(spellings).format(i // 3), f"t{i}") for i in range(900)]
    split = leak_free_split(pairs, val=60, test=60)
    part = {name: [(preparation(pairs[i][0]), pairs[i][1]) for i in own] for name, own in split.items()}
    assert overlap(part["train"], part["test"])["sources"] == 0
    assert overlap(part["train"], part["val"])["sources"] == 0


def test_keys_of_sentences_without_letters_differ():
    assert sentence_key("?!") != sentence_key("...")
    assert sentence_key(";") == sentence_key(";\u0301")  # both are the same without accents
    assert sentence_key("❤\N{VARIATION SELECTOR-16}") == sentence_key("❤")
    assert sentence_key("Ça va ?") == sentence_key("CA VA")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [({"val": 9000}, "val_size=9000 is too large"), ({"test": -1}, "test_size"), ({"val": 10, "test": 20}, "leave")],
)
def test_invalid_split_sizes_are_rejected(sizes, message):
    pairs = [(f"s{i}", f"t{i}") for i in range(30)]
    with pytest.raises(DataError, match=message):
        leak_free_split(pairs, **sizes)


def test_components_of_ten_pairs_can_be_held_out_but_larger_ones_cannot():
    def component(size):
        return [(f"{size} {part}", f"{part} {number}") for part in "abc" for number in range(size)]

    split = leak_free_split(component(10), val=10, test=10)
    assert [len(split[name]) for name in ("train", "val", "test")] == [10, 10, 10]
    with pytest.raises(DataError, match="is too large"):
        leak_free_split(component(11), val=10, test=10)
