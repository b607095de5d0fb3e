"""What a sweep has found: a table, plots, a page, and the config of the best trial."""

import csv
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from optuna.visualization.matplotlib import plot_optimization_history, plot_param_importances, plot_slice

from ..errors import UserError
from ..project import PROGRAM
from ..run import write_text
from .study import Row, Study

SHOWN = 10  # rows of the printed table
PLOTS: dict[str, Callable[..., Any]] = {
    "best_so_far": plot_optimization_history,
    "importance": plot_param_importances,
    "parameters": plot_slice,
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
        plots = _draw(study, [row for row in rows if row.state == "finished"])
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
        text = text.replace("\ntest_after_fit: false\n", "\ntest_after_fit: true\n")  # which trials must not
        found = f"trial {rows[0].number}, {study.config.metric} {rows[0].value:.6g}"
        head = f"# The best of {len(rows)} trials of a sweep: {found}.\n#\n#   {PROGRAM} fit -c {file}\n#\n"
        write_text(file, head + text)


def _draw(study: Study, rows: Sequence[Row]) -> str:
    """Draws what Optuna can draw of the trials that have finished; returns the part of the page."""
    page = ""
    for name, plot in PLOTS.items() if len(rows) > 1 else ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a legend without entries, few trials
                figure = np.ravel(plot(study.connect()))[0].figure
        except (ValueError, RuntimeError):  # the trials do not differ
            continue
        figure.savefig(study.folder / f"{name}.png", dpi=120, bbox_inches="tight")
        plt.close(figure)
        page += f'<h2>{name.replace("_", " ").capitalize()}</h2><img src="{name}.png" alt="{name}">'
    return page
