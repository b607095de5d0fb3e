"""Tests scores and their signatures for several references and languages."""

import pytest
from sacrebleu.metrics import BLEU

from lit_project.text.scores import corpus_scores, lowercase_tokenized_bleu

REFERENCE = "The quick brown fox jumps over the dog."


def bleu(*args):
    return corpus_scores(*args)["bleu"][0]


def test_sentences_may_have_different_numbers_of_references():
    hypotheses = ["A small cat sleeps here.", REFERENCE]
    references = [["One little cat is asleep.", "A small cat sleeps here."], [REFERENCE]]
    score, signature = corpus_scores(hypotheses, references)["bleu"]
    assert score == pytest.approx(100)
    assert "nrefs:var" in signature
    assert bleu(hypotheses, [own[:1] for own in references]) < 90


def test_case_affects_only_the_cased_score():
    score, signature = lowercase_tokenized_bleu([REFERENCE.upper()], [[REFERENCE]])
    assert score == pytest.approx(100)
    assert "case:lc" in signature
    assert "tok:moses-en" in signature
    assert bleu([REFERENCE.upper()], [[REFERENCE]]) < 10


@pytest.mark.parametrize(("language", "name"), [("zh-CN", "zh"), ("ja", "char")])
def test_languages_without_spaces_use_their_own_tokenization(language, name):
    reference, other = "我们明天早上去学校读书。", "我们明天晚上去学校读书。"
    score, signature = corpus_scores([reference], [[reference]], language)["bleu"]
    assert score == pytest.approx(100)
    assert f"tok:{name}" in signature
    assert 50 < bleu([other], [[reference]], language) < 90  # one of twelve characters is wrong
    assert lowercase_tokenized_bleu([reference], [[reference]], language)[0] == pytest.approx(100)
    latin = f"ABC {reference}"
    assert lowercase_tokenized_bleu([latin.lower()], [[latin]], language)[0] == pytest.approx(100)


def test_french_is_tokenized_by_its_own_rules():
    """Moses splits "l'homme", so three of the four tokens are correct. With "13a", two of three tokens are correct."""
    hypothesis, reference = "l'homme arrive ici", "l'homme arrive demain"
    moses, _ = lowercase_tokenized_bleu([hypothesis] * 2, [[reference]] * 2, "fr")
    tokens = BLEU(tokenize="none", force=True)
    expected = tokens.corpus_score(["l' homme arrive ici"] * 2, [["l' homme arrive demain"] * 2]).score
    assert moses == pytest.approx(expected)
