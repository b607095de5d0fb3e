"""Multilayer perceptrons."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from lit_project.models.dropout import Dropout

Activation = Literal["relu", "gelu", "silu", "tanh", "leaky_relu"]
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "leaky_relu": nn.LeakyReLU,
}


class MLP(nn.Module):
    """A multilayer perceptron that flattens inputs of any shape. The linear head returns logits.

    Each hidden layer consists of a linear layer, a norm, an activation and dropout, in that order.

    Args:
        input_shape: shape of one sample, such as `(C, H, W)`; set from the data.
        num_classes: number of outputs; set from the data.
        hidden_sizes: width of each hidden layer; an empty list yields a linear classifier.
        activation: activation function of the hidden layers.
        dropout: probability of zeroing a hidden unit (Srivastava et al., 2014).
        norm: normalization before the activation, `batch` (Ioffe & Szegedy, 2015) or `layer` (Ba et al., 2016).
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
            # Batch norm subtracts the mean, so a bias before it would have no effect.
            layers.append(nn.Linear(width, hidden, bias=norm != "batch"))
            if norm != "none":
                layers.append(nn.BatchNorm1d(hidden) if norm == "batch" else nn.LayerNorm(hidden))
            layers.append(ACTIVATIONS[activation]())
            if dropout > 0:
                layers.append(Dropout(dropout))
            width = hidden
        layers.append(nn.Linear(width, num_classes))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, num_classes)` for inputs `(B, *input_shape)`."""
        return self.layers(x)

    def tensor_parallel_plan(self) -> dict[str, Any]:
        """Return a plan that shards hidden layers. Outputs are gathered, because norms and dropout need all of them."""
        from torch.distributed.tensor import Replicate, parallel  # takes half a second to import

        linear = [f"layers.{number}" for number, layer in enumerate(self.layers) if isinstance(layer, nn.Linear)]
        return {name: parallel.ColwiseParallel(output_layouts=Replicate()) for name in linear[:-1]}


class FFNN(MLP):
    """A feed-forward network with hidden layers of equal width and a linear output layer.

    Each hidden layer consists of a linear layer, an activation and dropout, in that order.

    Args:
        input_size: number of features; set from the data.
        output_size: number of targets; set from the data.
        hidden_layers: number of hidden layers; 0 for a linear map.
        hidden_size: width of each hidden layer.
        dropout: probability of zeroing a hidden unit (Srivastava et al., 2014).
        activation: activation function of the hidden layers.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        hidden_layers: int = 2,
        hidden_size: int = 64,
        dropout: float = 0.0,
        activation: Activation = "relu",
    ) -> None:
        super().__init__((input_size,), output_size, [hidden_size] * hidden_layers, activation, dropout)
