"""Penalties on the size of the weights."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class WeightPenalty:
    """`l1 Σ|w| + l2 Σ w²` over the weights that train, added to the loss.

    Weights are the parameters with two axes or more: no biases, no scales of norms. Under SGD an `l2` of λ/2 is a
    `weight_decay` of λ; under adaptive optimizers the two differ (Loshchilov & Hutter 2019).

    Args:
        l1: of the sum of absolute values.
        l2: of the sum of squares.

    Raises:
        ValueError: a negative factor.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        """Checks the factors."""
        if min(self.l1, self.l2) < 0:
            raise ValueError(f"penalties must be at least 0, got l1={self.l1}, l2={self.l2}")

    def __call__(self, module: nn.Module) -> Tensor:
        """The penalty of a module's weights, a scalar; 0 where none trains."""
        weights = [p for p in module.parameters() if p.requires_grad and p.ndim > 1]
        total = torch.zeros((), device=next((p.device for p in module.parameters()), None))
        if not weights:
            return total
        if self.l1:
            total = total + self.l1 * torch.stack([w.abs().sum() for w in weights]).sum()
        if self.l2:
            total = total + self.l2 * torch.stack([w.square().sum() for w in weights]).sum()
        return total
