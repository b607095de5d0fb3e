"""Evaluation metrics from torchmetrics, which a config lists in `model.metrics`."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, SupportsFloat

from torch import Tensor
from torchmetrics import Metric

from lit_engine._jsonargparse import class_of_factory
from lit_engine.distributed.processes import replicas
from lit_engine.errors import UserError

SIZES = ("num_classes", "num_labels")  # arguments that a config may omit because the task provides them


class MetricFactory(Protocol):
    """Factory for a metric. If the metric accepts an argument listed in SIZES, the task provides its value."""

    def __call__(self, *, num_classes: int, num_labels: int) -> Metric: ...


GivenMetrics = list[Metric | MetricFactory] | dict[str, Metric | MetricFactory]


class Metrics:
    """The named metrics of a task.

    Metrics are not registered as modules of the task, so they are neither saved in checkpoints nor sharded or averaged
    with the weights. Metrics can be added or removed when a run is resumed.

    Args:
        given: dict of metrics by name, or list of metrics, which are named after their classes (`multiclass_f1_score`).
        parts: names of the classes, labels or targets, for metrics that return one value for each name.

    Raises:
        UserError: if a name is invalid or not unique. Methods raise UserError if a metric fails or rejects its input.
    """

    def __init__(self, given: GivenMetrics | None = None, parts: Sequence[str] = ()) -> None:
        self.parts = parts
        self.named: dict[str, Metric] = {}
        self.is_updated = False  # not `Metric.update_called`, which wrappers such as MinMaxMetric never set
        self.shapes: list[tuple[int, ...]] = []  # shapes of the last inputs, for error messages
        for name, one in given.items() if isinstance(given, dict) else ((None, one) for one in given or ()):
            metric = one if isinstance(one, Metric) else self._make(one)
            name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
            if not re.fullmatch(r"[\w.-]+", name):
                raise UserError(f"model.metrics: {name!r} is not a valid name: use letters, digits, '_', '-' and '.'")
            if name in self.named:
                raise UserError(f"model.metrics: duplicate name {name}: set names as in {{NAME: {{class_path: …}}, …}}")
            self.named[name] = metric

    def _make(self, factory: Any) -> Metric:
        kind = class_of_factory(factory)
        with _name_errors(kind):
            return factory(**{size: len(self.parts) for size in SIZES if size in inspect.signature(kind).parameters})

    def start(self, task: Any) -> None:
        self.is_updated = False
        for metric in self.named.values():
            metric.reset()
            # Reduce over replicas only, so that each batch counts once. A metric may contain other metrics.
            for part in metric.to(task.device).modules():
                if isinstance(part, Metric):
                    part.process_group = replicas(task.trainer).group

    def update(self, values: Iterable[Any]) -> None:
        self.is_updated, values = True, list(values)
        self.shapes = [tuple(value.shape) for value in values if isinstance(value, Tensor)]
        for metric in self.named.values():
            with _name_errors(type(metric), self.shapes):
                metric.update(*values)

    def compute(self) -> dict[str, float]:
        """Return all metrics. All processes must call this.

        Elements of vectors are named `NAME/PART`. Elements that are NaN are omitted.
        """
        found: dict[str, float] = {}
        for name, metric in self.named.items():
            with _name_errors(type(metric), self.shapes):
                found |= self._numbers(name, metric.compute())
            metric.reset()  # some metrics store all predictions, so resetting frees memory
        return found

    def _numbers(self, name: str, value: Any) -> dict[str, float]:
        if isinstance(value, Tensor) and value.ndim == 1:
            parts = self.parts if len(self.parts) == len(value) else range(len(value))
            value = {part: number for part, number in zip(parts, value, strict=True) if not number.isnan()}
        if isinstance(value, Mapping):
            found: dict[str, float] = {}
            for part, one in value.items():
                found |= self._numbers(f"{name}/{part}", one)
            return found
        if not isinstance(value, SupportsFloat) or getattr(value, "ndim", 0) != 0:
            raise ValueError("it returns neither a number nor one number per class")
        return {name: float(value)}


@contextmanager
def _name_errors(kind: type, shapes: Sequence[tuple[int, ...]] = ()) -> Iterator[None]:
    """If a metric fails, add its name and the shapes of its inputs to the error."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        batch = f" (predictions and targets have the shapes {', '.join(map(str, shapes))})" if shapes else ""
        raise UserError(f"model.metrics: {kind.__name__}: {' '.join(str(error).split())}{batch}") from error
