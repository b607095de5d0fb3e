"""Tests that the toy grammar creates correct and unambiguous French translations for every kind of sentence."""

from itertools import pairwise

import pytest

from lit_project.data.parallel_text.toy_grammar import _actions, _motions, _states, _subjects


@pytest.fixture(scope="module")
def everything():
    return dict(pair for subject in _subjects() for kind in (_states, _motions, _actions) for pair in kind(subject))


@pytest.mark.parametrize(
    ("english", "french"),
    [
        ("She is happy.", "Elle est heureuse."),
        ("This bird is not old.", "Cet oiseau n'est pas vieux."),
        ("These nurses were very proud.", "Ces infirmières étaient très fières."),
        ("The cows left on Monday.", "Les vaches sont parties lundi."),
        ("I arrive today.", "J'arrive aujourd'hui."),
        ("I bought an umbrella.", "J'ai acheté un parapluie."),
        ("I will buy a white scarf.", "J'achèterai une écharpe blanche."),
        ("We saw some white apples.", "Nous avons vu des pommes blanches."),
        ("This aunt will see these black hats.", "Cette tante verra ces chapeaux noirs."),
    ],
)
def test_sentences_have_correct_agreement_tense_and_elision(everything, english, french):
    assert everything.get(english) == french


def test_no_two_english_sentences_share_a_translation(everything):
    assert len(set(everything.values())) == len(everything)
    assert len(everything) > 100_000


def test_words_are_elided_before_every_vowel(everything):
    vowels = tuple("aeéêiouœ")
    for french in everything.values():
        words = french.lower().rstrip(".").split()
        for word, following in pairwise(words):
            if word in ("je", "le", "la", "ne", "ma", "ce"):
                assert not following.startswith(vowels), french
            if word == "cet":
                assert following.startswith(vowels), french
