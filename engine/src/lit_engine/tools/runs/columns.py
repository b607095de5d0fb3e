"""Builds the columns of a comparison for the terminal, CSV files and the page."""

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

from lit_engine.run.directory import csv_text
from lit_engine.tools.pages.html import Cell, text_of
from lit_engine.tools.runs.differences import CLASS, COUNT, Comparison, Row, count_states, mean_sd


class Column(NamedTuple):
    """A table column with one cell per row."""

    name: str
    cells: Sequence[Cell]
    rank: float = 0  # columns with a lower rank are shown first when space is limited
    short: str = ""  # displayed name
    sds: Sequence[float] = ()  # standard deviations, if the rows are groups

    def is_constant(self) -> bool:
        """Return whether there are at least two rows and all have the same value. Such a column is redundant."""
        return len(self.cells) > 1 and len({*map(text_of, self.cells)}) == 1

    def lines(self) -> list[str]:
        """Return the name and the cells, padded to equal width. Numeric columns are right-aligned."""
        texts = [self.short or self.name, *map(text_of, self.cells)]
        side = "<" if all(isinstance(cell, str) for cell in self.cells) else ">"
        return [f"{text:{side}{max(map(len, texts))}}" for text in texts]


def columns_of(found: Comparison, rows: Sequence[Row], keys: Sequence[str]) -> list[Column]:
    """Return the columns of the table (label, state, options, other differences, metrics and duration)."""
    grouped = any(row.grouped for row in rows)
    count = [(str(len(row.counted)), len(row.counted)) for row in rows]
    first = Column("n", count) if grouped else Column("run", names_of([row.runs[0].path for row in rows]))
    options, metrics = [], []
    for rank, (key, short) in enumerate(zip(keys, short_names(keys), strict=True)):
        options.append(Column(key, _options(rows, key), 2 * rank + 1, short))
    for rank, name in enumerate(found.facts, len(keys)):
        known = [row.facts(name) for row in rows]
        texts = [" or ".join(facts) if len(facts) < 3 else f"{len(facts)} values" for facts in known]
        options.append(Column(name, texts, 2 * rank + 1))
    for rank, name in enumerate(found.metrics):
        sds = [row.metric(name)[1] for row in rows] if grouped else ()
        metrics.append(Column(name, [_mean(row, name) for row in rows], 2 * rank, sds=sds))
    took = [mean_sd([run.seconds for run in row.counted if run.seconds == run.seconds])[0] for row in rows]
    time = Column("seconds", [duration(seconds) for seconds in took], math.inf, "time")
    # Runs of different tasks differ in many options, so their metrics come first.
    middle = [*options, *metrics] if len(found.tasks) < 2 else [*metrics, *options]
    return [first, Column("state", [_states(row) for row in rows]), *middle, time]


def table_of(found: Comparison) -> list[Column]:
    """Return a table with one row per run or group. If there is only one group, return one row per metric."""
    if not found.over or len(found.rows) > 1:
        return columns_of(found, found.rows, found.keys)
    (group,) = found.rows
    means = [_mean(group, name) for name in found.metrics]
    pooled = [cell_of(mean and mean[0]) for mean in map(group.pooled_mean, found.metrics)]
    columns = [Column("metric", found.metrics), Column("mean ± sd", means), Column("over all folds", pooled)]
    return columns if any(cell[0] for cell in pooled) else columns[:2]


def in_terminal(columns: Sequence[Column], elsewhere: str = "the page or --json") -> list[str]:
    """Return the table lines. In a terminal, omit columns that do not fit, and say that `elsewhere` shows them."""
    # Without a terminal, COLUMNS is ignored: programs that import readline set it to 80 for their subprocesses.
    room = limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    shown: list[Column] = []
    for column in sorted(columns, key=lambda column: (column.is_constant(), column.rank)):
        width = len(column.lines()[0])
        if width <= room or not (column.rank or column.is_constant()):
            shown.append(column)
            room -= width + 2
    lines = ["  ".join(line).rstrip() for line in zip(*(c.lines() for c in columns if c in shown), strict=True)]
    hidden = [column.short or column.name for column in columns if column not in shown]
    note = f"columns that do not fit ({len(hidden)}, see {elsewhere}): {', '.join(hidden)}"
    return [*lines, shorten(note, limit, placeholder=" …")] if hidden else lines


