"""A perceptron."""

from collections.abc import Sequence

from torch import nn


class MLP(nn.Sequential):
    """Linear layers with ReLU in between: `(B, *input_shape)` → `(B, num_classes)`."""

    def __init__(
        self,
        input_shape: Sequence[int],
        num_classes: int,
        hidden_sizes: Sequence[int] = (32,),
        norm: str = "none",
        dropout: float = 0.0,
    ) -> None:
        size = 1
        for side in input_shape:
            size *= side
        layers = [nn.Flatten()]
        for hidden in hidden_sizes:
            layers += [nn.Linear(size, hidden), nn.ReLU(), nn.Dropout(dropout)]
            size = hidden
        super().__init__(*layers, nn.Linear(size, num_classes))
