"""Reports the results of a sweep: a table, plots, the config of the best trial, and a page with all of them."""

import csv
import math
import warnings
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from matplotlib import pyplot as plt
from optuna.visualization import matplotlib as plots

from lit_engine.callbacks.drawing import CHART
from lit_engine.project import program
from lit_engine.run.directory import write_text
from lit_engine.tools.pages.html import Cell, code, figures, heading, link, page, paragraph, table
from lit_engine.tools.runs.columns import duration, short_names
from lit_engine.tools.sweep.study import Study, Trial

SHOWN = 10  # rows of the printed table
PLOTS: dict[str, Callable[..., Any]] = {
    "best_so_far": plots.plot_optimization_history,
    "importance": plots.plot_param_importances,
    "parameters": plots.plot_slice,
}


def short(value: object) -> str:
    """Return a value as compact text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")


def lines(rows: Sequence[Trial], metric: str) -> list[str]:
    """Return the best trials and the number of trials per state as lines of text."""
    found = [f"{'trial':>5}  {'state':<13} {metric:>9}"] if rows else []
    for row in rows[:SHOWN]:
        values = "  ".join(f"{name}={short(value)}" for name, value in row.values.items())
        found.append(f"{row.number:>5}  {row.state:<13} {row.value:>9.4f}  {values}")
    states = [row.state for row in rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return [*found, f"{len(rows)} trials: {counts or 'none yet'}"]


def write_report(study: Study, rows: Sequence[Trial]) -> None:
    """Write `trials.csv`, `best.yaml`, the plots and the page of a sweep, whether or not it has finished."""
    names = [parameter.name for parameter in study.config.parameters]
    with (study.folder / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", study.config.metric, *names, "seconds", "run", "host", "error"])
        for row in rows:
            values = [row.values[name] for name in names]
            writer.writerow([row.number, row.state, row.value, *values, row.seconds, row.run, row.host, row.error])
    best = study.folder / "best.yaml"
    best.unlink(missing_ok=True)
    if rows and rows[0].good and (rows[0].run / "config.yaml").exists():  # may be removed or on another machine
        config = (rows[0].run / "config.yaml").read_text(encoding="utf-8").partition("\n")[2]  # without its header
        config = config.replace("\ntest_after_fit: false\n", "\ntest_after_fit: true\n")  # trials skip the test
        found = f"trial {rows[0].number}, {study.config.metric} {rows[0].value:.6g}"
        head = f"# The best of {len(rows)} trials of a sweep: {found}.\n#\n#   {program()} fit -c {best}\n#\n"
        write_text(best, head + config)
    if sum(row.state == "finished" for row in rows) > 1:
        trials = study.connect()
        for name, plot in PLOTS.items():
            with plt.style.context({}), warnings.catch_warnings():  # Optuna changes the style
                warnings.simplefilter("ignore")  # warnings about experimental plots and parameters with a single value
                plot(trials, target_name=study.config.metric)
                about = {"Description": CHART}
                plt.savefig(study.folder / f"{name}.png", dpi=120, bbox_inches="tight", metadata=about)
                plt.close()
    write_text(study.folder / "index.html", page_of(study, rows))


def page_of(study: Study, rows: Sequence[Trial]) -> str:
    """Return the page of a sweep: its best config, plots, and all trials."""
    folder, metric = study.folder, study.config.metric
    parts = [paragraph(lines(rows, metric)[-1])]
    best = folder / "best.yaml"
    if best.exists():
        parts += [heading("Best trial"), paragraph(f"Trial {rows[0].number}: {metric} {rows[0].value:.6g}.")]
        parts += [code(f"{program()} fit -c {best}"), code(best.read_text(encoding="utf-8"), "The config")]
    if drawn := [file for name in PLOTS if (file := folder / f"{name}.png").exists()]:
        parts += [heading("Trials and parameters"), figures(drawn)]
    names = [parameter.name for parameter in study.config.parameters]
    cells: list[list[Cell]] = []
    for row in rows:
        values = [_cell(value) for value in (row.value, *(row.values[name] for name in names))]
        run = link(row.run.name, row.run / "index.html", folder)
        cells.append([run, row.state, *values, duration(row.seconds or math.nan), row.error])
    titles = ["trial", "state", metric, *short_names(names), "time", "error"]
    parts += [heading("Trials"), table(titles, cells)] if rows else []
    return page(f"Sweep {folder.resolve().name}", parts, f"{program()} sweep · {datetime.now():%Y-%m-%d %H:%M}")


def _cell(value: Any) -> Cell:
    return (short(value), value) if isinstance(value, int | float) else short(value)