def as_csv(columns: Sequence[Column]) -> str:
    """Return the table as CSV with full precision, including the standard deviations of groups."""
    whole: dict[str, Sequence[Any]] = {}
    for column in columns:
        whole[column.name] = [cell if isinstance(cell, str) else cell[1] for cell in column.cells]
        if column.sds:
            whole[f"{column.name} sd"] = column.sds
    lines = (["" if v is None or v != v else v for v in line] for line in zip(*whole.values(), strict=True))
    return csv_text([dict(zip(whole, line, strict=True)) for line in lines], list(whole))


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the paths of runs relative to their common folder."""
    base = find_common_folder(paths)
    return [os.path.relpath(path.resolve(), base) for path in paths]


def labels(found: Comparison, rows: Sequence[Row]) -> list[str]:
    """Return legend labels for rows. Single runs get their paths, and groups get the options that differ."""
    if not found.over:
        return names_of([row.runs[0].path for row in rows])
    named = zip(short_names(found.keys), [_options(rows, key) for key in found.keys], strict=True)
    columns = [[f"{name} {text_of(cell)}" for cell in cells] for name, cells in named]
    return [", ".join(words) for words in zip(*columns, strict=True)] or ["all" for _ in rows]


def find_common_folder(paths: Iterable[Path]) -> Path:
    """Return the innermost folder that contains all paths."""
    return Path(os.path.commonpath([path.resolve().parent for path in paths]))


def short_names(keys: Iterable[str]) -> list[str]:
    """Shorten each dotted key to its shortest suffix that is unique among the keys."""
    keys, found = list(keys), []
    for key in keys:
        words = key.split(".")
        ends = [".".join(words[-n:]) for n in range(1, len(words) + 1)]
        found.append(next((end for end in ends if sum(f".{k}".endswith(f".{end}") for k in keys) == 1), key))
    return found


def number(value: float, sd: float = math.nan) -> str:
    """Format a number with four decimals (fewer for large numbers), and a standard deviation in the same format."""
    if isinstance(value, int) or (math.isnan(sd) and value >= 100 and value.is_integer()):  # a count
        return str(int(value))
    size = max(abs(value), 0 if math.isnan(sd) else sd)
    form = (
        ".3g" if 0 < size < 1e-3 else ".4f" if size < 10 else ".2f" if size < 1000 else ".0f" if size < 1e6 else ".4g"
    )
    return f"{value:{form}}" + ("" if math.isnan(sd) else f" ± {sd:{form}}")


def cell_of(value: Any) -> Cell:
    """Return a value as a table cell. None becomes a blank cell in a numeric column."""
    if value is None:
        return "", None
    return (number(value), value) if isinstance(value, int | float) else str(value)


def duration(seconds: float) -> Cell:
    """Return a duration as text, such as `3 h 05 min`, and in seconds. The text is empty for nan."""
    if math.isnan(seconds):
        return "", None
    minutes = round(seconds / 60)
    said = f"{seconds:.0f} s" if round(seconds) < 60 else f"{minutes} min"
    return said if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min", seconds


def _mean(row: Row, name: str) -> Cell:
    mean, sd, n = row.metric(name)
    mean = int(mean) if n == 1 and COUNT.fullmatch(name) else mean
    few = f" (n {n})" if n < len(row.counted) else ""
    return (number(mean, sd) + few, mean) if n else ("", None)


def _states(row: Row) -> str:
    return count_states(run.state for run in row.runs) if row.grouped else row.runs[0].state


def _options(rows: Sequence[Row], key: str) -> list[Cell]:
    """Return the values of an option, shortened unless this would make different values look the same."""
    values = [row.runs[0].options.get(key, "") for row in rows]
    form = _shorten if len({_shorten(value) for value in values}) == len({repr(value) for value in values}) else str
    return [(form(value), value) if isinstance(value, float) else form(value) for value in values]


def _shorten(value: Any) -> str:
    if isinstance(value, str) and CLASS.fullmatch(value):
        return value.rpartition(".")[2]
    if isinstance(value, str | float):
        return value if isinstance(value, str) else f"{value:g}"
    return json.dumps(value, separators=(",", ":"), default=str)
