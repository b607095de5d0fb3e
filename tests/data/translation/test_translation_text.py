"""Tests the data modules for parallel corpora: vocabularies, overlong sentences, and prefixes."""

import pytest
import torch
from toy_data import toy

from lit_engine.errors import DataError
from lit_project.data.parallel_text.filters import filter_by_length
from lit_project.text.vocabulary import UNK


def test_vocabularies_contain_only_words_from_the_training_split(tmp_path):
    data = toy(tmp_path, size=300, val_size=30, test_size=30)
    words = {word for source, _ in data.pairs("train") for word in source.lower().rstrip(".").split()}
    known = {word.replace("￭", "").lower() for word in data.vocabularies["source"]["words"]}
    assert known - {"."} == words
    assert data.source_size == len(data.vocabularies["source"]["words"]) + 4
    assert data.max_source_length == data.max_length + 1


@pytest.mark.parametrize("options", [{}, {"vocabulary": "bpe", "vocabulary_size": 120, "joint": True}])
def test_checkpoint_vocabularies_override_newly_built_ones(tmp_path, options):
    options |= {"lowercase": True, "max_length": 7}
    data = toy(tmp_path, **options)
    torch.save(data.vocabularies, tmp_path / "a.ckpt")
    plain = torch.load(tmp_path / "a.ckpt", weights_only=True)
    again = toy(tmp_path, size=300, val_size=20, test_size=20, vocabularies=plain, **options)
    assert again.vocabularies == data.vocabularies
    assert again.preparation == data.preparation
    assert (again.source_size, again.target_size, again.max_source_length) == (data.source_size, data.target_size, 8)
    for change in ({"lowercase": False}, {"max_length": 8}, {"vocabulary": "unigram"}):
        [(name, value)] = change.items()
        with pytest.raises(DataError, match=f"{name} is {value}, but the vocabularies of the checkpoint need"):
            toy(tmp_path, vocabularies=plain, **{**options, **change})


def test_vocabularies_for_a_different_language_are_rejected(tmp_path):
    plain = toy(tmp_path).vocabularies
    plain["source"]["language"] = "de"
    with pytest.raises(DataError, match=r"source vocabulary of the checkpoint is de.*is en"):
        toy(tmp_path, vocabularies=plain)


def test_subword_models_are_cached_in_files_and_rebuilt_if_damaged(tmp_path):
    options = {"vocabulary": "bpe", "vocabulary_size": 100}
    first = toy(tmp_path, **options)
    assert (first.source_size, first.target_size) == (100, 100)
    files = sorted((tmp_path / "vocabularies").iterdir())
    assert len(files) == 2
    times = [file.stat().st_mtime_ns for file in files]
    assert toy(tmp_path, **options).vocabularies == first.vocabularies
    assert [file.stat().st_mtime_ns for file in files] == times
    files[0].write_bytes(b"cut short")
    assert toy(tmp_path, **options).vocabularies == first.vocabularies
    assert toy(tmp_path, **{**options, "vocabulary_size": 105}).source_size == 105


LONG = [("a b c d e f", "g h"), ("i", "j k l m n o"), ("p q", "r s")]


def test_overlong_training_pairs_are_dropped_and_counted(corpus, capsys):
    data = corpus(LONG, held_out=True, max_length=4)
    data.setup("fit")
    assert data.size_of("train") == len(data.pairs("train")) - 2
    assert "2 of 43 train pairs exceed max_length 4 and were dropped" in capsys.readouterr().out


@pytest.mark.parametrize("overlong", ["drop", "truncate", "error"])
def test_evaluation_pairs_are_never_dropped(corpus, tmp_path, capsys, overlong):
    (tmp_path / "test.tsv").write_text("\n".join(f"{s}\t{t}" for s, t in LONG) + "\n")
    data = corpus([], max_length=4, overlong=overlong, test=str(tmp_path / "test.tsv"))
    data.setup("test")
    assert data.size_of("test") == 3
    assert data.splits["test"].source.lengths.tolist() == [5, 2, 3]
    assert data.splits["test"].target.lengths.tolist() == [4, 8, 4]
    assert "1 of 3 test pairs exceed max_length 4 and were truncated" in capsys.readouterr().out


@pytest.mark.parametrize("options", [{}, {"vocabulary": "bpe", "vocabulary_size": 60}], ids=["words", "subwords"])
def test_overlong_pairs_are_dropped_before_splitting(corpus, capsys, options):
    pairs = [(f"one two three {i}", f"un {i}") for i in range(60)]
    pairs += [(f"eins {i}", f"ein, zwei {i}") for i in range(60)]
    data = corpus(pairs, max_length=3, val_size=10, test_size=10, **options)
    data.setup("fit")
    data.setup("test")
    left = [pair for split in ("train", "val", "test") for pair in data.pairs(split)]
    marks = 60 if options else 0  # a comma is a separate word, but may be part of a subword
    assert len(left) == 40 + marks
    assert f"{120 - marks} of 160 pairs exceed max_length 3 and were dropped" in capsys.readouterr().out
    if not options:
        assert all(int(max(s.source.lengths.max(), s.target.lengths.max())) <= 5 for s in data.splits.values())


def test_unknown_words_are_counted(corpus, tmp_path, capsys):
    (tmp_path / "val.tsv").write_text("filler unheard\tinouï\n")
    data = corpus([], val=str(tmp_path / "val.tsv"), test_size=1)
    data.setup("fit")
    assert data.splits["val"].source.flat.tolist()[1] == UNK
    assert data.report["unknown"]["val"] == {"source": 0.5, "target": 1.0}
    assert "warning: 100% of the target tokens in val are unknown" in capsys.readouterr().out


def test_pairs_are_filtered_by_prefixes_of_the_english_sentence(corpus, capsys):
    pairs = [(f"I'm {i}", f"Je suis {i}") for i in range(20)] + [("É I am", "x"), ("i am z", "y"), ("He isn't", "z")]
    kept = corpus(pairs, prefixes="classic", val_size=2, test_size=2)
    found = [pair for split in ("train", "val", "test") for pair in kept.pairs(split)]
    assert sorted(found) == sorted([*pairs[:20], pairs[21], pairs[22]])
    assert "prefixes keep 22 of 63 pairs" in capsys.readouterr().out
    assert len(corpus(pairs, prefixes=["e i"], val_size=0, test_size=0).pairs("train")) == 1


def test_sentences_of_exactly_the_maximum_length_are_kept():
    ids = [[5, 6, 7], [5, 6, 7, 8]]
    kept = filter_by_length(ids, ids, [("a", "b"), ("c", "d")], max_length=3, overlong="drop")
    assert kept[:2] == ([[5, 6, 7]], [[5, 6, 7]])
    assert kept[2] == 1
