"""Scores of translations by sacrebleu (Post 2018), with the signatures that make them comparable.

sacrebleu takes a quarter of a second to import: functions do so when they need it.
"""

from collections.abc import Sequence
from typing import Any

# Languages that put no spaces between words: Chinese in sacrebleu's own way, the others as single characters.
UNSPACED = {"zh": "zh", "ja": "char", "th": "char", "lo": "char", "km": "char", "my": "char", "bo": "char"}


def tokeniser(language: str) -> str:
    """Name of sacrebleu's tokeniser for a language: "13a" where words are apart."""
    return UNSPACED.get(language.lower().replace("_", "-").split("-")[0], "13a")


def _streams(references: Sequence[Sequence[str]]) -> list[list[Any]]:
    """References as sacrebleu takes them: first ones, second ones, …, with None where a sentence has fewer."""
    most = max(map(len, references))
    return [[own[i] if i < len(own) else None for own in references] for i in range(most)]


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "en"
) -> dict[str, tuple[float, str]]:
    """BLEU (`bleu`, Papineni et al. 2002) and chrF2 (`chrf`, Popović 2015) of detokenised, cased text.

    Args:
        hypotheses: one translation per sentence.
        references: one or more for each; the numbers may differ.
        language: its code, such as `en`.

    Returns:
        Name → score, 0 to 100, and sacrebleu's signature, which says how it was computed.
    """
    from sacrebleu.metrics import BLEU, CHRF

    streams = _streams(references)
    # force: only silences a warning about spaces before full stops
    metrics = {"bleu": BLEU(tokenize=tokeniser(language), force=True), "chrf": CHRF()}
    return {
        name: (metric.corpus_score(hypotheses, streams).score, str(metric.get_signature()))
        for name, metric in metrics.items()
    }


def lowercase_tokenised_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "en"
) -> tuple[float, str]:
    """BLEU of lower-cased text tokenised as Moses does, as published tables of Multi30k have it, and its signature.

    The text is normalised, lower-cased and tokenised by the rules of its language (sacremoses), which for French take
    `l'` from its noun; "13a" does not, and gives about a point less there.

    Args:
        hypotheses: one translation per sentence.
        references: one or more for each.
        language: code of two letters; English rules if it has none of its own; one of `UNSPACED` is tokenised as in
            `corpus_scores`.
    """
    from sacrebleu.metrics import BLEU
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    if tokeniser(language) != "13a":
        bleu = BLEU(lowercase=True, tokenize=tokeniser(language), force=True)
        return bleu.corpus_score(hypotheses, _streams(references)).score, str(bleu.get_signature())
    tokenizer, normalizer = MosesTokenizer(lang=language), MosesPunctNormalizer(lang=language)

    def tokenised(text: str) -> str:
        return tokenizer.tokenize(normalizer.normalize(text).lower(), return_str=True, escape=False)

    streams = _streams([[tokenised(text) for text in own] for own in references])
    bleu = BLEU(tokenize="none", force=True)
    score = bleu.corpus_score([tokenised(text) for text in hypotheses], streams).score
    signature = str(bleu.get_signature()).replace("case:mixed", "case:lc").replace("tok:none", f"tok:moses-{language}")
    return score, signature


def group_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "en") -> float:
    """Smoothed BLEU of one or a few sentences that may be shorter than four words: of the n-grams that they have.

    To compare sentences or groups of them, not to publish.
    """
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True, tokenize=tokeniser(language), force=True)
    return bleu.corpus_score(hypotheses, _streams(references)).score
