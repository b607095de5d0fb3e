"""Sentences that are longer than the model takes."""

from collections.abc import Callable
from typing import Literal

from lit_project.data.translation.graph import Pairs
from lit_project.errors import DataError

Overlong = Literal["drop", "truncate", "error"]
Ids = list[list[int]]


def within(
    sources: Ids, targets: Ids, pairs: Pairs, max_length: int, overlong: Overlong | None
) -> tuple[Ids, Ids, dict[str, int]]:
    """Sources and targets of at most `max_length` tokens, and how many pairs were "dropped" and "truncated".

    Args:
        sources: ids without BOS and EOS.
        targets: the same of the translations.
        pairs: their text, for messages.
        max_length: tokens of a side.
        overlong: what happens to training pairs; None for evaluation pairs, of which only the source is cut: the target
            is what is scored.

    Raises:
        DataError: there is one and `overlong` is "error", or none is left.
    """
    counts = {"dropped": 0, "truncated": 0}
    train = overlong is not None
    long = [len(s) > max_length or (train and len(t) > max_length) for s, t in zip(sources, targets, strict=True)]
    count = sum(long)
    if not count:
        return sources, targets, counts
    if overlong == "error":
        first = long.index(True)
        raise DataError(
            f"{count} of {len(pairs)} training pairs exceed max_length {max_length}; the first has "
            f"{len(sources[first])} and {len(targets[first])} tokens: {pairs[first][0]!r}, {pairs[first][1]!r}"
        )
    if overlong == "drop":
        counts["dropped"] = count
        if count == len(pairs):
            raise DataError(f"max_length {max_length} drops all {count} training pairs")
        kept = [i for i, is_long in enumerate(long) if not is_long]
        return [sources[i] for i in kept], [targets[i] for i in kept], counts
    counts["truncated"] = count
    return [s[:max_length] for s in sources], [t[:max_length] for t in targets] if train else targets, counts


def short(pairs: Pairs, max_length: int, words: tuple[Callable[[str], int], ...]) -> list[tuple[str, str]]:
    """The pairs with at most `max_length` words on both sides.

    Args:
        pairs: as they are written in the data.
        max_length: words of a side.
        words: counts those of a source and those of a target; never more than there are characters.

    Raises:
        DataError: none is left.
    """
    kept = [
        pair
        for pair in pairs
        if all(len(text) <= max_length or count(text) <= max_length for text, count in zip(pair, words, strict=True))
    ]
    if pairs and not kept:
        raise DataError(f"max_length {max_length} drops all {len(pairs)} pairs")
    return kept
