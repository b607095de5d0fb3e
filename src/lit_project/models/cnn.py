"""Small convolutional nets written as a list of layers, so that the two classic ones are two configurations."""

import math
from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from lit_project.models.dropout import Dropout

KERNEL_SIZE = 3


def output_size(size: Sequence[int], layers: Sequence[int | str], padding: int) -> tuple[int, int]:
    """Height and width after `layers` of an image of `size` = (H, W).

    Raises:
        ValueError: nothing is left.
    """
    height, width = size
    for position, layer in enumerate(layers):
        if layer == "pool":
            height, width = height // 2, width // 2
        else:
            change = 2 * padding - (KERNEL_SIZE - 1)
            height, width = height + change, width + change
        if min(height, width) < 1:
            raise ValueError(
                f"layer {position} ({layer}) of {list(layers)} leaves nothing of images of {size[0]}×{size[1]} pixels: "
                f"use fewer 'pool'{'' if padding else ', or padding 1'}"
            )
    return height, width


class CNN(nn.Module):
    """Convolutions and max-pooling as listed, then one hidden layer and a linear head that gives logits.

    Two classic nets for 28×28 images:

    - `layers=[32, pool, 64, pool, 64], hidden=64, padding=0`: the net of the TensorFlow/Keras CNN tutorial;
    - `layers=[32, 64, pool], hidden=128, padding=0, dropout=0.25, head_dropout=0.5`: the net of PyTorch's
      `examples/mnist`.

    Args:
        input_shape: `(C, H, W)` of one image; comes from the data.
        num_classes: number of outputs; comes from the data.
        layers: output channels of each 3×3 convolution; `pool` is a 2×2 max-pooling.
        hidden: units of the hidden layer of the head; 0 for none.
        padding: pixels of zero padding around each convolution; 1 keeps the size.
        norm: `batch` puts batch norm between each convolution and its ReLU.
        dropout: probability of zeroing a feature between the convolutions and the head.
        head_dropout: the same between the hidden layer and the output.

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
            # a bias before batch norm is cancelled by its mean
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
        """`(B, C, H, W)` → logits `(B, num_classes)`."""
        return self.head(self.features(x))
