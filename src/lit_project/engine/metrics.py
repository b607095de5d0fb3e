"""Metrics of torchmetrics by their names: `model.metrics` of a config."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor
from torchmetrics import Metric

from .distributed import replicas
from .errors import UserError


class Uncounted(Protocol):
    """Makes a metric that the config does not tell how many classes or labels there are: the task does."""

    def __call__(self, *, num_classes: int, num_labels: int) -> Metric:
        """The metric, from the count that it takes."""


Given = list[Metric | Uncounted] | dict[str, Metric | Uncounted]


class Metrics:
    """The metrics of a task, outside its modules: they are no part of checkpoints, shards or averages.

    Args:
        given: a list, whose metrics are named after their classes (`multiclass_f1_score`), or by name.
        parts: what numbers of a vector are of: names of classes, labels or targets.

    Raises:
        UserError: two have one name, or one needs a count and there are no `parts`.
    """

    def __init__(self, given: Given | None = None, parts: Sequence[str] = ()) -> None:
        self.parts = parts
        self.named: dict[str, Metric] = {}
        for name, metric in given.items() if isinstance(given, dict) else ((None, one) for one in given or ()):
            if not isinstance(metric, Metric):
                metric = self._counted(metric)
            name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
            if name in self.named:
                raise UserError(f"model.metrics: two are called {name}: name them, as {{NAME: {{class_path: …}}, …}}")
            self.named[name] = metric

    def _counted(self, factory: Any) -> Metric:
        kind = factory.args[-1] if factory.args else factory.func  # of a partial: jsonargparse's, or one of the class
        counts = [name for name in ("num_classes", "num_labels") if name in inspect.signature(kind).parameters]
        if not self.parts:
            raise UserError(f"model.metrics: {kind.__name__} needs {counts[0]}")
        try:
            return factory(**dict.fromkeys(counts, len(self.parts)))
        except ValueError as error:
            raise UserError(f"model.metrics: {kind.__name__}: {error}") from error

    def start(self, task: Any) -> None:
        """Begins an evaluation, on the device of the task."""
        for metric in self.named.values():
            metric.reset()
            metric.to(task.device).process_group = replicas(task.trainer).group  # each batch counts once

    def update(self, values: Iterable[Any]) -> None:
        """Takes a batch of predictions and targets; raises UserError if a metric does not."""
        values = list(values)
        for name, metric in self.named.items():
            try:
                metric.update(*values)
            except Exception as error:  # a metric may raise anything
                raise self._unfit(name, error) from error

    def compute(self) -> dict[str, float]:
        """The numbers over all processes, which all call this; those of a vector as `NAME/PART`, if defined.

        Raises:
            UserError: too few samples for a metric, or it gives something else than numbers.
        """
        found: dict[str, float] = {}
        for name, metric in self.named.items():
            try:
                found |= self._numbers(name, metric.compute())
            except ValueError as error:
                raise self._unfit(name, error) from error
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

    def _unfit(self, name: str, error: Exception) -> UserError:
        kind = type(self.named[name]).__name__
        return UserError(f"model.metrics: {kind} does not fit the task: {' '.join(str(error).split())}")
