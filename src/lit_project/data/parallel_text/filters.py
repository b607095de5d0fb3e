"""Filters for sentence pairs, by length or by the sentence prefixes of the classic PyTorch tutorial."""

from collections.abc import Sequence
from typing import Literal

from lit_engine.errors import DataError
from lit_project.data.parallel_text.leak_free_split import Pairs
from lit_project.text.preparation import Preparation

Overlong = Literal["drop", "truncate", "error"]
Ids = list[list[int]]


def filter_by_length(
    sources: Ids, targets: Ids, pairs: Pairs, max_length: int, overlong: Overlong | None
) -> tuple[Ids, Ids, int]:
    """Drop or truncate overlong pairs. Return the sources, the targets and the number of overlong pairs.

    Args:
        sources: token ids without BOS and EOS.
        targets: token ids of the translations without BOS and EOS.
        pairs: the pairs as text, for error messages.
        max_length: maximum number of tokens per side.
        overlong: how to treat longer training pairs, or None for evaluation pairs. Evaluation keeps all
            pairs and truncates long sources, but never targets, because scores depend on them.

    Raises:
        DataError: a pair is too long and `overlong` is "error", or no pairs remain.
    """
    train = overlong is not None
    long = [len(s) > max_length or (train and len(t) > max_length) for s, t in zip(sources, targets, strict=True)]
    count = sum(long)
    if not count:
        return sources, targets, 0
    if overlong == "error":
        first = long.index(True)
        raise DataError(
            f"{count} of {len(pairs)} training pairs exceed max_length {max_length}; the first has "
            f"{len(sources[first])} and {len(targets[first])} tokens: {pairs[first][0]!r}, {pairs[first][1]!r}"
        )
    if overlong == "drop":
        if count == len(pairs):
            raise DataError(f"max_length {max_length} drops all {count} training pairs: use a larger value")
        kept = [i for i, is_long in enumerate(long) if not is_long]
        return [sources[i] for i in kept], [targets[i] for i in kept], count
    return [s[:max_length] for s in sources], [t[:max_length] for t in targets] if train else targets, count


# In text without punctuation, contractions contain a space instead of an apostrophe.
CLASSIC_PREFIXES = (
    "i am ", "i m ", "i'm ",
    "he is", "he s ", "he's ",
    "she is", "she s ", "she's ",
    "you are", "you re ", "you're ",
    "we are", "we re ", "we're ",
    "they are", "they re ", "they're ",
)  # fmt: skip

_PLAIN = Preparation(lowercase=True, strip_accents=True)


def filter_by_prefix(pairs: Pairs, prefixes: Sequence[str], source: str, target: str) -> list[tuple[str, str]]:
    """Return the pairs whose English side starts with one of `prefixes`, ignoring case and accents.

    Raises:
        DataError: neither side is English ("en"), or no pairs remain.
    """
    if "en" not in (source, target):
        raise DataError(f"prefixes requires English sentences, but the languages are {source} and {target}")
    side = 0 if source == "en" else 1
    # "|" protects a final space, which `_PLAIN` would remove.
    starts = tuple(_PLAIN(f"{prefix}|")[:-1].replace("’", "'") for prefix in prefixes)
    kept = [pair for pair in pairs if _PLAIN(pair[side]).replace("’", "'").startswith(starts)]
    if not kept:
        raise DataError(f"prefixes: none of {len(pairs)} English sentences start with {', '.join(map(repr, starts))}")
    return kept
