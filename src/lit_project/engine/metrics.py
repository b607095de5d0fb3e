"""Metrics of torchmetrics by their names: `model.metrics` of a config."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor
from torchmetrics import Metric

from .distributed import replicas
from .errors import UserError

COUNTS = ("num_classes", "num_labels")


class Uncounted(Protocol):  # the names are COUNTS, which a config may leave out
    """Makes a metric; the task tells it how many classes or labels there are."""

    def __call__(self, *, num_classes: int, num_labels: int) -> Metric: ...


Given = list[Metric | Uncounted] | dict[str, Metric | Uncounted]


class Metrics:
    """The metrics of a task, by name; outside its modules: no part of checkpoints, shards and averages.

    Args:
        given: a list, whose metrics are named after their classes (`multiclass_f1_score`), or by name.
        parts: what numbers of a vector are of: names of classes, labels or targets.

    Raises:
        UserError: here and later, if two have one name, or one refuses what it gets or gives no numbers.
    """

    def __init__(self, given: Given | None = None, parts: Sequence[str] = ()) -> None:
        self.parts = parts
        self.named: dict[str, Metric] = {}
        for name, one in given.items() if isinstance(given, dict) else ((None, one) for one in given or ()):
            metric = one if isinstance(one, Metric) else self._counted(one)
            name = name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
            if not re.fullmatch(r"[\w.-]+", name):
                raise UserError(f"model.metrics: a name is a word without spaces and slashes, unlike {name!r}")
            if name in self.named:
                raise UserError(f"model.metrics: two are called {name}: name them, as {{NAME: {{class_path: …}}, …}}")
            self.named[name] = metric

    def _counted(self, partial: Any) -> Metric:
        kind = partial.args[-1] if partial.args else partial.func  # the class; jsonargparse's has it as an argument
        with _about(kind, ValueError):
            return partial(**{n: len(self.parts) for n in COUNTS if n in inspect.signature(kind).parameters})

    def start(self, task: Any) -> None:
        """Begins an evaluation, on the device of the task."""
        for metric in self.named.values():
            metric.reset()
            metric.to(task.device).process_group = replicas(task.trainer).group  # each batch counts once

    def update(self, values: Iterable[Any]) -> None:
        """Takes a batch of predictions and targets."""
        values = list(values)
        for metric in self.named.values():
            with _about(type(metric), Exception):  # a metric may raise anything
                metric.update(*values)

    def compute(self) -> dict[str, float]:
        """The numbers over all processes, which all call this; those of a vector as `NAME/PART`, if defined."""
        found: dict[str, float] = {}
        for name, metric in self.named.items():
            with _about(type(metric), ValueError):
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
def _about(kind: type, *errors: type[Exception]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise UserError(f"model.metrics: {kind.__name__}: {' '.join(str(error).split())}") from error
