"""What a sweep has found: a table, Optuna's plots, a page, and the config of the best trial."""

import csv
import html
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lit_project.errors import UserError
from lit_project.run import write_text
from lit_project.sweep.study import Row, Study

SHOWN = 10  # rows of the printed table
PLOTS = {
    "best_so_far": "plot_optimization_history",
    "importance": "plot_param_importances",
    "parallel_coordinates": "plot_parallel_coordinate",
}
MEANING = {
    "best_so_far": "The metric of each trial, and the best up to it.",
    "importance": "How much each parameter decides whether a trial is among the best tenth (PED-ANOVA).",
    "parallel_coordinates": "A line is a trial: its parameters, coloured by the metric.",
}


def report(study: Study, folder: Path) -> None:
    """Writes `trials.csv`, `best.yaml`, the plots and `index.html` of a sweep, whether it has ended or not.

    Raises:
        UserError: they cannot be written.
    """
    try:
        _write(study, study.rows(), folder)
    except OSError as error:
        raise UserError(f"cannot write the report to {folder}: {error.strerror or error}") from error


def _write(study: Study, rows: Sequence[Row], folder: Path) -> None:
    names = [parameter.name for parameter in study.config.parameters]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["trial", "state", study.config.metric, *names, "seconds", "run", "error"])
    for row in rows:
        writer.writerow([row.number, row.state, row.value, *(row.values.get(n) for n in names),
                         row.seconds, row.run, row.error])  # fmt: skip
    write_text(folder / "trials.csv", table.getvalue())
    if rows and rows[0].good and rows[0].value is not None:
        _write_best(study, rows[0], folder)
    else:
        (folder / "best.yaml").unlink(missing_ok=True)
    notes = _plots(study, folder)
    write_text(folder / "index.html", _page(study, rows, names, notes, folder))


def lines(rows: Sequence[Row], metric: str) -> list[str]:
    """The best trials as lines of text, and how many there are of each state."""
    found = []
    for row in rows[:SHOWN]:
        value = "—" if row.value is None else f"{row.value:.4f}"
        values = "  ".join(f"{name}={text(value)}" for name, value in row.values.items())
        found.append(f"{row.number:>5}  {row.state:<10} {value:>9}  {values}")
    if not found:
        return ["no trial yet"]
    counts = {state: sum(row.state == state for row in rows) for state in dict.fromkeys(row.state for row in rows)}
    heading = f"{'trial':>5}  {'state':<10} {metric:>9}"
    return [heading, *found, f"{len(rows)} trials: " + ", ".join(f"{n} {state}" for state, n in counts.items())]


def text(value: Any) -> str:
    """A value, short."""
    return f"{value:.4g}" if isinstance(value, float) else str(value).replace(" ", "")


def _write_best(study: Study, row: Row, folder: Path) -> None:
    config = Path(row.run) / "config.yaml"
    if not config.exists():  # the user has removed the run
        return
    lines = config.read_text().splitlines(keepends=True)
    body = "".join(lines[next(n for n, line in enumerate(lines) if not line.startswith("#")) :])
    body = body.replace("\ntest_after_fit: false\n", "\ntest_after_fit: true\n")  # trials see no test data; this may
    found = f"trial {row.number}, {study.config.metric} {row.value:.6g}"
    head = (
        f"# The best of {len(study.rows())} trials of a sweep: {found}.\n"
        f"#\n#   lit-project fit -c {folder / 'best.yaml'}\n#\n"
    )
    write_text(folder / "best.yaml", head + body)


def _plots(study: Study, folder: Path) -> dict[str, str]:
    """Draws what can be drawn; plot → why it cannot."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import optuna.visualization.matplotlib as drawn

    notes = {}
    for name, function in PLOTS.items():
        file = folder / f"{name}.png"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Optuna calls its matplotlib plots experimental
                figure = _draw(getattr(drawn, function), study)
                figure.savefig(file, dpi=120, bbox_inches="tight")
        except (ValueError, RuntimeError, IndexError) as error:
            file.unlink(missing_ok=True)
            notes[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
        finally:
            plt.close("all")
    return notes


def _draw(plot: Callable[..., Any], study: Study) -> Any:
    if sum(row.state == "finished" for row in study.rows()) < 2:
        raise ValueError("two finished trials are needed")
    from matplotlib.ticker import MaxNLocator

    axes = plot(study.optuna, target_name=study.config.metric)
    figure = axes.get_figure()
    figure.set_size_inches(9, 5)
    axes.set_title("")
    if plot.__name__ == "plot_optimization_history":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(["trial", "best so far"])
    return figure


def _page(study: Study, rows: Sequence[Row], names: Sequence[str], notes: dict[str, str], folder: Path) -> str:
    """One HTML file beside the plots, without scripts and without a network."""
    escape = html.escape
    head = "".join(f"<th>{escape(n)}</th>" for n in ("trial", "state", study.config.metric, *names, "seconds", "run"))
    body = []
    for row in rows:
        value = "" if row.value is None else f"{row.value:.5g}"
        cells = [row.number, row.state, value, *(text(row.values.get(n)) for n in names), row.seconds or "", row.run]
        columns = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
        body.append(f'<tr title="{escape(row.error)}" class="{row.state}">{columns}</tr>')
    plots = "".join(
        f"<h2>{name.replace('_', ' ').capitalize()}</h2><p>{MEANING[name]}</p>"
        + (f"<p>Not drawn: {escape(notes[name])}.</p>" if name in notes else f'<img src="{name}.png" alt="{name}">')
        for name in PLOTS
    )
    title = escape(folder.name)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>'
        "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}"
        "table{border-collapse:collapse;font-size:13px}td,th{padding:.2em .7em;border-bottom:1px solid #ddd;"
        "text-align:left}tr.failed{color:#a00}tr.stopped,tr.unfinished{color:#777}img{max-width:100%}"
        "div{overflow-x:auto}</style>"
        f"<h1>{title}</h1><p>{len(rows)} trials, by {escape(study.config.metric)}.</p>"
        f"<div><table><tr>{head}</tr>{''.join(body)}</table></div>{plots}</html>\n"
    )
