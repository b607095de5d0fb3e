"""Classification losses, and a penalty for large weights."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def at_least_float32(values: Tensor) -> Tensor:
    """Convert half-precision values to float32 before a sum, as torch's own losses do. Accepts any shape."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


class SmoothedCrossEntropy(nn.CrossEntropyLoss):
    """Cross-entropy with a target of 1 - ε for the correct class and ε/(K - 1) for every other class.

    This is the "smoothed target" of classic translation code. torch's `label_smoothing` spreads ε evenly over all K
    classes, including the correct class (Szegedy et al., 2016). A `label_smoothing` of ε K / (K - 1) is equivalent.

    Args:
        smoothing: ε, at most (K - 1) / K.

    Shapes:
        logits `(B, K)`; targets int64 `(B,)` or probabilities `(B, K)`; the loss is a scalar, averaged over the batch.
    """

    def __init__(self, smoothing: float = 0.1) -> None:
        if not 0 <= smoothing < 1:
            raise ValueError(f"smoothing must be in [0, 1), got {smoothing}")
        super().__init__(label_smoothing=smoothing)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        logits, classes = at_least_float32(input), input.shape[1]
        target = target.to(logits.dtype) if target.is_floating_point() else target
        return F.cross_entropy(logits, target, label_smoothing=self.label_smoothing * classes / (classes - 1))


class WeightedCrossEntropy(nn.CrossEntropyLoss):
    """Cross-entropy with class weights, averaged over the samples in the batch.

    torch's own loss is divided by the sum of the weights in a batch. The mean over batches therefore differs from the
    mean over samples.

    Args:
        weights: weight of each class; 0 ignores a class.
        label_smoothing: fraction of the target that is spread evenly over all classes.

    Shapes:
        logits `(B, K)`; targets int64 `(B,)` or probabilities `(B, K)`; the loss is a scalar.
    """

    weight: Tensor

    def __init__(self, weights: Sequence[float], label_smoothing: float = 0.0) -> None:
        if wrong := [str(weight) for weight in weights if not 0 <= weight < float("inf")]:
            raise ValueError(f"class weights must be finite and not negative, got {', '.join(wrong)}")
        super().__init__(label_smoothing=label_smoothing)
        self.register_buffer("weight", torch.tensor(list(weights)), persistent=False)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        logits = at_least_float32(input)
        target = target.to(logits.dtype) if target.is_floating_point() else target
        weight, smoothing = self.weight.to(logits.dtype), self.label_smoothing
        return F.cross_entropy(logits, target, weight, reduction="sum", label_smoothing=smoothing) / len(target)


class FocalLoss(nn.Module):
    """Cross-entropy times `(1 - p)^γ`, where p is the target's probability. Easy samples count less (Lin et al., 2017).

    Args:
        gamma: γ; 0 is plain cross-entropy.
        weight: weight of each class, such as its inverse frequency, in the order of the class names (sorted for folders
            and tables). With γ = 0, the loss is equivalent to `WeightedCrossEntropy`.

    Shapes:
        logits `(B, K)`; targets int64 `(B,)`; the loss is a scalar, averaged over the batch.
    """

    weight: Tensor | None

    def __init__(self, gamma: float = 2.0, weight: list[float] | None = None) -> None:
        super().__init__()
        if not gamma >= 0:
            raise ValueError(f"gamma must be at least 0, got {gamma}")
        self.gamma = gamma
        self.register_buffer("weight", None if weight is None else torch.tensor(weight), persistent=False)

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_p = at_least_float32(logits).log_softmax(dim=1).gather(1, targets[:, None]).squeeze(1)
        # Clamp 1 - p to a positive value, because its power has no derivative at 0 if γ < 1.
        rest = (-log_p.expm1()).clamp_min(torch.finfo(log_p.dtype).tiny)
        loss = -(rest**self.gamma) * log_p
        return (loss if self.weight is None else loss * self.weight[targets]).mean()


@dataclass
class WeightPenalty:
    """The penalty `l1 Σ|w| + l2 Σ w²` over all trainable weights, which is added to the loss.

    Weights are parameters with at least two axes, so biases and the scales of norm layers are excluded. With SGD, an
    `l2` of λ/2 is equivalent to a `weight_decay` of λ, but not with adaptive optimizers (Loshchilov & Hutter, 2019).

    Args:
        l1: coefficient of the sum of absolute values.
        l2: coefficient of the sum of squares.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __call__(self, module: nn.Module) -> Tensor:
        """Return the penalty for a module's weights as a scalar, which is 0 if no weight is trainable."""
        weights = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
        total = torch.zeros((), device=next((p.device for p in module.parameters()), None), dtype=torch.float32)
        if self.l1:
            total = total + self.l1 * sum(at_least_float32(w).abs().sum() for w in weights)
        if self.l2:
            total = total + self.l2 * sum(at_least_float32(w).square().sum() for w in weights)
        return total


def build_loss(
    class_names: Sequence[str],
    loss: nn.Module | None = None,
    label_smoothing: float = 0.0,
    class_weights: Sequence[float] | None = None,
) -> nn.Module:
    """Check the loss options of a `Classifier`. Return `loss` or, by default, a cross-entropy with these options.

    Raises:
        ValueError: there are fewer than two classes, or an option does not apply to the loss.
    """
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
    if len(class_names) < 2:
        raise ValueError(f"a classifier needs at least two classes, got {', '.join(class_names) or 'none'}")
    for name, value in (("label_smoothing", label_smoothing), ("class_weights", class_weights)):
        if loss is not None and value:
            raise ValueError(f"{name} applies only to the default loss: remove either {name} or the loss")
    checked = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss | FocalLoss)
    weight = getattr(loss, "weight", None) if checked else None
    if weight is not None and len(weight) != len(class_names):
        raise ValueError(f"the loss has {len(weight)} weights for {len(class_names)} classes: set one weight per class")
    if class_weights:
        return WeightedCrossEntropy(class_weights, label_smoothing)
    return loss or nn.CrossEntropyLoss(label_smoothing=label_smoothing)


def remove_smoothing(loss: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the `forward` of a loss without label smoothing, for evaluation."""
    if hasattr(loss, "label_smoothing"):
        loss = copy(loss)
        loss.label_smoothing = 0.0  # type: ignore[assignment]
    return loss.forward  # If the module were returned, checkpoints would contain it a second time.
