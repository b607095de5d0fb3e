"""Translation scores from sacrebleu (Post, 2018), and the signatures that make them comparable.

Importing sacrebleu takes a quarter of a second, so functions import it only when they are called.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

# Languages without spaces between words, and their tokenizers in sacrebleu. "char" splits text into characters.
UNSPACED = {"zh": "zh", "ja": "char", "th": "char", "lo": "char", "km": "char", "my": "char", "bo": "char"}


def tokenizer_name(language: str) -> str:
    """Return the name of sacrebleu's tokenizer for a language. Languages with spaces between words use "13a"."""
    return UNSPACED.get(language.lower().replace("_", "-").split("-")[0], "13a")


def corpus_scores(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "en"
) -> dict[str, tuple[float, str]]:
    """Compute BLEU (`bleu`, Papineni et al., 2002) and chrF2 (`chrf`, Popović, 2015) of detokenized, cased text.

    Args:
        hypotheses: one translation per sentence.
        references: one or more references per sentence. Their number may vary.
        language: language code, such as `en`.

    Returns:
        For each metric, a score from 0 to 100 and sacrebleu's signature, which specifies how the score was computed.
    """
    from sacrebleu.metrics import BLEU, CHRF

    streams: list[Any] = list(zip_longest(*references))  # stream i contains reference i of every sentence, or None
    # `force=True` only suppresses a warning about spaces before full stops.
    metrics = {"bleu": BLEU(tokenize=tokenizer_name(language), force=True), "chrf": CHRF()}
    return {
        name: (metric.corpus_score(hypotheses, streams).score, str(metric.get_signature()))
        for name, metric in metrics.items()
    }


def lowercase_tokenized_bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str = "en"
) -> tuple[float, str]:
    """Return BLEU of lower-cased, Moses-tokenized text, as in published Multi30k results, and its signature.

    sacremoses normalizes and tokenizes the text with language-specific rules. In French, these rules separate `l'` from
    its noun. sacrebleu's tokenizer "13a" does not separate `l'`, and its scores are about one point lower.

    Args:
        hypotheses: one translation per sentence.
        references: one or more references per sentence.
        language: two-letter language code. Unknown languages use general rules, and languages in `UNSPACED` are
            tokenized as in `corpus_scores`.
    """
    from sacrebleu.metrics import BLEU
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    if tokenizer_name(language) != "13a":
        bleu = BLEU(lowercase=True, tokenize=tokenizer_name(language), force=True)
        return bleu.corpus_score(hypotheses, list(zip_longest(*references))).score, str(bleu.get_signature())
    tokenizer, normalizer = MosesTokenizer(lang=language), MosesPunctNormalizer(lang=language)

    def tokenized(text: str) -> str:
        return tokenizer.tokenize(normalizer.normalize(text).lower(), return_str=True, escape=False)

    streams: list[Any] = list(zip_longest(*([tokenized(text) for text in own] for own in references)))
    bleu = BLEU(tokenize="none", force=True)
    score = bleu.corpus_score([tokenized(text) for text in hypotheses], streams).score
    signature = str(bleu.get_signature()).replace("case:mixed", "case:lc").replace("tok:none", f"tok:moses-{language}")
    return score, signature


def group_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], language: str) -> float:
    """Return the smoothed BLEU of one or more sentences, even if they are shorter than four words.

    BLEU is computed only for n-gram orders that occur in the sentences. This score is for comparing sentences, not for
    publication.
    """
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True, tokenize=tokenizer_name(language), force=True)
    return bleu.corpus_score(hypotheses, list(zip_longest(*references))).score
