"""Keeps the pairs whose English side begins in a certain way, as the classic introductions to seq2seq do."""

from collections.abc import Sequence

from lit_project.data.translation.graph import Pairs
from lit_project.errors import DataError
from lit_project.text.preparation import Preparation

# With a space for the apostrophe, as text without punctuation has it, and with the apostrophe.
CLASSIC_PREFIXES = (
    "i am ", "i m ", "i'm ",
    "he is", "he s ", "he's ",
    "she is", "she s ", "she's ",
    "you are", "you re ", "you're ",
    "we are", "we re ", "we're ",
    "they are", "they re ", "they're ",
)  # fmt: skip

_PLAIN = Preparation(lowercase=True, strip_accents=True)


def with_prefix(pairs: Pairs, prefixes: Sequence[str], source: str, target: str) -> list[tuple[str, str]]:
    """The pairs whose English side, in lower case and without accents, starts with one of `prefixes`.

    Raises:
        DataError: neither side is English ("en"), or no pair is left.
    """
    if "en" not in (source, target):
        raise DataError(f"prefixes: they are those of English sentences, but the pair is {source}-{target}")
    side = 0 if source == "en" else 1
    starts = tuple(prefixes)
    kept = [pair for pair in pairs if _PLAIN(pair[side]).replace("’", "'").startswith(starts)]
    if not kept:
        raise DataError(f"prefixes: none of {len(pairs)} English sentences starts with {', '.join(map(repr, starts))}")
    return kept
