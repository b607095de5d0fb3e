"""Tests vocabularies: round trips, unknown words, plain data in checkpoints, and errors."""

import pytest
import torch

from lit_engine.errors import DataError
from lit_project.text.tokens import join_words, split_words
from lit_project.text.vocabulary import BOS, EOS, PAD, UNK, SubwordVocabulary, Vocabulary, WordVocabulary

WRITTEN = {
    "en": [
        "Hi!",
        "I'm here, aren't I?",
        'He said: "It\'s 3.50, at 5 p.m.…"',
        "(Well-known) dogs' toys -- rock 'n' roll",
    ],
    "fr": [
        "J'ai dit qu'elle l'a vu aujourd'hui.",
        "Qu'est-ce que c'est ?",
        "Y a-t-il quelqu'un ?",
        "Donne-le-moi !",
        "« L'été », dit-il… peut-être.",
        "C’est l’heure.",
    ],
    "de": ["Ein Mann fährt auf der „Straße“, 2,5 km lang.", "Wie geht's? Gut!", "Groß- und Kleinschreibung"],
}
SENTENCES = [sentence for own in WRITTEN.values() for sentence in own]


def test_joining_words_restores_the_sentence():
    for language, sentences in WRITTEN.items():
        vocabulary = WordVocabulary.build(sentences, language=language)
        for sentence in sentences:
            assert join_words(split_words(sentence, language)) == sentence
            assert vocabulary.decode([BOS, *vocabulary.encode(sentence), EOS, PAD]) == sentence


def test_splitting_depends_on_the_language():
    assert split_words("j'ai", "fr") == ["j'￭", "ai"]
    assert split_words("as-tu vu l'ami ?", "fr") == ["as", "￭-tu", "vu", "l'￭", "ami", "?"]
    assert split_words("He's Hi!", "en") == ["He", "￭'s", "Hi", "￭!"]
    assert split_words("j'ai", "de") == ["j'ai"]


def test_combining_marks_are_parts_of_words():
    assert split_words("मैं हिन्दी बोलता हूँ।") == ["मैं", "हिन्दी", "बोलता", "हूँ", "￭।"]
    assert split_words("e\u0301te\u0301, n'est-ce pas?", "fr") == [
        "e\u0301te\u0301", "￭,", "n'￭", "est", "￭-ce", "pas", "￭?",
    ]  # fmt: skip
    assert join_words(split_words("नमस्ते-दुनिया! \u0301a")) == "नमस्ते-दुनिया! \u0301a"


def test_vocabulary_is_ordered_and_limited_by_word_frequency():
    vocabulary = WordVocabulary.build(["b a a", "a c b"], language="en")
    assert vocabulary.words == ["a", "b", "c"]
    assert len(vocabulary) == 7
    assert WordVocabulary.build(["b a a", "a c b"], min_freq=2, language="en").words == ["a", "b"]
    assert len(WordVocabulary.build(["b a a", "a c b"], max_size=5, language="en")) == 5
    with pytest.raises(DataError, match="lower min_freq"):
        WordVocabulary.build(["a b"], min_freq=9, language="en")


def test_unseen_words_are_unknown():
    vocabulary = WordVocabulary.build(["a cat"], language="en")
    ids = vocabulary.encode("a dog cat")
    assert ids[1] == UNK
    assert vocabulary.decode(ids) == "a <unk> cat"
    assert vocabulary.unknown_words("a dog cat!") == ["dog", "!"]
    assert vocabulary.pieces([PAD, UNK, BOS, EOS]) == ["<pad>", "<unk>", "<s>", "</s>"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_subwords_round_trip(kind):
    vocabulary = SubwordVocabulary.train(SENTENCES * 3, 90, kind, language="en+fr")
    assert len(vocabulary) == 90
    for sentence, ids in zip(SENTENCES, vocabulary.encode_all(SENTENCES), strict=True):
        assert ids == vocabulary.encode(sentence)
        assert vocabulary.decode([BOS, *ids, EOS, PAD]) == sentence
        assert "".join(vocabulary.pieces(ids)) == "▁" + sentence.replace(" ", "▁")
    assert vocabulary.decode(vocabulary.encode("Hi 漢")) == "Hi <unk>"
    assert SubwordVocabulary.train(SENTENCES * 3, 90, kind, language="en+fr").labels == vocabulary.labels


@pytest.mark.parametrize(("size", "message"), [(5000, r"size 5000 .*value <= \d+"), (10, r"size 10 .*vs \d+")])
def test_error_for_an_invalid_subword_size_states_the_limit(size, message):
    with pytest.raises(DataError, match=message):
        SubwordVocabulary.train(SENTENCES, size, "bpe", language="en")


@pytest.mark.parametrize(
    "vocabulary",
    [WordVocabulary.build(SENTENCES, language="fr"), SubwordVocabulary.train(SENTENCES, 90, language="fr")],
    ids=["word", "bpe"],
)
def test_checkpoint_stores_the_vocabulary_as_plain_data(vocabulary, tmp_path):
    torch.save({"hyper_parameters": vocabulary.as_dict()}, tmp_path / "a.ckpt")
    loaded = torch.load(tmp_path / "a.ckpt", weights_only=True)["hyper_parameters"]
    again = Vocabulary.from_dict(loaded)
    assert type(again) is type(vocabulary)
    assert again.language == "fr"
    assert again.as_dict() == vocabulary.as_dict()
    assert again.encode_all(SENTENCES) == vocabulary.encode_all(SENTENCES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("words", "do not describe a vocabulary"),
        ({"kind": "word", "language": "en"}, "do not describe a vocabulary"),
        ({"kind": "bpe", "language": "en", "model": "AAAA"}, "sentencepiece"),
    ],
)
def test_malformed_plain_data_is_rejected(data, message):
    with pytest.raises(DataError, match=message):
        Vocabulary.from_dict(data)


def test_words_with_exactly_the_minimum_frequency_are_kept():
    vocabulary = WordVocabulary.build(["a a b b c"], min_freq=2, language="en")
    assert [vocabulary.pieces([n])[0] for n in range(4, len(vocabulary))] == ["a", "b"]
    assert len(WordVocabulary.build(["a a b c"], max_size=6, language="en")) == 6
