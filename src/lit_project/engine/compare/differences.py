"""What differs between runs; runs that differ in some options alone, as a group with mean and standard deviation."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, did_you_mean
from .reading import Run

CLASS = re.compile(r"[A-Za-z_][\w.]*\.[A-Z]\w*")


@dataclass(frozen=True)
class Row:
    """A run, or a group of runs."""

    runs: list[Run]
    grouped: bool

    @property
    def counted(self) -> list[Run]:
        """Those whose numbers count: of a group the ones that have finished."""
        return [run for run in self.runs if run.state == "finished"] if self.grouped else self.runs

    def metric(self, name: str) -> tuple[float, float, int]:
        """Mean, standard deviation (n − 1) and n; nan where there are too few."""
        return mean_sd([run.metrics[name] for run in self.counted if name in run.metrics])

    def part(self, kind: str, name: str) -> float:
        """Mean of what the test tells of a class; nan if it is not known."""
        return mean_sd([run.parts[kind][name] for run in self.counted if name in run.parts.get(kind, {})])[0]

    def facts(self, name: str) -> list[str]:
        """All values of a fact."""
        return list(dict.fromkeys(run.facts[name] for run in self.runs if name in run.facts))


def mean_sd(values: Sequence[float]) -> tuple[float, float, int]:
    """Mean, standard deviation (n − 1) and n; nan where there are too few values."""
    n = len(values)
    mean = values[0] if n == 1 else sum(values) / n if n else math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else math.nan, n


class Comparison:
    """Runs side by side.

    Args:
        runs: to compare.
        over: options in which the runs of a group may differ; without any, each run is for itself.
        chosen: metrics to show; by default the monitored ones of validation and test, and others that differ.

    Attributes:
        rows: the best first, if all runs monitor the same metric.
        given: rows in the order of the runs.
        keys: options that differ between rows.
        facts: what else differs: commit, versions, devices.

    Raises:
        UserError: no run has such an option or metric.
    """

    def __init__(self, runs: list[Run], over: Sequence[str] = (), chosen: Sequence[str] = ()) -> None:
        self.runs, self.chosen = runs, list(chosen)
        self.over = [key.replace(".init_args", "") for key in over]
        _known("option", self.over, {key for run in runs for key in run.options})
        known = dict.fromkeys(name for run in runs for name in run.metrics)
        _known("metric", chosen, known)
        keys = [key for key in differing([run.options for run in runs]) if key not in self.over]
        groups: dict[Any, list[Run]] = {}
        for run in runs:
            same = tuple(repr(_same(run.options.get(key, ...))) for key in keys)
            groups.setdefault(same if over else run.path, []).append(run)
        self.given = [Row(members, bool(over)) for members in groups.values()]
        self.keys = keys
        self.facts = differing([run.facts for run in runs])
        self.monitors = [str(name) for name, _ in Counter(run.monitor for run in runs if run.monitor).most_common()]
        self.metrics = self.chosen or self._usual(known)
        self.rows = self._best_first()

    def _usual(self, known: Iterable[str]) -> list[str]:
        """Metrics of validation and test: the monitored ones, and others if they differ."""
        first = [name for watched in self.monitors for name in (watched, watched.replace("val/", "test/", 1))]
        names = [name for name in dict.fromkeys([*first, *known]) if name.startswith(("val/", "test/"))]
        count = {name: len({run.metrics[name] for run in self.runs if name in run.metrics}) for name in names}
        alone = len(self.runs) == 1
        return [name for name in names if count[name] > 1 or (count[name] and (alone or name in first))]

    def _best_first(self) -> list[Row]:
        if len(self.monitors) != 1:
            return self.given
        sign = -1 if next(run for run in self.runs if run.monitor).maximize else 1
        values = [sign * row.metric(self.monitors[0])[0] for row in self.given]
        order = sorted(range(len(values)), key=lambda place: math.inf if math.isnan(values[place]) else values[place])
        return [self.given[place] for place in order]

    def notes(self) -> list[str]:
        """What there is, and what a reader of the table must know."""
        count = Counter(run.state for run in self.runs)
        states = ", ".join(f"{n} {state}" for state, n in count.items())
        groups = f"groups: {len(self.rows)}, over {', '.join(self.over)}; " if self.over else ""
        notes = [f"{groups}runs: {states}"]
        if self.over and (out := [run for row in self.rows for run in row.runs if run not in row.counted]):
            notes.append(f"in no mean: {', '.join(f'{run.path} ({run.state})' for run in out)}")
        mixed = [name for name in self.facts if any(len(row.facts(name)) > 1 for row in self.rows)]
        if mixed:
            notes.append(f"runs of one group differ in: {', '.join(mixed)}")
        return notes


def differing(options: Sequence[dict[str, Any]]) -> list[str]:
    """The keys whose values differ.

    An option that only some have counts if it is a class in a list, such as a callback: others belong to a class that
    differs, which is named, or were not known to an earlier version.
    """
    found: list[str] = []
    for key in dict.fromkeys(key for one in options for key in one):
        values = [one[key] for one in options if key in one]
        added = len(values) < len(options) and isinstance(values[0], str) and CLASS.fullmatch(values[0])
        if len({repr(_same(value)) for value in values}) > 1 or (added and key.rpartition(".")[0] not in found):
            found.append(key)
    return found


def _same(value: Any) -> Any:
    """1 and 1.0 are the same."""
    return float(value) if type(value) is int else value


def _known(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            shown = f" (there are: {', '.join(known)})" if what == "metric" else ""
            raise UserError(f"no run has the {what} {name}{did_you_mean(name, known, shown)}")
