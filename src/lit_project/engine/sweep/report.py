"""What a sweep has found: a table, plots, and the config of the best trial."""

import csv
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib import pyplot as plt
from optuna.visualization import matplotlib as plots

from ..project import PROGRAM
from ..run import write_text
from .study import Row, Study

SHOWN = 10  # rows of the printed table
PLOTS: dict[str, Callable[..., Any]] = {
    "best_so_far": plots.plot_optimization_history,
    "importance": plots.plot_param_importances,
    "parameters": plots.plot_slice,
}


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
    """Writes `trials.csv`, `best.yaml` and the plots of a sweep, whether it has ended or not."""
    names = [parameter.name for parameter in study.config.parameters]
    with (study.folder / "trials.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["trial", "state", study.config.metric, *names, "seconds", "run", "host", "error"])
        for row in rows:
            values = [row.values[name] for name in names]
            table.writerow([row.number, row.state, row.value, *values, row.seconds, row.run, row.host, row.error])
    best = study.folder / "best.yaml"
    best.unlink(missing_ok=True)
    if rows and rows[0].good and (rows[0].run / "config.yaml").exists():  # neither removed nor on another machine
        config = (rows[0].run / "config.yaml").read_text().partition("\n")[2]  # without its header
        config = config.replace("\ntest_after_fit: false\n", "\ntest_after_fit: true\n")  # trials see no test data
        found = f"trial {rows[0].number}, {study.config.metric} {rows[0].value:.6g}"
        head = f"# The best of {len(rows)} trials of a sweep: {found}.\n#\n#   {PROGRAM} fit -c {best}\n#\n"
        write_text(best, head + config)
    if sum(row.state == "finished" for row in rows) > 1:
        trials = study.connect()
        for name, plot in PLOTS.items():
            with plt.style.context({}):  # Optuna changes the style
                plot(trials, target_name=study.config.metric)
                plt.savefig(study.folder / f"{name}.png", dpi=120, bbox_inches="tight")
                plt.close()
