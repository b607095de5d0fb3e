"""Scores of evaluated translations."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lit_project.text.scores import corpus_scores, group_bleu, lowercase_tokenized_bleu

GROUPS = 12  # More length groups would be hard to compare in a bar chart.


@dataclass
class Row:
    """A sentence pair and the model's translation of its source.

    Attributes:
        index: index of the pair in its split.
        text: the pair as text (`PairText`).
        hypothesis: the model's translation.
        tokens: token ids of the hypothesis.
        attention: output of `Translator.attention` if an attention map is drawn.
    """

    index: int
    text: Any
    hypothesis: str
    tokens: list[int]
    attention: Any = field(default=None, compare=False)


def first_of_each_source(rows: Sequence[Row]) -> list[Row]:
    """Return the row with the lowest index for each source, sorted by index."""
    by_source: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: row.index):
        by_source.setdefault(row.text.source, row)
    return list(by_source.values())


def scores(rows: Sequence[Row], language: str) -> tuple[dict[str, float], dict[str, str]]:
    """Return each metric's score (0 to 100) and sacrebleu's signature, as two dictionaries."""
    once = first_of_each_source(rows)
    hypotheses, references = [row.hypothesis for row in once], [row.text.references for row in once]
    found = corpus_scores(hypotheses, references, language)
    found["bleu_lowercase"] = lowercase_tokenized_bleu(hypotheses, references, language)
    if len(rows) > len(once):
        single = corpus_scores([row.hypothesis for row in rows], [[row.text.target] for row in rows], language)
        found |= {f"{name}_single": score for name, score in single.items()}
    return {name: score for name, (score, _) in found.items()}, {name: text for name, (_, text) in found.items()}


def baselines(rows: Sequence[Row], language: str) -> dict[str, float]:
    """Return the scores of two baselines, which copy the source or look up its translation in the training set."""
    once = first_of_each_source(rows)
    references = [row.text.references for row in once]
    values: dict[str, float] = {}
    for name, texts in (("copy", [row.text.source for row in once]), ("memory", [row.text.memory for row in once])):
        found = corpus_scores(texts, references, language)
        values |= {f"{metric}_{name}": score for metric, (score, _) in found.items()}
    return values


def by_length(rows: Sequence[Row], language: str) -> list[tuple[str, float, int]]:
    """Return the source length in words (such as "6–10"), BLEU and sentence count of each group, shortest first."""
    groups: dict[int, list[Row]] = defaultdict(list)
    lengths = [len(row.text.source.split()) for row in rows]
    longest = max(lengths)
    width = next(width for width in (1, 2, 5, 10, 20, 50, longest) if longest <= GROUPS * width)
    for row, length in zip(rows, lengths, strict=True):
        groups[(length - 1) // width].append(row)
    found = []
    for number, members in sorted(groups.items()):
        first, last = number * width + 1, (number + 1) * width
        bleu = group_bleu([row.hypothesis for row in members], [row.text.references for row in members], language)
        found.append((str(first) if first == last else f"{first}–{last}", bleu, len(members)))
    return found
