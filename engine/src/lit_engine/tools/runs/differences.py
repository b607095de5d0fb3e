"""Finds the differences between runs, and computes the mean and standard deviation for groups of similar runs."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lit_engine.errors import UserError, did_you_mean
from lit_engine.run.metric_names import counterpart, get_stage, strip_stage
from lit_engine.tools.runs.reading import Run

CLASS = re.compile(r"[A-Za-z_][\w.]*\.[A-Z]\w*")
COUNT = re.compile(r"(val|test)/(samples|tokens|pixels)")
# Test metrics that are means over samples, tokens or pixels. Their means over folds are weighted by the fold sizes.
POOLED = re.compile(r"test/(loss|(mse|mae)(/.+)?|(token_|top\d+_)?accuracy)")


@dataclass(frozen=True)
class Row:
    """A run, or a group of runs."""

    runs: list[Run]
    grouped: bool

    @property
    def counted(self) -> list[Run]:
        """The runs included in the statistics. Unfinished runs of a group are excluded."""
        return [run for run in self.runs if run.state == "finished"] if self.grouped else self.runs

    def metric(self, name: str) -> tuple[float, float, int]:
        """Return the mean (nan if n = 0), standard deviation (n − 1; nan if n < 2) and n of a metric."""
        return mean_sd([run.all_metrics[name] for run in self.counted if name in run.all_metrics])

    def pooled_mean(self, name: str) -> tuple[float, str, float] | None:
        """Return a metric's sample-weighted mean over folds, the unit (samples, tokens or pixels) and the count."""
        runs = [run for run in self.counted if name in run.all_metrics]
        unit = next(
            (u for u in ("test/tokens", "test/pixels") if any(u in run.metrics for run in runs)), "test/samples"
        )
        weights = [run.metrics.get(unit, 0) for run in runs]
        folds = {run.options.get("data.fold") for run in runs}
        if len(folds) < 2 or not POOLED.fullmatch(name) or not all(weights):
            return None
        total = sum(weight * run.all_metrics[name] for weight, run in zip(weights, runs, strict=True))
        return total / sum(weights), unit, sum(weights)

    def facts(self, name: str) -> list[str]:
        return list(dict.fromkeys(run.facts[name] for run in self.runs if name in run.facts))


def mean_sd(values: Sequence[float]) -> tuple[float, float, int]:
    """Return the mean (nan if n = 0), the standard deviation (n − 1; nan if n < 2) and n."""
    n = len(values)
    mean = values[0] if n == 1 else sum(values) / n if n else math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1)) if n > 1 else math.nan, n


def count_states(states: Iterable[str]) -> str:
    """Return how many runs or trials are in each state, such as `3 finished, 1 killed`."""
    return ", ".join(f"{n} {state}" for state, n in Counter(states).items())


