"""The figures of regression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from lit_project.viz.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 5000  # more would hide each other


def predicted_against_true(
    points: Mapping[str, tuple[Tensor, Tensor]], titles: Mapping[str, str], title: str = "", columns: int = 4
) -> Figure:
    """One panel a target, with the diagonal on which a perfect prediction lies.

    Args:
        points: target → true values and predictions, both `(N,)`; of many, points at even distances are drawn.
        titles: target → title of its panel.
        title: of the figure.
        columns: panels in a row, at most.
    """
    columns = min(columns, len(points))
    rows = -(-len(points) // columns)
    figure = new_figure(4.6 * columns, 4.8 * rows)
    for number, (name, (true, predicted)) in enumerate(points.items()):
        step = -(-len(true) // MOST_POINTS) or 1
        true, predicted = true[::step], predicted[::step]
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.scatter(true.numpy(), predicted.numpy(), s=14, alpha=0.5, linewidths=0)
        low, high = min(true.min().item(), predicted.min().item()), max(true.max().item(), predicted.max().item())
        margin = 0.05 * (high - low) or 1.0
        ends = low - margin, high + margin
        axes.plot(ends, ends, color="grey", linewidth=0.8, linestyle="--", label="predicted = true")
        axes.set(xlabel=f"true {name}", ylabel=f"predicted {name}", title=titles.get(name, name), xlim=ends, ylim=ends)
        axes.set_aspect("equal")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    figure.suptitle(title, fontsize=10)
    return figure
