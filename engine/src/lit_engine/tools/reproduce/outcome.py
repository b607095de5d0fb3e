"""Compares the results of a run and its reproduction, and suggests a reason for differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lit_engine.checkpoints.io import read
from lit_engine.classes.names import import_named
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import is_detail

ROUNDING = 1e-4  # maximum relative difference between metrics that counts as rounding
TESTED = "test", "checkpoint"


class Difference(NamedTuple):
    """A metric with different values in a run and its reproduction."""

    place: str  # such as `step 20 (epoch 1)`
    metric: str
    before: str
    now: str
    size: float  # relative to the largest absolute value of this metric in the run

    def __str__(self) -> str:
        return f"{self.place}: {self.metric} {self.now} instead of {self.before} (relative difference {self.size:.2g})"


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Attributes:
        metrics: differences between the runs' metrics, in the order of logging.
        weights: relative distances between the weights of the two runs, keyed by the name of the checkpoint.
    """

    metrics: list[Difference]
    weights: dict[str, float]

    @property
    def verdict(self) -> str:
        if not self.metrics and self.weights and not any(self.weights.values()):
            return "bit-identical"
        return "equal within rounding" if all(one.size <= ROUNDING for one in self.metrics) else "different"

    @property
    def extremes(self) -> dict[str, Difference]:
        """The first and the largest difference, or an empty dict if no metric differs."""
        if not self.metrics:
            return {}
        return {"first": self.metrics[0], "largest": max(self.metrics, key=lambda one: one.size)}

    def lines(self) -> Iterator[str]:
        """Yield the verdict and the differences."""
        metrics = f"{len(self.metrics):,} metric values differ" if self.metrics else "all recorded metrics agree"
        distances = ", ".join(f"{size:.2g} in {name}" for name, size in self.weights.items() if size)
        same = f"all weights agree in {', '.join(self.weights)}" if self.weights else "no checkpoints to compare"
        yield f"{self.verdict}: {metrics}; {f'relative distance of the weights: {distances}' if distances else same}"
        for name, one in self.extremes.items():
            yield f"{name} difference: {one}"


def compare_results(run: RunDir, again: RunDir) -> Outcome:
    """Compare metrics.csv, the final metrics, and the weights in the checkpoints that both runs have."""
    before, now = _values(run), _values(again)
    if before.get(TESTED) != now.get(TESTED) or "changed" in run.metrics().get("test", {}):  # tested in different ways
        before = {key: value for key, value in before.items() if key[0] != "test"}
    largest: dict[str, float] = {}
    for (_, metric), value in before.items():
        largest[metric] = max(largest.get(metric, 0.0), _size(value))
    differ: list[Difference] = []
    for (place, metric), value in before.items():
        found = now.get((place, metric), value)
        if found != value:
            differ.append(Difference(place, metric, value, found, _relative(value, found, largest[metric])))
    import_named(run.config_file)  # modules may declare classes in checkpoints to be safe
    names = sorted(path.name for path in run.checkpoints.glob("*.ckpt") if (again.checkpoints / path.name).exists())
    weights = {name: _distance(*(read(one.checkpoints / name)["state_dict"] for one in (run, again))) for name in names}
    return Outcome(differ, weights)


def _values(run: RunDir) -> dict[tuple[str, str], str]:
    """Return the recorded metrics, keyed by place and name. Timings and per-class metrics are excluded."""
    found: dict[tuple[str, str], Any] = {}
    for row in run.history()[1]:
        place = f"step {row['step']}" + (f" (epoch {row['epoch']})" if row.get("epoch") else "")
        found |= {(place, name): value for name, value in row.items()}
    for section in ("fit", "test"):
        found |= {(section, name): value for name, value in run.metrics().get(section, {}).items()}
    if TESTED in found:
        found[TESTED] = Path(str(found[TESTED])).name
    return {
        (place, name): str(value)
        for (place, name), value in found.items()
        if isinstance(value, int | float | str)
        and not name.endswith(("seconds", "_per_second"))
        and name != "best_checkpoint"  # rounding decides between equally good epochs
        and not is_detail(name)
    }


def _size(value: str) -> float:
    """Return the absolute value of a finite number, or 0 for anything else."""
    try:
        return abs(float(value)) if math.isfinite(float(value)) else 0.0
    except ValueError:
        return 0.0


def _relative(before: str, now: str, largest: float) -> float:
    """Return the relative difference between two unequal values, or infinity if a value is not a finite number."""
    try:
        size = abs(float(now) - float(before)) / max(largest, _size(now))
    except (ValueError, ZeroDivisionError):  # a value is not a number, or 0 is compared with -0
        return math.inf
    return size if math.isfinite(size) else math.inf


def _distance(before: Mapping[str, torch.Tensor], now: Mapping[str, torch.Tensor]) -> float:
    """Return the distance between two state dicts relative to the norm of `before` (0 only if all bits are equal)."""
    if [(name, x.shape, x.dtype) for name, x in before.items()] != [(n, x.shape, x.dtype) for n, x in now.items()]:
        return math.inf
    bits = [[x.contiguous().reshape(-1).view(torch.uint8) for x in one.values()] for one in (before, now)]
    if all(map(torch.equal, *bits)):
        return 0.0
    a, b = (torch.cat([x.double().flatten() for x in one.values() if x.is_floating_point()]) for one in (before, now))
    size = ((a - b).norm() / a.norm()).item()
    return size if 0 < size < math.inf else math.inf


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs between two entries in provenance.json. The most likely causes come first."""
    facts: list[dict[str, Any]] = []
    for entry in (before, now):
        data = {f"data ({split})": value[:8] for split, value in (entry.get("data") or {}).items()}
        machine = {name: entry.get(name) for name in ("devices", "processes", "cpu_threads", "platform", "host")}
        facts.append({**data, **entry.get("versions", {}), **machine})
    one, other = facts
    modules, known = before.get("modules", {}), now.get("modules", {})
    found = [f"{name} has changed" for name in modules if known.get(name, modules[name]) != modules[name]]
    facts_differ = [name for name in one if other.get(name, one[name]) != one[name]]
    found += [f"{name}: {other[name]} instead of {one[name]}" for name in facts_differ]
    return found + ([] if before.get("data") and now.get("data") else ["the data have no fingerprints to compare"])


def guess_reason(changes: Sequence[str], entry: Mapping[str, Any]) -> str:
    """Return the most likely reason why the results differ."""
    if changes:
        return changes[0]
    if entry.get("devices") != ["cpu"]:
        return "the device adds numbers in a nondeterministic order; trainer.deterministic=true prevents this"
    return "random numbers or inputs that are not recorded"
