"""Reports the results of a sweep as a table, the config of the best trial, and a page with charts."""

import csv
import math
import warnings
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import Any

from optuna.importance import get_param_importances

from lit_engine.project import program
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.metric_names import strip_stage
from lit_engine.tools.pages.chart import STYLE, Series, chart, positions
from lit_engine.tools.pages.html import Cell, code, heading, link, page, paragraph, table
from lit_engine.tools.runs.columns import duration, number, short_names
from lit_engine.tools.runs.differences import count_states
from lit_engine.tools.sweep.study import Study, Trial

SHOWN = 10  # number of rows in the printed table
IMPORTANT = 20  # minimum number of finished trials for estimating parameter importance
IMPORTANCE = "PED-ANOVA estimates how each parameter affects whether a trial is among the best (Watanabe et al., 2023)."


def short(value: object) -> str:
    """Return a value as compact text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")


def lines(rows: Sequence[Trial], metric: str) -> list[str]:
    """Return the best trials and the number of trials per state as lines of text."""
    found = [f"{'trial':>5}  {'state':<13} {metric:>9}"] if rows else []
    for row in rows[:SHOWN]:
        values = "  ".join(f"{name}={short(value)}" for name, value in row.values.items())
        found.append(f"{row.number:>5}  {row.state:<13} {number(row.value):>9}  {values}")
    return [*found, f"{len(rows)} trials: {count_states(row.state for row in rows) or 'none yet'}"]


def write_report(study: Study, rows: Sequence[Trial]) -> None:
    """Write `trials.csv`, `best.yaml` and the page of a sweep, whether or not it has finished."""
    names = [parameter.name for parameter in study.config.parameters]
    with (study.folder / "trials.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["trial", "state", study.config.metric, *names, "seconds", "run", "host", "error"])
        for row in rows:
            values = [row.values[name] for name in names]
            writer.writerow([row.number, row.state, row.value, *values, row.seconds, row.run, row.host, row.error])
    best = study.folder / "best.yaml"
    best.unlink(missing_ok=True)
    # The run may be gone or on another machine.
    if rows and rows[0].has_result and (rows[0].run / "config.yaml").exists():
        config = (rows[0].run / "config.yaml").read_text(encoding="utf-8").partition("\n")[2]  # without its header
        config = config.replace("\ntest_after_fit: false\n", "\ntest_after_fit: true\n")  # trials skip the test
        found = f"trial {rows[0].number}, {study.config.metric} {rows[0].value:.6g}"
        head = f"# The best of {len(rows)} trials in a sweep: {found}.\n#\n#   {_command(study, rows[0])}\n#\n"
        write_text(best, head + config)
    write_text(study.folder / "index.html", page_of(study, rows))


def _command(study: Study, best: Trial) -> str:
    """Return the command that trains with the config of the best trial."""
    words = [program(), "fit", "-c", str(study.folder / "best.yaml"), *RunDir(best.run).initial_weights()]
    return " ".join(map(quote, words))


def page_of(study: Study, rows: Sequence[Trial]) -> str:
    """Return the page of a sweep with its best config, plots, and all trials."""
    folder, metric = study.folder, study.config.metric
    parts = [STYLE, paragraph(lines(rows, metric)[-1])]
    best = folder / "best.yaml"
    if best.exists():
        parts += [heading("Best trial"), paragraph(f"Trial {rows[0].number}: {metric} {rows[0].value:.6g}.")]
        parts += [code(_command(study, rows[0])), code(best.read_text(encoding="utf-8"), "The config")]
    good = sorted((row for row in rows if row.has_result), key=lambda row: row.number)
    if len(good) > 1:
        parts += [heading("Trials and parameters"), f'<div class="charts">{"".join(plots(study, good))}</div>']
    if len(found := importances(study, rows)) > 1:
        parts += [heading("Importance of the parameters"), paragraph(IMPORTANCE, soft=True)]
        shares: list[list[Cell]] = [[name, (f"{share:.0%}", share)] for name, share in found.items()]
        parts.append(table(["parameter", "importance"], shares))
    names = [parameter.name for parameter in study.config.parameters]
    cells: list[list[Cell]] = []
    for row in rows:
        values = [_cell(value) for value in (row.value, *(row.values[name] for name in names))]
        run = link(row.run.name, row.run / "index.html", folder)
        cells.append([run, row.state, *values, duration(row.seconds or math.nan), row.error])
    titles = ["trial", "state", metric, *short_names(names), "time", "error"]
    parts += [heading("Trials"), table(titles, cells)] if rows else []
    return page(f"Sweep {folder.resolve().name}", parts, f"{program()} sweep")


def plots(study: Study, good: Sequence[Trial]) -> list[str]:
    """Plot each trial's metric and the best value so far, and the metric against each parameter."""
    metric, values = study.config.metric, [row.value for row in good]
    best = [(row.number, study.config.best(values[: n + 1])) for n, row in enumerate(good)]

    def trials(xs: Iterable[float]) -> list[Series]:
        return [Series(1, f"trial {row.number}", [(x, row.value)], dots=True) for x, row in zip(xs, good, strict=True)]

    of_loss = strip_stage(metric).endswith("loss") and min(values) > 0  # whether to use a logarithmic axis
    by_number = [Series(0, "best so far", best), *trials(row.number for row in good)]
    drawn = [chart(metric, "trial", by_number, (False, of_loss))]
    parameters = study.config.parameters
    titles = short_names(parameter.name for parameter in parameters)
    for parameter, title in zip(parameters, titles, strict=True):
        xs, log, texts = positions([row.values[parameter.name] for row in good])
        log = log and getattr(parameter.drawn, "log", True)  # a list of values has no `log` setting
        if len(set(xs)) > 1:
            drawn.append(chart(metric, title, trials(xs), (log, of_loss), texts))
    return drawn


def importances(study: Study, rows: Sequence[Trial]) -> dict[str, float]:
    """Estimate the importance of each parameter using PED-ANOVA. The result is empty if too few trials are finished."""
    if sum(row.state == "finished" and row.has_result for row in rows) < IMPORTANT:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna warns about parameters with a single value
        return get_param_importances(study.connect())


def _cell(value: Any) -> Cell:
    return (short(value), value) if isinstance(value, int | float) else short(value)
