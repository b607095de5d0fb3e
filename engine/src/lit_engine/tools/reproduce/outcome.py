"""Compares the results of a run and of its reproduction, and finds reasons for differences."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lit_engine.checkpoints.io import read
from lit_engine.run.directory import RunDir

ROUNDING = 1e-4  # largest relative difference between metrics that is considered rounding
TIMINGS = ("seconds", "_per_second")


@dataclass(frozen=True)
class Difference:
    """A metric with different values.

    Attributes:
        place: where it occurs, such as `step 20 (epoch 1)`.
        name: name of the metric.
        before: its value in the run.
        now: its value in the reproduction.
        size: the difference, relative to the largest absolute value of this metric in the run.
    """

    place: str
    name: str
    before: Any
    now: Any
    size: float

    def __str__(self) -> str:
        return f"{self.place}: {self.name} {self.now} instead of {self.before}"


@dataclass(frozen=True)
class Outcome:
    """The result of a comparison.

    Attributes:
        metrics: the differences between metrics, in the order of training.
        weights: largest difference between the weights of each checkpoint that both runs have, relative to the largest
            weight of the same tensor.
    """

    metrics: list[Difference]
    weights: dict[str, float]

    @property
    def verdict(self) -> str:
        sizes = [one.size for one in self.metrics]
        if not sizes and self.weights and not any(self.weights.values()):
            return "bit-identical"
        return "equal within rounding" if all(size <= ROUNDING for size in sizes) else "different"

    @property
    def status(self) -> int:
        return 3 if self.verdict == "different" else 0

    def lines(self) -> Iterator[str]:
        """Yield the verdict and what it is based on."""
        if self.verdict == "bit-identical":
            yield f"bit-identical: all metrics, and the weights in {', '.join(self.weights)}"
            return
        yield f"{self.verdict}: {len(self.metrics):,} recorded metrics differ"
        if self.metrics:
            yield f"first difference: {self.metrics[0]}"
            largest = max(self.metrics, key=lambda one: one.size)
            yield f"largest difference: {largest} (relative {largest.size:.2g})"
        weights = [f"{size:.2g} in {name}" for name, size in self.weights.items()]
        yield f"largest relative difference between weights: {', '.join(weights) or 'no checkpoint to compare'}"

    def document(self) -> dict[str, Any]:
        """Return JSON data."""
        first, largest = self.metrics[:1], sorted(self.metrics, key=lambda one: -one.size)[:1]
        found = {name: asdict(one[0]) if one else None for name, one in (("first", first), ("largest", largest))}
        return {"verdict": self.verdict, **found, "weights": self.weights}


def compare_results(run: RunDir, again: RunDir) -> Outcome:
    """Compare metrics.csv, the final metrics, and the weights in the checkpoints that both runs have."""
    names = sorted(path.name for path in run.checkpoints.glob("*.ckpt") if (again.checkpoints / path.name).exists())
    weights = {name: _weights_differ(run.checkpoints / name, again.checkpoints / name) for name in names}
    return Outcome([*_rows_differ(run, again), *_sections_differ(run, again)], weights)


def _rows_differ(run: RunDir, again: RunDir) -> Iterator[Difference]:
    (columns, rows), (others, repeated) = run.history(), again.history()
    names = [name for name in columns if name in others and not name.endswith(TIMINGS)]
    largest = {name: max((abs(float(row[name])) for row in rows if row[name]), default=0.0) for name in names}
    for row, other in zip(rows, repeated, strict=False):
        place = f"step {row['step']}" + (f" (epoch {row['epoch']})" if row.get("epoch") else "")
        for name in names:
            if row[name] != other[name]:
                yield Difference(place, name, row[name], other[name], _relative(row[name], other[name], largest[name]))
    if len(rows) != len(repeated):
        yield Difference("metrics.csv", "rows", len(rows), len(repeated), math.inf)


def _sections_differ(run: RunDir, again: RunDir) -> Iterator[Difference]:
    """Compare metrics.json. The test counts only if it used the same checkpoint and options."""
    before, now = run.metrics(), again.metrics()
    for section in ("fit", "test"):
        old, new = dict(leaves(before.get(section, {}))), dict(leaves(now.get(section, {})))
        for one in (old, new):
            one["checkpoint"] = Path(str(one.get("checkpoint"))).name
        if section == "test" and (old["checkpoint"] != new["checkpoint"] or "changed" in before.get("test", {})):
            continue
        for name in old:
            if name in new and old[name] != new[name] and not name.endswith(TIMINGS):
                yield Difference(section, name, old[name], new[name], _relative(old[name], new[name], 0))


def leaves(value: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of everything that is not a mapping."""
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from leaves(one, f"{before}{name}/")
        else:
            yield f"{before}{name}", one


def _relative(before: Any, now: Any, largest: float) -> float:
    """Return the relative difference of two values, infinite unless both are finite numbers."""
    try:
        before, now = float(before), float(now)
        size = abs(now - before) / max(abs(before), abs(now), largest)
    except (TypeError, ValueError):  # such as the name of a checkpoint or an empty cell
        return math.inf
    return size if math.isfinite(size) else math.inf


def _weights_differ(one: Path, other: Path) -> float:
    """Return the largest difference between the weights in two checkpoints, relative to each tensor's largest one."""
    before, now = (read(path)["state_dict"] for path in (one, other))
    if {name: (x.shape, x.dtype) for name, x in before.items()} != {n: (x.shape, x.dtype) for n, x in now.items()}:
        return math.inf
    sizes = [0.0]
    for name, tensor in before.items():
        bits = [x.contiguous().reshape(-1).view(torch.uint8) for x in (tensor, now[name])]
        if not torch.equal(*bits):
            a, b = tensor.double(), now[name].double()
            size = ((a - b).abs().max() / a.abs().max()).item()
            sizes.append(size if math.isfinite(size) else math.inf)
    return max(sizes)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how two entries in provenance.json differ, with the most likely reasons for different results first."""
    data = [before.get("data") or {}, now.get("data") or {}]
    found = [
        f"data: the {name} split has changed" for name, value in data[0].items() if data[1].get(name, value) != value
    ]
    found += [] if all(data) else ["data: there are no fingerprints, so the data cannot be verified"]
    versions = [before.get("versions", {}), now.get("versions", {})]
    named = [(name, value, versions[1].get(name)) for name, value in versions[0].items()]
    named += [
        (name, before.get(name), now.get(name)) for name in ("devices", "processes", "cpu_threads", "platform", "host")
    ]
    return found + [f"{name}: {new} instead of {old}" for name, old, new in named if old != new and old is not None]


def likely_reason(changes: Sequence[str], entry: Mapping[str, Any]) -> str:
    """Return the most likely reason for a different result, given the differences."""
    if changes:
        return changes[0]
    if entry.get("devices") != ["cpu"]:
        return "the device adds numbers in a different order each time: set trainer.deterministic to true"
    return "random numbers or inputs that the run does not record"
