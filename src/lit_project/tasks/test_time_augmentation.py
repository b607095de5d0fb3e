"""Test-time augmentation, which averages predictions over several views of an image."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lit_project.models.losses import at_least_float32

Flip = Literal["horizontal", "vertical"]
AXES = {"horizontal": -1, "vertical": -2}


def views(images: Tensor, flips: Sequence[Flip] = (), shift: int = 0) -> Iterator[Tensor]:
    """Yield the images, followed by augmented views of them.

    If `shift` is set, the zero-padded images are also cropped at the four corners. Flips apply to each crop, so the
    five crops and one flip axis yield ten views (Krizhevsky et al., 2012).

    Args:
        images: `(B, C, H, W)`.
        flips: axes to flip. With both flips, the image rotated by 180° is also added.
        shift: padding in pixels; 0 for no crops.
    """
    height, width = images.shape[-2:]
    padded = F.pad(images, [shift] * 4)
    ends = (0, 2 * shift) if shift else ()
    for top, left in [(shift, shift), *((top, left) for top in ends for left in ends)]:
        found = [padded[..., top : top + height, left : left + width]]
        for flip in dict.fromkeys(flips):
            found += [view.flip(AXES[flip]) for view in found]
        yield from found


def mean_logits(net: Callable[[Tensor], Tensor], images: Tensor, flips: Sequence[Flip] = (), shift: int = 0) -> Tensor:
    """Return the log of the mean probabilities over all `views`, `(B, K)`. If there is one view, return its logits."""
    if not flips and not shift:
        return at_least_float32(net(images))
    # With CUDA graphs, the next call overwrites the logits, so process each view before calling `net` again.
    logs = [at_least_float32(net(view)).log_softmax(dim=1) for view in views(images, flips, shift)]
    return torch.stack(logs).logsumexp(dim=0) - math.log(len(logs))
