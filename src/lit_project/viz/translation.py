"""Figures of translations: what the net looked at, and how BLEU depends on the length of the sentence."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from lit_project.viz.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGIBLE = 40  # pieces on an axis at full size; with more of them, everything shrinks to the same sheet
GLYPHS = {"⏹": "■"}  # the end of a sentence, by a sign that matplotlib's own font has


def attention_map(
    weights_TS: Tensor, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """Attention as a heat map: the source on top, the translation from top to bottom.

    Args:
        weights_TS: `(T, S)`, each row sums to 1.
        source_pieces: S labels, in the order of the sentence.
        target_pieces: T labels.
        title: written as it is.

    Raises:
        ValueError: the numbers of labels and weights differ.
    """
    sizes = len(target_pieces), len(source_pieces)
    if tuple(weights_TS.shape) != sizes:
        raise ValueError(f"weights {tuple(weights_TS.shape)} for {sizes[0]} target and {sizes[1]} source pieces")
    source_pieces, target_pieces = ([GLYPHS.get(p, p) for p in pieces] for pieces in (source_pieces, target_pieces))
    cell = 0.3 * min(1, LEGIBLE / max(sizes))  # inches
    font_size = 9 * cell / 0.3
    letters = 0.09 * cell / 0.3  # about the width of one, in inches
    widest, highest = (max(map(len, pieces)) * letters for pieces in (target_pieces, source_pieces))
    width, height = sizes[1] * cell + widest + 1.4, sizes[0] * cell + highest + 0.6
    figure = new_figure(max(width, 4), max(height, 2.5))
    axes = figure.add_subplot()
    image = axes.imshow(weights_TS.numpy(), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="attention", shrink=0.8)
    # parse_math: "$5 or $6" is text and no formula
    text: dict[str, Any] = {"fontsize": font_size, "parse_math": False}
    axes.xaxis.tick_top()
    axes.set_xticks(range(sizes[1]), labels=source_pieces, rotation=90, **text)
    axes.set_yticks(range(sizes[0]), labels=target_pieces, **text)
    axes.set_xticks([x - 0.5 for x in range(1, sizes[1])], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, sizes[0])], minor=True)
    axes.grid(which="minor", color="grey", alpha=0.25, linewidth=0.5)  # leads the eye from a weight to its words
    axes.tick_params(which="minor", length=0)
    if title:
        lines = textwrap.wrap(title, int(11 * figure.get_figwidth()))  # letters an inch; wrap=True parses formulas
        figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    return figure


def bleu_by_length(groups: Sequence[tuple[str, float, int]], title: str = "") -> Figure:
    """A bar a group of sentences, with the number of them on it.

    Args:
        groups: length of the source in words, such as "6–10"; BLEU of these sentences, 0 to 100; their number.
        title: of the figure.
    """
    labels, scores, counts = zip(*groups, strict=True) if groups else ((), (), ())
    figure = new_figure(max(4.5, 0.65 * len(groups) + 1.5), 4)
    axes = figure.add_subplot()
    bars = axes.bar(range(len(groups)), scores, color="tab:blue", alpha=0.8)
    axes.bar_label(bars, labels=[f"{count:,}" for count in counts], padding=2, fontsize=8)
    axes.set_xticks(range(len(groups)), labels=labels)
    axes.set(xlabel="words of the source (on the bars: sentences)", ylabel="BLEU", ylim=(0, 110), title=title)
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure
