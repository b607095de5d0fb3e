"""Creates the page of a comparison: tables, curves, and the classes or lengths with the largest gains and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lit_engine.callbacks.drawing import new_figure, scale
from lit_engine.run.metric_names import base_of, stage_of
from lit_engine.tools.pages.html import Cell, heading, link, page, paragraph, picture, table
from lit_engine.tools.runs.columns import Column, columns_of, labels, number, table_of
from lit_engine.tools.runs.differences import Comparison, Row, mean_sd

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Line colours: petroff10 without its greys (Petroff 2021). Further lines are grey. The colours stay distinguishable for
# colour-blind people and after being inverted on dark pages.
COLOURS = ("#3f90da", "#ffa90e", "#bd1f01", "#832db6", "#a96b59", "#e76300", "#b9ac70", "#92dadd")
COLOURED = len(COLOURS)
CHANGES = 6  # number of classes with the largest gains, and likewise with the largest losses
PANELS = 4
ROUNDING = 1e-5  # smaller changes are float32 rounding errors


def page_of(found: Comparison, title: str, footer: str, folder: Path) -> str:
    """Return the HTML of the page, with links relative to `folder`."""
    parts = [*map(paragraph, found.notes()), _table(table_of(found), found.rows, folder)]
    if (figure := curves(found)) is not None:
        what = "Mean ± 1 standard deviation of the finished runs." if found.over else "One line per run."
        parts += [heading("Curves"), paragraph(what, soft=True), picture(figure, "learning curves")]
    for kind, lines in changes(found).items():
        before, after = labels(found, found.given)
        parts += [heading(f"Largest changes in the test: {kind}"), paragraph(f"From {before} to {after}.", soft=True)]
        cells: list[list[Cell]] = [[name, *((number(v), v) for v in values)] for name, *values in lines]
        parts.append(table([kind, "before", "after", "change"], cells))
    if found.over:
        runs = [Row([run], False) for row in found.rows for run in row.runs]
        parts += [heading("Single runs"), _table(columns_of(found, runs, [*found.over, *found.keys]), runs, folder)]
    return page(title, parts, footer)


def _table(columns: Sequence[Column], rows: Sequence[Row], folder: Path) -> str:
    """Return a table in which each run links to its page."""
    cells = [list(line) for line in zip(*(column.cells for column in columns), strict=True)]
    if columns[0].name == "run":
        for line, row in zip(cells, rows, strict=True):
            line[0] = link(str(line[0]), row.runs[0].path / "index.html", folder)
    return table([column.short or column.name for column in columns], cells)


def curves(found: Comparison) -> Figure | None:
    """Plot each metric in a panel with one line per row. Return None if there is nothing to draw or the tasks differ.

    A group is drawn as the mean of its finished runs, where all have a value, with a band of one standard deviation.
    """
    wanted = [name for name in found.chosen if stage_of(name) != "test"] or found.monitors
    wanted = wanted or [name for name in found.metrics if stage_of(name) == "val" and base_of(name) == "loss"]
    metrics = [name for name in wanted if any(run.curve(name, "step") for run in found.runs)][:PANELS]
    if not metrics or len(found.tasks) > 1:
        return None
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(5.6, 3.6 * len(metrics))  # legible on a phone
    names = labels(found, found.rows)
    legend: dict[str, Artist] = {}
    for place, metric in enumerate(metrics, 1):
        axes, shown, bands = figure.add_subplot(len(metrics), 1, place), [], []
        each_epoch = all(len(run.curve(metric, "epoch")) == len(run.curve(metric, "step")) for run in found.runs)
        by = "epoch" if each_epoch else "step"
        for order, row in enumerate(found.rows):
            lines = [run.curve(metric, by) for run in row.counted]
            x = sorted(set.intersection(*map(set, lines))) if lines else []
            if not x:
                continue
            colour, alpha = (COLOURS[order], 1.0) if order < COLOURED else ("grey", 0.3)
            means, sds, counts = zip(*(mean_sd([line[at] for line in lines]) for at in x), strict=True)
            # A run is drawn above its later forks, which start with a copy of its curve.
            above = (3 if alpha == 1 else 2) - row.runs[0].begun.timestamp() / 1e12
            (line,) = axes.plot(x, means, color=colour, alpha=alpha, zorder=above, linewidth=1.4)
            line.set_marker("o" if len(x) == 1 else "")
            name = names[order] if len(names[order]) < 60 else f"…{names[order][-58:]}"
            legend.setdefault(name if order < COLOURED else "others", line)
            shown += [mean for mean in means if math.isfinite(mean)]
            if counts[0] > 1:
                low, high = ([mean + sign * sd for mean, sd in zip(means, sds, strict=True)] for sign in (-1, 1))
                bands.append((x, low, high, colour, 0.2 * alpha))
        if shown:
            scale(axes, metric, shown)
        # mean − sd may be negative, which a logarithmic axis cannot show.
        least = min(shown) / 2 if axes.get_yscale() == "log" else -math.inf
        for x, low, high, colour, alpha in bands:
            axes.fill_between(x, [max(y, least) for y in low], high, color=colour, alpha=alpha, linewidth=0)
        axes.set(title=metric, xlabel=by)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    if not legend:
        return None
    columns = max(1, 60 // (8 + max(map(len, legend))))
    figure.legend([*legend.values()], [*legend], loc="outside lower center", ncols=columns, frameon=False)
    return figure


def changes(found: Comparison) -> dict[str, list[tuple[str, float, float, float]]]:
    """Map each kind of per-class or per-length metric to its largest changes from the first to the second row.

    Changes are (name, before, after, difference), largest gain first. The result is empty unless there are two rows.
    """
    if len(found.given) != 2:
        return {}
    before, after = found.given
    told: dict[str, list[tuple[str, float, float, float]]] = {}
    for kind in dict.fromkeys(kind for run in found.runs for kind in run.parts):
        lines = []
        for name in dict.fromkeys(name for run in found.runs for name in run.parts.get(kind, {})):
            old, new = before.part(kind, name), after.part(kind, name)
            if old == old and new == new:
                lines.append((name, old, new, new - old))
        lines.sort(key=lambda line: -line[-1])
        if lines:
            told[kind.replace("_", " ")] = lines if len(lines) <= 2 * CHANGES else [*lines[:CHANGES], *lines[-CHANGES:]]
    return told


def summary(told: Sequence[tuple[str, float, float, float]]) -> str:
    """Return a line with the three largest gains and losses."""
    gained = [f"{name} +{number(change)}" for name, _, _, change in told[:3] if change > ROUNDING]
    lost = [f"{name} {number(change)}" for name, _, _, change in told[::-1][:3] if change < -ROUNDING]
    return f"gained: {', '.join(gained) or 'none'}; lost: {', '.join(lost) or 'none'}"
