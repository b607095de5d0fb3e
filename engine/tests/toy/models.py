"""A multilayer perceptron."""

from collections.abc import Sequence
from math import prod
from typing import Literal

from torch import nn


class MLP(nn.Module):
    """Linear layers with ReLU in between: `(B, *input_shape)` → `(B, num_classes)`."""

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        hidden_sizes: Sequence[int] = (32,),
        norm: Literal["none", "batch"] = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = prod(input_shape)
        layers = [nn.Flatten()]
        for hidden in hidden_sizes:
            layers += [nn.Linear(size, hidden), *([nn.BatchNorm1d(hidden)] if norm == "batch" else []), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
            size = hidden
        self.layers = nn.Sequential(*layers, nn.Linear(size, num_classes))

    def forward(self, inputs):
        return self.layers(inputs)
