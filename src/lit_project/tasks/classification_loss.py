"""The loss of a classifier: label smoothing, class weights, soft targets."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Literal

import torch
from torch import Tensor, nn

from lit_engine.errors import did_you_mean
from lit_project.models.losses import WeightedCrossEntropy


def build_loss(
    class_names: Sequence[str],
    loss: nn.Module | None = None,
    label_smoothing: float = 0.0,
    class_weights: Mapping[str, float] | Literal["balanced"] | None = None,
    class_counts: Sequence[int] | None = None,
) -> nn.Module:
    """Check the options of a `Classifier`, and return its loss: `loss`, or a cross-entropy with the options.

    Raises:
        ValueError: if there are fewer than two classes, or an option does not apply to the loss.
    """
    if len(class_names) < 2:
        raise ValueError(f"a classifier needs two classes at least, got {', '.join(class_names) or 'none'}")
    for name, value in (("label_smoothing", label_smoothing), ("class_weights", class_weights)):
        if loss is not None and value:
            raise ValueError(f"{name} is for the default loss: leave out either {name} or the loss")
    weight, classes = getattr(loss, "weight", None), len(class_names)
    if isinstance(weight, Tensor) and len(weight) != classes:
        raise ValueError(f"the loss has {len(weight)} weights for {classes} classes; class_weights takes names")
    if class_weights:
        return WeightedCrossEntropy(weights_by_class(class_weights, class_names, class_counts), label_smoothing)
    return loss or nn.CrossEntropyLoss(label_smoothing=label_smoothing)


def weights_by_class(
    given: Mapping[str, float] | Literal["balanced"], class_names: Sequence[str], counts: Sequence[int] | None
) -> list[float]:
    """Return the weight of each class in the order of `class_names`.

    Raises:
        ValueError: if a class is unknown, a weight is not positive, or the class counts are unknown.
    """
    if given == "balanced":
        if counts is None or not all(counts):
            raise ValueError("class_weights balanced: the data have no class_counts; give the weights by class name")
        return [sum(counts) / len(counts) / count for count in counts]
    assert not isinstance(given, str)
    for name, weight in given.items():
        if name not in class_names:
            raise ValueError(f"class_weights: there is no class {name!r}{did_you_mean(name, class_names)}")
        if not weight > 0:
            raise ValueError(f"class_weights: the weight of {name!r} must be above 0, got {weight}")
    return [given.get(name, 1.0) for name in class_names]


def without_smoothing(loss: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss without label smoothing, for evaluation."""
    loss = copy(loss)
    if hasattr(loss, "label_smoothing"):
        loss.label_smoothing = 0.0  # type: ignore[assignment]
    return loss.forward  # not the module, which a task would save in checkpoints a second time


def check_soft_targets(loss: nn.Module, num_classes: int) -> None:
    """Raises ValueError unless a loss accepts probabilities `(B, K)` as targets."""
    soft = torch.full((2, num_classes), 1 / num_classes)
    try:
        value = loss(torch.zeros_like(soft), soft)
        fine = value.ndim == 0 and bool(value.isfinite())
    except Exception:  # a user's loss may raise anything
        fine = False
    if not fine:
        raise ValueError(
            f"mixing needs a loss that takes probabilities (B, K) as targets; {type(loss).__name__} does not: take the "
            "default loss, or SmoothedCrossEntropy"
        )
