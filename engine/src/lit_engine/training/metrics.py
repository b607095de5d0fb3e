"""Metrics of torchmetrics by their names: `model.metrics` of a config."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from torchmetrics import Metric

from lit_engine._jsonargparse import class_of_factory
from lit_engine.distributed.processes import replicas
from lit_engine.errors import UserError

SIZES = ("num_classes", "num_labels")  # arguments that a config may leave out: the task knows them


class MetricFactory(Protocol):
    """Makes a metric; the task gives it those of SIZES that it has."""

    def __call__(self, *, num_classes: int, num_labels: int) -> Metric: ...


GivenMetrics = list[Metric | MetricFactory] | dict[str, Metric | MetricFactory]


class Metrics:
    """The metrics of a task, by name.

    They are not registered as modules of the task. So they appear in no checkpoint, are not sharded, and are not
    averaged with the weights: a config may add or drop them when a run is resumed.

    Args:
        given: a list, whose metrics are named after their classes (`multiclass_f1_score`), or by name.
        parts: what the numbers of a vector are of: names of classes, labels or targets.

    Raises:
        UserError: here and later, if two have one name, or one refuses what it gets or gives no numbers.
    """

    def __init__(self, given: GivenMetrics | None = None, parts: Sequence[str] = ()) -> None:
        self.parts = parts
        self.named: dict[str, Metric] = {}
        self.shapes: list[tuple[int, ...]] = []  # of the last predictions and targets, for messages
        for name, one in given.items() if isinstance(given, dict) else ((None, one) for one in given or ()):
            metric = one if isinstance(one, Metric) else self._made(one)
            name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
            if not re.fullmatch(r"[\w.-]+", name):
                raise UserError(f"model.metrics: a name is a word without spaces and slashes, unlike {name!r}")
            if name in self.named:
                raise UserError(f"model.metrics: two are called {name}: name them, as {{NAME: {{class_path: …}}, …}}")
            self.named[name] = metric

    def _made(self, factory: Any) -> Metric:
        kind = class_of_factory(factory)
        with _naming(kind):
            return factory(**{size: len(self.parts) for size in SIZES if size in inspect.signature(kind).parameters})

    def start(self, task: Any) -> None:
        """Begins an evaluation, on the device of the task."""
        for metric in self.named.values():
            metric.reset()
            metric.to(task.device).process_group = replicas(task.trainer).group  # each batch counts once

    def update(self, values: Iterable[Any]) -> None:
        values = list(values)
        self.shapes = [tuple(value.shape) for value in values if isinstance(value, Tensor)]
        for metric in self.named.values():
            with _naming(type(metric), self.shapes):
                metric.update(*values)

    def compute(self) -> dict[str, float]:
        """The numbers over all processes, which all call this; those of a vector as `NAME/PART`, if defined."""
        found: dict[str, float] = {}
        for name, metric in self.named.items():
            with _naming(type(metric), self.shapes):
                found |= self._numbers(name, metric.compute())
            metric.reset()  # some keep all predictions
        return found

    def _numbers(self, name: str, value: Any) -> dict[str, float]:
        if isinstance(value, Tensor) and value.ndim == 1:
            parts = self.parts if len(self.parts) == len(value) else range(len(value))
            value = {part: number for part, number in zip(parts, value, strict=True) if not number.isnan()}
        if isinstance(value, Mapping):
            several = [self._numbers(f"{name}/{part}", one) for part, one in value.items()]
            return {key: number for one in several for key, number in one.items()}
        if getattr(value, "ndim", 1) != 0:
            raise ValueError("it gives no number, and none per class")
        return {name: float(value)}


@contextmanager
def _naming(kind: type, shapes: Sequence[tuple[int, ...]] = ()) -> Iterator[None]:
    """Names the metric that rejects its arguments or a batch, and the shapes of what the batch gave it."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        batch = f" (predictions and targets have the shapes {', '.join(map(str, shapes))})" if shapes else ""
        raise UserError(f"model.metrics: {kind.__name__}: {' '.join(str(error).split())}{batch}") from error
