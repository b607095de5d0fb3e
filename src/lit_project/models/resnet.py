"""Residual networks for small images."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class BilinearPool(nn.Module):
    """Bilinear pooling of a network's features with themselves (Lin, RoyChowdhury & Maji, 2015).

    For features `x_p` at P positions, it computes `z = Σ_p x_p x_pᵀ / P`, `y = sign(z) √|z|` and `y / ‖y‖`. This
    distinguishes fine-grained classes by the features that occur together. Since the head needs K² weights per class,
    the number of channels can be reduced first.

    Args:
        in_channels: number of feature channels, C.
        channels: number of channels K after an initial 1×1 convolution. Default: no convolution.
    """

    def __init__(self, in_channels: int, channels: int | None = None) -> None:
        super().__init__()
        self.reduce = nn.Identity() if channels is None else nn.Conv2d(in_channels, channels, 1, bias=False)
        self.size = (channels or in_channels) ** 2

    def forward(self, features: Tensor) -> Tensor:
        """Pool features `(B, C, H, W)` to `(B, K²)`."""
        x_BKP = self.reduce(features).flatten(2)
        given = x_BKP.dtype
        with torch.autocast(x_BKP.device.type, enabled=False):  # In half precision, 1e-10 would be rounded to 0.
            x_BKP = x_BKP if given == torch.double else x_BKP.float()
            z_BKK = x_BKP @ x_BKP.mT / x_BKP.shape[2]
            # Add a negligible value, because the square root has no derivative at 0.
            root = z_BKK.sign() * (z_BKK.abs() + 1e-10).sqrt()
            return nn.functional.normalize(root.flatten(1), dim=1).to(given)


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut, `relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))`.

    If the shape changes, the shortcut is a 1×1 convolution with batch norm (option B of He et al., 2016).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, C_in, H, W)` to `(B, C_out, H/stride, W/stride)`."""
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network with a stem, three stages of `(depth - 2) / 6` blocks, pooling and a linear head.

    The second and third stages each halve the image size and double the channels. With `depth=20, width=16`, this
    is the ResNet-20 of He et al., but its shortcuts use option B instead of A. It has 0.27 M parameters.

    Args:
        input_shape: shape `(C, H, W)` of one image; set from the data.
        num_classes: number of outputs; set from the data.
        depth: number of layers, which must be 6n + 2 (8, 14, 20, 32, 44, 56…).
        width: number of channels in the first stage.
        pooling: global `average` pooling, or `bilinear` pooling (see `BilinearPool`).

    Raises:
        ValueError: `depth` is not 6n + 2.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        depth: int = 20,
        width: int = 16,
        pooling: Literal["average", "bilinear"] = "average",
    ) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 with n ≥ 1 (8, 14, 20, 32…), got {depth}")
        blocks_per_stage = (depth - 2) // 6
        self.stem = nn.Sequential(
            nn.Conv2d(input_shape[0], width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        blocks: list[nn.Module] = []
        channels = width
        for stage in range(3):
            for block in range(blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(ResidualBlock(channels, width * 2**stage, stride))
                channels = width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.pool = BilinearPool(channels) if pooling == "bilinear" else None
        self.head = nn.Linear(self.pool.size if self.pool else channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # This preserves the variance of gradients (He et al., 2015).
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits `(B, num_classes)` for images `(B, C, H, W)`."""
        features = self.blocks(self.stem(x))
        return self.head(features.mean(dim=(2, 3)) if self.pool is None else self.pool(features))
