"""Tests with the official archives, if they are available."""

from pathlib import Path

import pytest

from lit_project.data.parallel_text.corpora import Multi30k, Tatoeba

pytestmark = pytest.mark.archives
NOTHING = {"sources": 0, "targets": 0, "pairs": 0}
SEPTEMBER_2017 = 142_787  # number of pairs in the release used below


@pytest.fixture
def tatoeba(official) -> Path:
    """Return the folder that contains the archive of the September 2017 release."""
    folder = official("tatoeba/fra-eng.zip")
    assert len(Tatoeba(root=folder).pool()) == SEPTEMBER_2017, "data/tatoeba holds another release"
    return folder


@pytest.mark.parametrize("prefixes", [pytest.param(None, marks=pytest.mark.slow), "classic"])
def test_tatoeba_splits_share_no_sentences(tatoeba, prefixes):
    data = Tatoeba(root=tatoeba, prefixes=prefixes, seed=1, batch_tokens=4000)
    data.setup("fit")
    report = data.report
    assert sum(own["pairs"] for own in report["splits"].values()) == (SEPTEMBER_2017 if prefixes is None else 13_515)
    assert report["overlap_with_train"] == {"val": NOTHING, "test": NOTHING}
    assert report["padding"]["target"] < 0.03


def test_classic_filter_applies_to_all_splits(tatoeba):
    classic = {"prefixes": "classic", "lowercase": True, "strip_accents": True, "space_punctuation": True}
    data = Tatoeba(root=tatoeba, source="fr", target="en", max_length=9, seed=1, **classic)
    data.setup("fit")
    data.setup("test")
    assert sum(data.size_of(split) for split in ("train", "val", "test")) == 10_860
    assert data.report["overlap_with_train"] == {"val": NOTHING, "test": NOTHING}
    for pairs in data.splits.values():  # untruncated; lengths include BOS and EOS
        assert pairs.source.lengths.max() <= 10
        assert pairs.target.lengths.max() <= 11


@pytest.mark.parametrize(("source", "target"), [("en", "fr"), ("de", "en")])
def test_multi30k_has_its_official_sizes_and_lossless_vocabularies(official, tmp_path, source, target):
    folder = official(f"multi30k/train.{source}.gz", f"multi30k/train.{target}.gz")
    (tmp_path / "multi30k").symlink_to(folder / "multi30k")  # subword models are written elsewhere
    data = Multi30k(
        root=tmp_path, source=source, target=target, vocabulary="bpe", vocabulary_size=6000, joint=True,
        batch_tokens=4000, seed=1,
    )  # fmt: skip
    data.setup("fit")
    data.setup("test")
    assert [data.size_of(split) for split in ("train", "val", "test")] == [29_000, 1014, 1000]
    assert data.report["overlap_with_train"]["test"]["pairs"] == 0
    for sentence, translation in data.pairs("train")[:2000]:
        assert data.source_vocabulary.decode(data.source_vocabulary.encode(sentence)) == sentence
        assert data.target_vocabulary.decode(data.target_vocabulary.encode(translation)) == translation
