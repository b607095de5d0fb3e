"""A report on the sizes, overlap, unknown tokens and padding of a parallel corpus."""

from collections import Counter
from typing import Any

from lit_project.data.parallel_text.batches import EncodedPairs, EncodedText, PairText
from lit_project.data.parallel_text.leak_free_split import Pairs, overlap
from lit_project.text.preparation import Preparation
from lit_project.text.vocabulary import EOS, UNK

MANY_UNKNOWN = 0.2  # as a fraction of a split's tokens


def pair_texts(pairs: Pairs, train: Pairs, preparation: Preparation) -> list[PairText]:
    """Return each pair's texts, all references, and the translation most often paired with the source in `train`."""
    restore = preparation.restore
    references: dict[str, list[str]] = {source: [] for source, _ in pairs}
    for source, target in pairs:
        restored = restore(target)
        if restored not in references[source]:
            references[source].append(restored)
    known: dict[str, Counter[str]] = {}
    for source, target in train:
        if source in references:
            known.setdefault(source, Counter())[target] += 1
    # If translations are equally frequent, `most_common` returns the one that occurs first.
    memory = {source: restore(counts.most_common(1)[0][0]) for source, counts in known.items()}
    return [PairText(restore(s), restore(t), references[s], memory.get(s, "")) for s, t in pairs]


def describe(pairs: dict[str, Pairs], encoded: dict[str, EncodedPairs], padding: tuple[float, float]) -> dict[str, Any]:
    """Return the report on a corpus as plain data.

    Args:
        pairs: prepared pairs by split.
        encoded: encoded pairs by split. Some splits may be missing.
        padding: fraction of padding in source and target batches during training.
    """
    return {
        "splits": {name: {"pairs": len(own), "sources": len({s for s, _ in own})} for name, own in pairs.items()},
        "overlap_with_train": {name: overlap(pairs["train"], own) for name, own in pairs.items() if name != "train"},
        "overlap_of_val_and_test": overlap(pairs["val"], pairs["test"]),
        "unknown": {
            name: {"source": _unknown(own.source), "target": _unknown(own.target)} for name, own in encoded.items()
        },
        "padding": {"source": padding[0], "target": padding[1]},
    }


def _unknown(text: EncodedText) -> float:
    """Return the fraction of unknown tokens, excluding BOS and EOS."""
    tokens = ((text.flat > EOS) | (text.flat == UNK)).sum()
    return float((text.flat == UNK).sum() / tokens.clamp(min=1))


def unknown_warning(report: dict[str, Any]) -> str:
    """Return a warning about the split and side with the highest share of unknown tokens, or `""` if it is low."""
    shares = [(share, side, split) for split, own in report["unknown"].items() for side, share in own.items()]
    share, side, split = max(shares)
    if share < MANY_UNKNOWN:
        return ""
    return (
        f"warning: {share:.0%} of the {side} tokens in {split} are unknown. To reduce this, use subwords (vocabulary: "
        "bpe), a smaller min_freq, or vocabularies built from these data (keep_vocabularies: false)"
    )


def lines(report: dict[str, Any]) -> str:
    """Return the report as human-readable text."""
    parts = [f"{name} {own['pairs']:,} pairs ({own['sources']:,} sources)" for name, own in report["splits"].items()]
    text = ["data: " + ", ".join(parts)]
    others = {f"{name} and train": own for name, own in report["overlap_with_train"].items()}
    for name, own in {**others, "test and val": report["overlap_of_val_and_test"]}.items():
        shared = ", ".join(f"{count:,} {what}" for what, count in own.items())
        text.append(f"  shared by {name}: {shared}")
    unknown = [f"{name} {own['source']:.2%} / {own['target']:.2%}" for name, own in report["unknown"].items()]
    text.append(f"  unknown tokens (source / target): {', '.join(unknown)}")
    text.append(f"  padding (source / target): {report['padding']['source']:.1%} / {report['padding']['target']:.1%}")
    return "\n".join(text)
