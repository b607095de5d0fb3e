"""Compares the results of a run and of its reproduction, and finds reasons for differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lit_engine.checkpoints.io import read
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import is_detail

ROUNDING = 1e-4  # largest relative difference between metrics that is considered rounding
TIMINGS = ("seconds", "_per_second")


@dataclass(frozen=True)
class Difference:
    """A metric with different values.

    Attributes:
        place: where it occurs, such as `step 20 (epoch 1)`.
        metric: its name.
        before: its value in the run.
        now: its value in the reproduction.
        size: the difference, relative to the largest absolute value of this metric in the run.
    """

    place: str
    metric: str
    before: Any
    now: Any
    size: float

    def __str__(self) -> str:
        return f"{self.place}: {self.metric} {self.now} instead of {self.before} (relative difference {self.size:.2g})"


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Attributes:
        metrics: the differences between metrics, in the order of training.
        weights: distance between the weights of each checkpoint that both runs have, relative to their norm.
    """

    metrics: list[Difference]
    weights: dict[str, float]

    @property
    def verdict(self) -> str:
        if not self.metrics and self.weights and not any(self.weights.values()):
            return "bit-identical"
        return "equal within rounding" if all(one.size <= ROUNDING for one in self.metrics) else "different"

    @property
    def status(self) -> int:
        """The exit status."""
        return 3 if self.verdict == "different" else 0

    @property
    def largest(self) -> Difference | None:
        return max(self.metrics, key=lambda one: one.size, default=None)

    def lines(self) -> Iterator[str]:
        """Yield the verdict and the differences."""
        weights = ", ".join(f"{size:.2g} in {name}" for name, size in self.weights.items() if size)
        if self.verdict == "bit-identical":
            yield f"bit-identical: all metrics, and all weights in {', '.join(self.weights)}"
            return
        metrics = f"{len(self.metrics):,} values of metrics differ" if self.metrics else "all recorded metrics agree"
        none = "there are no checkpoints to compare" if not self.weights else "all weights agree"
        yield f"{self.verdict}: {metrics}; {f'relative distance of the weights: {weights}' if weights else none}"
        if self.metrics:
            yield f"first difference: {self.metrics[0]}"
            yield f"largest difference: {self.largest}"

    def document(self) -> dict[str, Any]:
        """Return JSON data."""
        found = {"first": next(iter(self.metrics), None), "largest": self.largest}
        shown = {name: one and asdict(one) for name, one in found.items()}
        return {"verdict": self.verdict, "metrics_that_differ": len(self.metrics), **shown, "weights": self.weights}


def compare_results(run: RunDir, again: RunDir) -> Outcome:
    """Compare metrics.csv, the final metrics, and the weights in the checkpoints that both runs have."""
    names = sorted(path.name for path in run.checkpoints.glob("*.ckpt") if (again.checkpoints / path.name).exists())
    weights = {name: _distance(*(read(one.checkpoints / name)["state_dict"] for one in (run, again))) for name in names}
    return Outcome([*_compare_rows(run, again), *_compare_sections(run, again)], weights)


def _compare_rows(run: RunDir, again: RunDir) -> Iterator[Difference]:
    (columns, rows), (others, repeated) = run.history(), again.history()
    names = [name for name in columns if name in others and not name.endswith(TIMINGS) and not is_detail(name)]
    largest = {name: max((abs(float(row[name])) for row in rows if row[name]), default=0.0) for name in names}
    for row, other in zip(rows, repeated, strict=False):
        place = f"step {row['step']}" + (f" (epoch {row['epoch']})" if row.get("epoch") else "")
        for name in names:
            if row[name] != other[name]:
                yield Difference(place, name, row[name], other[name], _relative(row[name], other[name], largest[name]))
    if len(rows) != len(repeated):
        yield Difference("metrics.csv", "number of rows", len(rows), len(repeated), math.inf)


def _compare_sections(run: RunDir, again: RunDir) -> Iterator[Difference]:
    """Compare metrics.json. The test only counts if it used the same checkpoint and options."""
    before, now = run.metrics(), again.metrics()
    tests = [dict(one.get("test", {})) for one in (before, now)]
    how = [(Path(str(test.pop("checkpoint", ""))).name, test.pop("changed", [])) for test in tests]
    pairs = {"fit": (before["fit"], now["fit"])} | ({"test": (tests[0], tests[1])} if how[0] == how[1] else {})
    for section, (old, new) in pairs.items():
        for name in old:
            is_metric = isinstance(old[name], int | float | str) and not name.endswith(TIMINGS) and not is_detail(name)
            if is_metric and name in new and old[name] != new[name]:
                yield Difference(section, name, old[name], new[name], _relative(old[name], new[name], 0))


def _relative(before: Any, now: Any, largest: float) -> float:
    """Return the relative difference of two different values, which is infinite unless both are finite numbers."""
    try:
        before, now = float(before), float(now)
        size = abs(now - before) / max(abs(before), abs(now), largest)
    except (ValueError, ZeroDivisionError):  # a name, an empty cell, or 0 and -0
        return math.inf
    return size if math.isfinite(size) else math.inf


def _distance(before: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> float:
    """Return the distance between the weights, relative to their norm; 0 only if all bits are the same."""
    if [(name, x.shape, x.dtype) for name, x in before.items()] != [(n, x.shape, x.dtype) for n, x in now.items()]:
        return math.inf
    bits = [[x.contiguous().reshape(-1).view(torch.uint8) for x in one.values()] for one in (before, now)]
    if all(map(torch.equal, *bits)):
        return 0.0
    a, b = (torch.cat([x.double().flatten() for x in one.values() if x.is_floating_point()]) for one in (before, now))
    size = ((a - b).norm() / a.norm()).item()
    return size if 0 < size < math.inf else math.inf


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how two entries in provenance.json differ. The most likely reasons for different results come first."""
    facts: list[dict[str, Any]] = []
    for entry in (before, now):
        data = {f"data ({split})": value[:8] for split, value in (entry.get("data") or {}).items()}
        machine = {name: entry.get(name) for name in ("devices", "processes", "cpu_threads", "platform", "host")}
        facts.append({**data, **entry.get("versions", {}), **machine})
    first, second = facts
    found = [f"{name}: {second[name]} instead of {first[name]}" for name in first if name in second
             and first[name] is not None and first[name] != second[name]]  # fmt: skip
    return found + ([] if before.get("data") and now.get("data") else ["the data have no fingerprints to compare"])


def likely_reason(changes: Sequence[str], entry: Mapping[str, Any]) -> str:
    """Return the most likely reason for a different result, given the differences."""
    if changes:
        return changes[0]
    if entry.get("devices") != ["cpu"]:
        return "the device adds numbers in a varying order; trainer.deterministic=true prevents this"
    return "random numbers or inputs that are not recorded"
