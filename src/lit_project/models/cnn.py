"""Small convolutional networks configured by a list of layers."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from lit_project.models.dropout import Dropout

KERNEL_SIZE = 3


def output_size(size: Sequence[int], layers: Sequence[int | str], padding: int) -> tuple[int, int]:
    """Return the output height and width for an image of `size` (H, W). Raise ValueError if an output is empty."""
    height, width = size
    for position, layer in enumerate(layers):
        if layer == "pool":
            height, width = height // 2, width // 2
        else:
            change = 2 * padding - (KERNEL_SIZE - 1)
            height, width = height + change, width + change
        if min(height, width) < 1:
            raise ValueError(
                f"layer {position} ({layer}) of {list(layers)} has an empty output for images of {size[0]}×{size[1]} "
                f"pixels: use fewer 'pool' layers{'' if padding else ', or padding 1'}"
            )
    return height, width


class CNN(nn.Module):
    """A configurable sequence of convolutions and max-pooling, followed by one hidden layer and a linear head.

    Two classic networks for 28×28 images can be built as follows.

    - The TensorFlow/Keras CNN tutorial uses `layers=[32, pool, 64, pool, 64], hidden=64, padding=0`.
    - PyTorch's MNIST example uses `layers=[32, 64, pool], hidden=128, padding=0, dropout=0.25, head_dropout=0.5`.

    Args:
        input_shape: shape `(C, H, W)` of one image; set from the data.
        num_classes: number of outputs; set from the data.
        layers: a number adds a 3×3 convolution with this many output channels, and `pool` adds 2×2 max-pooling.
        hidden: width of the head's hidden layer; 0 for none.
        padding: zero padding of each convolution in pixels. A padding of 1 preserves the image size.
        norm: `batch` adds batch norm between each convolution and its ReLU.
        dropout: probability of zeroing a feature between the convolutions and the head.
        head_dropout: probability of zeroing a unit of the hidden layer.

    Raises:
        ValueError: the image is too small for the layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        layers: Sequence[int | Literal["pool"]] = (32, "pool", 64, "pool", 64),
        hidden: int = 64,
        padding: int = 1,
        norm: Literal["none", "batch"] = "none",
        dropout: float = 0.0,
        head_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels = input_shape[0]
        features: list[nn.Module] = []
        for layer in layers:
            if layer == "pool":
                features.append(nn.MaxPool2d(2))
                continue
            # Batch norm subtracts the mean, so a bias before it would have no effect.
            features.append(nn.Conv2d(channels, layer, kernel_size=KERNEL_SIZE, padding=padding, bias=norm == "none"))
            if norm == "batch":
                features.append(nn.BatchNorm2d(layer))
            features.append(nn.ReLU())
            channels = layer
        self.features = nn.Sequential(*features)
        flat = channels * math.prod(output_size(input_shape[1:], layers, padding))

        head: list[nn.Module] = [nn.Flatten(), Dropout(dropout)]
        if hidden:
            head += [nn.Linear(flat, hidden), nn.ReLU(), Dropout(head_dropout)]
        head.append(nn.Linear(hidden or flat, num_classes))
        self.head = nn.Sequential(*head)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, num_classes)` for images `(B, C, H, W)`."""
        return self.head(self.features(x))