class Comparison:
    """A comparison of several runs.

    Args:
        runs: the runs to compare.
        over: options in which the runs of a group may differ. Without options, each run has its own row.
        chosen: metrics to show, such as `accuracy` for the validation and test accuracy. By default, runs show the
            monitored metric, other metrics that differ or are missing, and counts that differ. Groups show all metrics
            except counts.

    Attributes:
        rows: the rows, best first if all runs monitor the same metric.
        given: the rows in the order of the given runs.
        keys: options that differ between rows.
        facts: other differences, such as commit, versions and devices.
        tasks: model classes.

    Raises:
        UserError: an option or metric in the arguments does not exist in any run.
    """

    def __init__(self, runs: list[Run], over: Sequence[str] = (), chosen: Sequence[str] = ()) -> None:
        self.runs = runs
        options = {key for run in runs for key in run.options}
        differing = find_differing_options([run.options for run in runs])
        self.over = [_full_name(key.replace(".init_args", ""), options, differing) for key in over]
        _check_known("option", self.over, options)
        known = dict.fromkeys(name for run in runs for name in run.metrics)
        everything = dict.fromkeys(name for run in runs for name in run.all_metrics)
        self.chosen: list[str] = []
        for name in chosen:
            matching = [n for n in everything if n == name or (strip_stage(n) == name and get_stage(n) != "train")]
            self.chosen += matching or [name]
        _check_known("metric", self.chosen, everything)
        keys = [key for key in differing if key not in self.over]
        groups: dict[Any, list[Run]] = {}
        for run in runs:
            same = tuple(repr(as_number(run.options.get(key, ...))) for key in keys)
            groups.setdefault(same if over else run.path, []).append(run)
        self.given = [Row(members, bool(over)) for members in groups.values()]
        self.keys = keys
        self.facts = find_differing_options([run.facts for run in runs])
        self.monitors = [str(name) for name, _ in Counter(run.monitor for run in runs if run.monitor).most_common()]
        self.tasks = list(dict.fromkeys(str(run.options["model"]) for run in runs if "model" in run.options))
        self.metrics = self.chosen or self._default_metrics(known)
        self.rows = self._best_first()

    def _default_metrics(self, known: Iterable[str]) -> list[str]:
        """Return the validation and test metrics to show by default."""
        first = [name for watched in self.monitors for name in (watched, counterpart(watched, "test", known)) if name]
        names = [name for name in dict.fromkeys([*first, *known]) if get_stage(name) != "train"]
        if self.over:
            return [name for name in names if name in known and not COUNT.fullmatch(name)]
        values = {name: {run.metrics.get(name) for run in self.runs} for name in names}
        for name in filter(COUNT.fullmatch, names):  # do not show a count only because a failed run lacks it
            values[name] -= {None}
        alone = len(self.runs) == 1
        return [name for name in names if name in known and (alone or name in first or len(values[name]) > 1)]

    def _best_first(self) -> list[Row]:
        if len(self.monitors) != 1 or len(self.tasks) > 1:
            return self.given
        sign = -1 if next(run for run in self.runs if run.monitor).maximize else 1

        def rank(row: Row) -> float:
            value = sign * row.metric(self.monitors[0])[0]
            return math.inf if math.isnan(value) else value

        return sorted(self.given, key=rank)

    def notes(self) -> list[str]:
        """Return a summary of the runs' states and the caveats that apply to the table."""
        states = count_states(run.state for run in self.runs)
        groups = f"groups: {len(self.rows)}, over {', '.join(self.over)}; " if self.over and len(self.rows) > 1 else ""
        notes = [f"{groups}runs: {states}"]
        if len(self.tasks) > 1:
            tasks = ", ".join(name.rpartition(".")[2] for name in self.tasks)
            notes.append(f"the losses of different tasks cannot be compared: {tasks}")
        if self.over and (out := [run for row in self.rows for run in row.runs if run not in row.counted]):
            notes.append(f"left out of the mean: {', '.join(f'{run.path} ({run.state})' for run in out)}")
        for row in self.rows if self.over else []:
            same = Counter(str({key: run.options.get(key) for key in self.over}) for run in row.counted)
            notes += [f"{n} runs in one group have the same {values}" for values, n in same.items() if n > 1]
        mixed = [name for name in self.facts if any(len(row.facts(name)) > 1 for row in self.rows)]
        if mixed:
            notes.append(f"runs in one group differ in: {', '.join(mixed)}")
        fingerprints = {(split, found) for run in self.runs for split, found in run.data.items()}
        counts = Counter(split for split, _ in fingerprints)
        if changed := [split for split in ("train", "val", "test") if counts[split] > 1]:
            notes.append(f"the runs have different data: {', '.join(changed)}")
        return notes


def _full_name(key: str, options: Iterable[str], differing: Iterable[str]) -> str:
    """Expand a suffix such as `lr` to the only differing option with this suffix, or else the only option with it."""
    found = [n for n in differing if n.endswith(f".{key}")] or [n for n in options if n.endswith(f".{key}")]
    return found[0] if key not in options and len(found) == 1 else key


def _check_known(what: str, names: Sequence[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            shown = f" (available: {', '.join(known)})" if what == "metric" else ""
            raise UserError(f"no run has the {what} {name}{did_you_mean(name, known, shown)}")


def find_differing_options(options: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys whose values differ.

    An option that some runs lack is included only if it is a class in a list, such as a callback. Any other such option
    is new in this version, or belongs to a class that is already included. A list of classes is included only if the
    order of the classes is the only difference.
    """
    found: list[str] = []
    lists = {k for one in options for k, v in one.items() if isinstance(v, list) and _has_parts(k, one)}
    for key in dict.fromkeys(key for one in options for key in one):
        values = [one[key] for one in options if key in one]
        added = len(values) < len(options) and isinstance(values[0], str) and CLASS.fullmatch(values[0])
        if len({repr(as_number(value)) for value in values}) > 1 or (
            added and key.rpartition(".")[0] not in {*found} - lists
        ):
            found.append(key)
    return [key for key in found if key not in lists or not _has_parts(key, found)]


def _has_parts(key: str, keys: Iterable[str]) -> bool:
    return any(other.startswith(f"{key}.") for other in keys)


def as_number(value: Any) -> Any:
    """Return integers as floats, because 1 and 1.0 are the same value."""
    return float(value) if type(value) is int else value
