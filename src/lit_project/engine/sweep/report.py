"""What a sweep has found: a table, plots, a page, and the config of the best trial."""

import csv
import math
from collections.abc import Sequence
from html import escape

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from optuna.importance import get_param_importances

from ..errors import UserError
from ..project import PROGRAM
from ..run import write_text
from .study import Row, Study

SHOWN = 10  # rows of the printed table
PLOTS = {
    "best_so_far": "The metric of each trial, and the best up to it.",
    "importance": "How much each parameter decides whether a trial is among the best tenth (PED-ANOVA).",
    "parameters": "The metric over each parameter; a point is a trial.",
}
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em}table{border-collapse:collapse;font-size:13px}"
    "td,th{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left;overflow-wrap:anywhere}"
    "tr.failed{color:#a00}tr.stopped,tr.unfinished{color:#777}img{max-width:100%}"
)


def short(value: object) -> str:
    """A value in few characters."""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")


def lines(rows: Sequence[Row], metric: str) -> list[str]:
    """The best trials as lines of text, and how many there are of each state."""
    found = [f"{'trial':>5}  {'state':<10} {metric:>9}"] if rows else []
    for row in rows[:SHOWN]:
        values = "  ".join(f"{name}={short(value)}" for name, value in row.values.items())
        found.append(f"{row.number:>5}  {row.state:<10} {row.value:>9.4f}  {values}")
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return [*found, f"{len(rows)} trials: {counts or 'none yet'}"]


def write_report(study: Study, rows: Sequence[Row]) -> None:
    """Writes `trials.csv`, `best.yaml`, the plots and `index.html` of a sweep, whether it has ended or not.

    Raises:
        UserError: they cannot be written.
    """
    names = [parameter.name for parameter in study.config.parameters]
    head = ["trial", "state", study.config.metric, *names, "seconds", "run", "error"]
    table = [[r.number, r.state, r.value, *(r.values[n] for n in names), r.seconds, r.run, r.error] for r in rows]
    try:
        with (study.folder / "trials.csv").open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *table])
        _write_best(study, rows)
        plots = _draw(study, sorted(row for row in rows if row.state == "finished"))
        body = "".join(
            f'<tr class="{row[1]}">{"".join(f"<td>{escape(short(cell))}</td>" for cell in row)}</tr>' for row in table
        )
        write_text(
            study.folder / "index.html",
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(study.folder.name)}</title>'
            f"<style>{STYLE}</style><h1>{escape(study.folder.name)}</h1>"
            f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>{plots}</html>\n",
        )
    except OSError as error:
        raise UserError(f"cannot write the report to {study.folder}: {error.strerror or error}") from error


def _write_best(study: Study, rows: Sequence[Row]) -> None:
    file = study.folder / "best.yaml"
    file.unlink(missing_ok=True)
    if rows and rows[0].good and (rows[0].run / "config.yaml").exists():  # neither removed nor on another machine
        lines = (rows[0].run / "config.yaml").read_text().splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith("#"))
        text = text.replace(
            "\ntest_after_fit: false\n", "\ntest_after_fit: true\n"
        )  # trials see no test data; this may
        found = f"trial {rows[0].number}, {study.config.metric} {rows[0].value:.6g}"
        head = f"# The best of {len(rows)} trials of a sweep: {found}.\n#\n#   {PROGRAM} fit -c {file}\n#\n"
        write_text(file, head + text)


def _draw(study: Study, rows: Sequence[Row]) -> str:
    """Draws what can be drawn of trials that have finished; returns the part of the page."""
    page = ""
    for plot, (name, meaning) in zip((_best_so_far, _importance, _parameters), PLOTS.items(), strict=True):
        figure = plt.figure(figsize=(9, 4), layout="constrained")
        page += f"<h2>{name.replace('_', ' ').capitalize()}</h2><p>{meaning}</p>"
        if len(rows) > 1 and plot(study, rows, figure):
            figure.savefig(study.folder / f"{name}.png", dpi=120)
            page += f'<img src="{name}.png" alt="{name}">'
        else:
            page += "<p>Not drawn: it needs more trials.</p>"
        plt.close(figure)
    return page


def _best_so_far(study: Study, rows: Sequence[Row], figure: Figure) -> bool:
    axes, numbers, values = figure.subplots(), [row.number for row in rows], [row.value for row in rows]
    best = [study.config.best(values[: n + 1]) for n in range(len(rows))]
    axes.plot(numbers, values, "o", label="trial")
    axes.step(numbers, best, where="post", label="best so far")
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="trial", ylabel=study.config.metric)
    axes.legend()
    return True


def _importance(study: Study, rows: Sequence[Row], figure: Figure) -> bool:
    try:
        found = get_param_importances(study.connect())
    except (ValueError, RuntimeError):  # too few trials, or they do not differ
        return False
    labels = {parameter.label: parameter.name for parameter in study.config.parameters}
    figure.subplots().barh([labels[name] for name in found][::-1], [*found.values()][::-1])
    return bool(found)


def _parameters(study: Study, rows: Sequence[Row], figure: Figure) -> bool:
    """With the values that were used, where Optuna draws multiples or quantiles."""
    varied = [name for name in rows[0].values if len({short(row.values[name]) for row in rows}) > 1]
    figure.set_size_inches(9, 1 + 2.5 * math.ceil(len(varied) / 2))
    for n, name in enumerate(varied):
        axes, values = figure.add_subplot(math.ceil(len(varied) / 2), 2, n + 1), [row.values[name] for row in rows]
        numbers = all(type(value) in (int, float) for value in values)
        axes.plot([row.value for row in rows], values if numbers else [short(value) for value in values], "o")
        if numbers and min(values) > 0 and max(values) >= 10 * min(values):
            axes.set_yscale("log")
        axes.set(ylabel=name.rpartition(".")[2], xlabel=study.config.metric)
    return bool(varied)
