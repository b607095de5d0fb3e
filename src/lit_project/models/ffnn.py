"""Feed-forward network for tables: numbers in, numbers out."""

from torch import Tensor, nn

from lit_project.models.mlp import ACTIVATIONS, Activation


class FFNN(nn.Module):
    """`hidden_layers` fully connected layers of the same width, and a linear output layer.

    Each hidden layer is linear → activation → dropout. No activation follows the output layer: it gives any number.

    Args:
        input_size: number of features; comes from the data.
        output_size: number of targets; comes from the data.
        hidden_layers: 0 is a linear map.
        hidden_size: units of each hidden layer.
        dropout: probability of zeroing a hidden unit (Srivastava et al. 2014).
        activation: nonlinearity after each hidden layer.

    Raises:
        ValueError: a size below 1, a negative number of layers, or a dropout outside [0, 1).

    Shapes:
        input `(B, input_size)`, output `(B, output_size)`.
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
        super().__init__()
        sizes = {"input_size": input_size, "output_size": output_size, "hidden_size": hidden_size}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if hidden_layers < 0:
            raise ValueError(f"hidden_layers must not be negative, got {hidden_layers}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        layers: list[nn.Module] = []
        width = input_size
        for _ in range(hidden_layers):
            layers += [nn.Linear(width, hidden_size), ACTIVATIONS[activation]()]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            width = hidden_size
        self.layers = nn.Sequential(*layers, nn.Linear(width, output_size))

    def forward(self, x: Tensor) -> Tensor:
        """`(B, input_size)` → `(B, output_size)`."""
        return self.layers(x)
