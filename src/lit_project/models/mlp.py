"""Multi-layer perceptron. The classic 784-512-512-10 is `MLP((1, 28, 28), 10, hidden_sizes=[512, 512])`."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

Activation = Literal["relu", "gelu", "silu", "tanh", "leaky_relu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
}


class MLP(nn.Module):
    """Flattens its input and applies `hidden_sizes` fully connected layers and a linear head.

    Each hidden layer is linear → norm → activation → dropout. No activation follows the head: it gives logits.

    Args:
        input_shape: shape of one sample, such as `(C, H, W)`; comes from the data.
        num_classes: number of outputs; comes from the data.
        hidden_sizes: width of each hidden layer; an empty list is a linear classifier.
        activation: nonlinearity after each hidden layer.
        dropout: probability of zeroing a hidden unit (Srivastava et al. 2014).
        norm: normalisation before the activation: `batch` (Ioffe & Szegedy 2015) or `layer` (Ba et al. 2016).

    Shapes:
        input `(B, *input_shape)`, output `(B, num_classes)`.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        hidden_sizes: Sequence[int] = (512, 512),
        activation: Activation = "relu",
        dropout: float = 0.0,
        norm: Literal["none", "batch", "layer"] = "none",
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(input_shape)
        for hidden in hidden_sizes:
            # a bias before batch norm is cancelled by its mean
            layers.append(nn.Linear(width, hidden, bias=norm != "batch"))
            if norm != "none":
                layers.append(nn.BatchNorm1d(hidden) if norm == "batch" else nn.LayerNorm(hidden))
            layers.append(ACTIVATIONS[activation]())
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = hidden
        layers.append(nn.Linear(width, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """`(B, *input_shape)` → logits `(B, num_classes)`."""
        return self.layers(x)
