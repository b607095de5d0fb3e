"""Tests how sentences are prepared, and how their preparation is reversed."""

import pytest

from lit_project.text.preparation import Preparation


def test_composes_characters_and_normalizes_white_space():
    assert Preparation()("  C\u0327a\u00a0va\u202f?\t ") == "Ça va ?"


def test_options_lowercase_text_strip_accents_and_separate_punctuation():
    assert Preparation(lowercase=True)("ÉLÈVE") == "élève"
    assert Preparation(strip_accents=True)("Élève ça") == "Eleve ca"
    assert Preparation(space_punctuation=True)('He said: "Hi!"') == 'He said : " Hi ! "'


@pytest.mark.parametrize("sentence", ["It costs 3.50, not 1,000.", "At 5 p.m. exactly", "I'm half-way", "...and so"])
def test_spacing_does_not_split_numbers_or_words(sentence):
    spaced = Preparation(space_punctuation=True)(sentence)
    for whole in ("3.50", "1,000", "p.m", "I'm", "half-way", "...and"):
        assert (whole in sentence) == (whole in spaced)


@pytest.mark.parametrize(
    "sentence",
    [
        "Hi!",
        'He said: "Hi, you!"',
        "Wait... (what?)",
        "“Why?” she asked; nobody knew.",
        "Well, I'm 3.5.",
        "I use .NET.",
        "He wrote ...and left.",
    ],
)
def test_restore_undoes_spacing(sentence):
    preparation = Preparation(space_punctuation=True)
    assert preparation.restore(preparation(sentence)) == sentence
    assert preparation(preparation(sentence)) == preparation(sentence)
