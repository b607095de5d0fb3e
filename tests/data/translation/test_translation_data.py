"""Tests the data modules for parallel corpora: prefix filter, batches, and invalid options."""

import pytest
from toy_data import toy

from lit_engine.errors import DataError
from lit_project.data.parallel_text.filters import filter_by_prefix
from lit_project.text.vocabulary import BOS, EOS, PAD


def test_prefixes_ignore_case_accents_and_apostrophe_style():
    pairs = [("I’m here.", "a"), ("i'm there.", "b"), ("É bien", "c"), ("You", "d")]
    assert filter_by_prefix(pairs, ["I'M ", "É "], "en", "fr") == pairs[:3]


def test_batches_contain_the_encoded_pairs(tmp_path):
    data = toy(tmp_path, batch_tokens=300)
    data.setup("fit")
    pairs, seen = data.pairs("train"), []
    for batch in data.train_dataloader():
        assert batch.texts is None
        assert batch.source.numel() <= 300
        assert batch.target.numel() <= 300
        for row, index in enumerate(batch.indices.tolist()):
            source, target = batch.source[row].tolist(), batch.target[row].tolist()
            length = int(batch.source_lengths[row])
            assert source[length - 1] == EOS
            assert set(source[length:]) <= {PAD}
            assert target[0] == BOS
            assert target.count(EOS) == 1
            assert data.source_vocabulary.decode(source) == pairs[index][0]
            assert data.target_vocabulary.decode(target) == pairs[index][1]
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(data.size_of("train")))


def test_evaluation_batches_contain_sentences_references_and_memory(corpus, tmp_path):
    (tmp_path / "test.tsv").write_text("Hi !\tSalut !\nHi !\tCoucou !\nHi !\tSalut !\nNo\tNon\n")
    train = [("Hi!", "Allô !"), ("Hi !", "Bonjour"), ("Hi!", "Salut !"), ("Hi!", "Salut!")]
    test = str(tmp_path / "test.tsv")
    data = corpus(train, val=test, test=test, space_punctuation=True)
    data.setup("test")
    texts = {}
    for batch in data.test_dataloader():
        texts.update(zip(batch.indices.tolist(), batch.texts, strict=True))
    assert [text.source for _, text in sorted(texts.items())] == ["Hi!", "Hi!", "Hi!", "No"]
    assert [text.target for _, text in sorted(texts.items())] == ["Salut!", "Coucou!", "Salut!", "Non"]
    assert texts[0].references == texts[1].references == ["Salut!", "Coucou!"]
    assert texts[0].memory == "Salut!"
    assert texts[3].references == ["Non"]
    assert texts[3].memory == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "de"}, "no translations from en to de: its languages are en, fr"),
        ({"target": "en"}, "from en to en"),
        ({"vocabulary_size": 4}, "vocabulary_size"),
        ({"min_freq": 0}, "min_freq"),
        ({"joint": True}, "joint"),
        ({"vocabulary": "bpe", "min_freq": 2}, "min_freq"),
    ],
)
def test_invalid_options_are_rejected(tmp_path, options, message):
    with pytest.raises(DataError, match=message):
        toy(tmp_path, **options)
