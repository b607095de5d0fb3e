"""Mixup and cutmix augmentation."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Mixing:
    """Mixup and cutmix, which mix pairs of images and their targets in the same proportion λ ~ Beta(α, α).

    - Mixup (Zhang et al., 2018) computes `λ x + (1 - λ) x'`.
    - Cutmix (Yun et al., 2019) copies a rectangle from x' that covers `1 - λ` of the area. The rectangle is clipped at
      the border, and λ is then set to the remaining fraction of x.

    Each image gets its own random λ, rectangle position and partner x'.

    Args:
        mixup_alpha: α of mixup; 0 disables it.
        cutmix_alpha: α of cutmix; 0 disables it.
        cutmix_share: probability of cutmix instead of mixup, if both are enabled.
        probability: probability that a batch is mixed.
        off_last_epochs: number of final epochs without mixing. Runs that end at `max_steps` are also supported.

    Raises:
        ValueError: both methods are disabled, or a value is out of range.
    """

    mixup_alpha: float = 0.0
    cutmix_alpha: float = 0.0
    cutmix_share: float = 0.5
    probability: float = 1.0
    off_last_epochs: int = 0

    def __post_init__(self) -> None:
        if min(self.mixup_alpha, self.cutmix_alpha) < 0 or self.mixup_alpha == self.cutmix_alpha == 0:
            raise ValueError(
                f"mixing needs a positive mixup_alpha or cutmix_alpha, got {self.mixup_alpha} and {self.cutmix_alpha}"
            )
        if not (0 <= self.cutmix_share <= 1 and 0 <= self.probability <= 1 and self.off_last_epochs >= 0):
            raise ValueError("mixing: cutmix_share and probability must be in [0, 1], and off_last_epochs at least 0")

    def is_active(self, epoch: int, epochs: int | None) -> bool:
        """Return whether an epoch, counted from 0, uses mixing. If `epochs` is None, the run's length is unlimited."""
        return not self.off_last_epochs or epochs is None or epoch < epochs - self.off_last_epochs

    def __call__(self, images: Tensor, targets: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
        """Mix float images `(B, C, H, W)` and int64 targets `(B,)`. Return images and probabilities `(B, K)`."""
        target_BK = F.one_hot(targets, num_classes).to(torch.promote_types(images.dtype, torch.float32))
        mix, cut = torch.rand(2).tolist()
        if mix >= self.probability:
            return images, target_BK
        use_cutmix = self.cutmix_alpha > 0 and (self.mixup_alpha == 0 or cut < self.cutmix_share)
        alpha = self.cutmix_alpha if use_cutmix else self.mixup_alpha
        # Beta does not support half precision, which is the default dtype with the precision bf16-true or 16-true.
        beta = torch.distributions.Beta(*torch.full((2,), alpha, dtype=torch.float32))
        share_B = beta.sample((len(images),)).to(target_BK, non_blocking=True)
        partner_B = torch.randperm(len(images)).to(images.device, non_blocking=True)
        if use_cutmix:
            inside_BHW, share_B = rectangles(share_B, images.shape[2], images.shape[3])
            images = torch.where(inside_BHW[:, None], images[partner_B], images)
        else:
            weight = share_B[:, None, None, None]
            images = (weight * images + (1 - weight) * images[partner_B]).to(images.dtype)
        return images, share_B[:, None] * target_BK + (1 - share_B[:, None]) * target_BK[partner_B]


def rectangles(share_B: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Return masks (bool `(B, H, W)`, true inside the rectangle) and the remaining fractions λ `(B,)`.

    Each rectangle has √(1 - λ) times the image's height and width. Its centre is uniformly distributed (Yun et al.,
    2019, equation 2).
    """
    side_B = (1 - share_B).sqrt()
    spans = []
    for size in (height, width):
        centre_B = torch.randint(size, share_B.shape).to(share_B.device, non_blocking=True)
        half_B = (side_B * size).long() // 2
        places = torch.arange(size, device=share_B.device)
        spans.append((places >= (centre_B - half_B)[:, None]) & (places < (centre_B + half_B)[:, None]))
    inside_BHW = spans[0][:, :, None] & spans[1][:, None, :]
    return inside_BHW, 1 - inside_BHW.to(share_B.dtype).mean(dim=(1, 2))


def check_soft_targets(loss: nn.Module, num_classes: int) -> None:
    """Raise ValueError unless a loss accepts probabilities `(B, K)` as targets."""
    soft = torch.full((2, num_classes), 1 / num_classes)
    try:
        value = loss(torch.zeros_like(soft), soft)
        fine = value.ndim == 0 and bool(value.isfinite())
    except Exception:  # A user's loss may raise any exception.
        fine = False
    if not fine:
        raise ValueError(
            f"mixing requires a loss that accepts class probabilities (B, K), but {type(loss).__name__} rejects them: "
            "use the default loss or SmoothedCrossEntropy"
        )
