"""Creates a comparison page with tables, curves, and the largest gains and losses by class or length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from lit_engine.run.metric_names import get_stage, is_detail, strip_stage
from lit_engine.tools.pages.chart import COLOURS, STYLE, Series, chart, choice, legend, positions, swatch
from lit_engine.tools.pages.html import Html, escape_html, heading, link, page, paragraph, table, text_of
from lit_engine.tools.runs.columns import Column, cell_of, columns_of, labels, number, short_names, table_of
from lit_engine.tools.runs.differences import Comparison, Row, mean_sd

CHANGES = 6  # number of changes to keep at each end of the list
PANELS = 4  # maximum number of scatter plots per option, and of initially visible curve plots
POINTS = 100  # maximum number of points per curve
X = ("epoch", "step", "minutes")
ROUNDING = 1e-5  # smaller changes are float32 rounding errors


def page_of(found: Comparison, title: str, footer: str, folder: Path) -> str:
    """Return the HTML of the page, with links relative to `folder`."""
    drawn = curves(found)
    parts = [STYLE, *map(paragraph, found.notes()), _table(table_of(found), found.rows, folder, bool(drawn))]
    if drawn:
        what = "Mean ± 1 standard deviation of the finished runs." if found.over else "One line per run."
        parts += [heading("Curves"), paragraph(what, soft=True), *drawn]
    if plots := scatter(found):
        parts += [heading("Options and metrics"), *plots]
    for kind, lines in changes(found).items():
        before, after = labels(found, found.given)
        parts += [heading(f"Largest changes in the test: {kind}"), paragraph(f"From {before} to {after}.", soft=True)]
        cells = [list(map(cell_of, line)) for line in lines]
        parts.append(table([kind, "before", "after", "change"], cells))
    if found.over:
        runs = [Row([run], False) for row in found.rows for run in row.runs]
        parts += [heading("Single runs"), _table(columns_of(found, runs, [*found.over, *found.keys]), runs, folder)]
    return page(title, parts, footer)


def _table(columns: Sequence[Column], rows: Sequence[Row], folder: Path, marked: bool = False) -> str:
    """Return a table in which each run links to its page. If `marked`, rows show the colours of their curves."""
    titles = [column.short or column.name for column in columns]
    cells = [list(line) for line in zip(*(column.cells for column in columns), strict=True)]
    if columns[0].name == "metric":  # the rows are the metrics of a single group
        return table(titles, cells)
    for order, (line, row) in enumerate(zip(cells, rows, strict=True)):
        if columns[0].name == "run":
            line[0] = link(text_of(line[0]), row.runs[0].path / "index.html", folder)
        if marked:
            text = Html(swatch(order) + escape_html(text_of(line[0])))
            line[0] = text if isinstance(line[0], str) else (text, line[0][1])
    return table(titles, cells, [f"s{order}" for order in range(len(rows))] if marked else ())


def curves(found: Comparison) -> list[str]:
    """Return the curves of all metrics by epoch, step and time, and controls to select them.

    A group is drawn as the mean of its finished runs with a band of one standard deviation, at points where all runs
    have a value. The list is empty if the tasks differ.
    """
    wanted = [name for name in found.chosen if get_stage(name) != "test"] or found.monitors
    wanted = wanted or [name for name in found.metrics if get_stage(name) == "val" and strip_stage(name) == "loss"]
    known = dict.fromkeys(name for run in found.runs for row in run.rows for name in row if row[name])
    drawn = [name for name in known if name not in X[:2] and get_stage(name) != "test" and not is_detail(name)]
    metrics = sorted(drawn, key=lambda name: (wanted.index(name) if name in wanted else len(wanted), get_stage(name)))
    shown = [n for n, name in enumerate(metrics) if name in wanted][:PANELS]
    if not shown or len(found.tasks) > 1:
        return []
    names, panels = labels(found, found.rows), []
    each_epoch = all(
        len(run.curve(metrics[n], "epoch")) == len(run.curve(metrics[n], "step")) for n in shown for run in found.runs
    )
    # Later series are drawn on top. A run is drawn above its later forks, which start with a copy of its curve.
    started = [row.runs[0].started.timestamp() for row in found.rows]
    orders = sorted(range(len(found.rows)), key=lambda order: (order < len(COLOURS), -started[order], -order))
    for place, metric in enumerate(metrics):
        for number_of, by in enumerate(X):
            series = [_line(found.rows[order], metric, by, order, names[order]) for order in orders]
            if series := [one for one in series if one.points]:
                log = strip_stage(metric).endswith("loss") and min(y for one in series for _, y in one.points) > 0
                panels.append(chart(metric, by, series, (False, log), classes=f"metric-{place} x-{number_of}"))
    if not panels:
        return []
    return [
        choice("x axis:", "radio", X, [0 if each_epoch else 1], "x"),
        choice("metrics:", "checkbox", metrics, shown, "metric"),
        legend(names),
        f'<div class="charts">{"".join(panels)}</div>',
    ]


def _line(row: Row, metric: str, by: str, order: int, name: str) -> Series:
    """Return the curve of a row, with at most `POINTS` points."""
    lines = [run.curve(metric, "epoch" if by == "epoch" else "step") for run in row.counted]
    x = sorted(set.intersection(*map(set, lines))) if lines else []
    x = [at for at in x if all(math.isfinite(line[at]) for line in lines)]
    x = [*x[: -1 : math.ceil(len(x) / POINTS) or 1], *x[-1:]]
    if not x:
        return Series(order, name, [])
    means, sds, _ = zip(*(mean_sd([line[at] for line in lines]) for at in x), strict=True)
    if by == "minutes":  # computed from the mean step duration, because metrics.csv contains no times
        last = [max(run.curve(metric, "step")) for run in row.counted]
        steps = [step - run.forked_at[1] for run, step in zip(row.counted, last, strict=True)]
        timed = [(run.seconds, n) for run, n in zip(row.counted, steps, strict=True) if n > 0 and run.is_timed]
        pace = mean_sd([seconds / n / 60 for seconds, n in timed])[0]
        x = [at * pace for at in x] if math.isfinite(pace) else []
    return Series(order, name, [*zip(x, means, strict=False)], sds if len(lines) > 1 else ())


def scatter(found: Comparison) -> list[str]:
    """Return scatter plots of metrics against the options that differ, with one point per table row."""
    metrics, names, panels = found.metrics[:PANELS], labels(found, found.rows), []
    if len(found.rows) < 3 or len(found.tasks) > 1:
        return []
    for place, (key, short) in enumerate(zip(found.keys, short_names(found.keys), strict=True)):
        values = [row.runs[0].options.get(key) for row in found.rows]
        for metric in metrics:
            ys = [row.metric(metric) for row in found.rows]
            good = [n for n, (y, _, _) in enumerate(ys) if math.isfinite(y)]
            if good:
                xs, log, texts = positions([values[n] for n in good])
                series = [
                    Series(n, names[n], [(x, ys[n][0])], [0 if math.isnan(ys[n][1]) else ys[n][1]], dots=True)
                    for x, n in zip(xs, good, strict=True)
                ]
                panels.append(chart(metric, short, series, (log, False), texts, f"option-{place}"))
    if not panels:
        return []
    first = next((place for place, key in enumerate(found.keys) if key != "seed_everything"), 0)
    return [choice("option:", "radio", short_names(found.keys), [first], "option"),
            f'<div class="charts">{"".join(panels)}</div>']  # fmt: skip


def changes(found: Comparison) -> dict[str, list[tuple[str, float, float, float]]]:
    """Return the largest changes in each per-class or per-length metric from the first to the second row.

    Changes (name, old, new, difference) start with the largest increase. The result is empty unless there are two rows.
    """
    if len(found.given) != 2:
        return {}
    before, after = found.given
    told: dict[str, list[tuple[str, float, float, float]]] = {}
    for kind in dict.fromkeys(kind for run in found.runs for kind in run.parts):
        lines = []
        for name in dict.fromkeys(name for run in found.runs for name in run.parts.get(kind, {})):
            old, new = (row.metric(f"test/{kind}/{name}")[0] for row in (before, after))
            if old == old and new == new:
                lines.append((name, old, new, new - old))
        lines.sort(key=lambda line: -line[-1])
        if lines:
            told[kind.replace("_", " ")] = lines if len(lines) <= 2 * CHANGES else [*lines[:CHANGES], *lines[-CHANGES:]]
    return told


def summary(told: Sequence[tuple[str, float, float, float]]) -> str:
    """Return a line with the three largest increases and decreases."""
    up = [f"{name} +{number(change)}" for name, _, _, change in told[:3] if change > ROUNDING]
    down = [f"{name} {number(change)}" for name, _, _, change in told[::-1][:3] if change < -ROUNDING]
    return f"up: {', '.join(up) or 'none'}; down: {', '.join(down) or 'none'}"
