"""From a map of features to one vector an image."""

import torch
from torch import Tensor, nn


class BilinearPool(nn.Module):
    """Products of all pairs of channels, averaged over the places, signed square root, length 1.

    Bilinear pooling of one net with itself (Lin, RoyChowdhury & Maji 2015): with features `x_p` of the places p,
    `z = Σ_p x_p x_pᵀ / P`, `y = sign(z) √|z|`, `y / ‖y‖`. It tells fine-grained classes apart by which features occur
    together, and needs channels² weights a class: `channels` first maps the features to fewer.

    Args:
        in_channels: of the features, C.
        channels: K of a 1×1 convolution before the products; null for none.

    Shapes:
        `(B, C, H, W)` → `(B, K²)`.
    """

    def __init__(self, in_channels: int, channels: int | None = None) -> None:
        super().__init__()
        self.reduce = nn.Identity() if channels is None else nn.Conv2d(in_channels, channels, 1, bias=False)
        self.size = (channels or in_channels) ** 2

    def forward(self, features: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, K²)`."""
        x_BKP = self.reduce(features).flatten(2)
        given = x_BKP.dtype
        with torch.autocast(x_BKP.device.type, enabled=False):  # in half precision 1e-10 is 0
            x_BKP = x_BKP if given == torch.double else x_BKP.float()
            z_BKK = x_BKP @ x_BKP.mT / x_BKP.shape[2]
            # the root has no derivative at 0: its argument is kept from it by far less than features differ by
            root = z_BKK.sign() * (z_BKK.abs() + 1e-10).sqrt()
            return nn.functional.normalize(root.flatten(1), dim=1).to(given)
