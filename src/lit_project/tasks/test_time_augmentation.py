"""Several views of an image, over which predictions are averaged at test time."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Flip = Literal["horizontal", "vertical"]
AXES = {"horizontal": -1, "vertical": -2}


def views(images: Tensor, flips: Sequence[Flip] = (), shift: int = 0) -> Iterator[Tensor]:
    """The images first, and then other views of them.

    With a shift these are the four corners of the image padded with zeros on each side, and the mirror images of all
    of them: with one flip the ten crops of Krizhevsky et al. 2012.

    Args:
        images: `(B, C, H, W)`.
        flips: mirror images; two of them add the image turned by half, too.
        shift: pixels; 0 for none.
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
    """The logarithm of the mean probabilities over the `views`, `(B, K)`; with one view the logits as they are."""
    logits = [net(view).float() for view in views(images, flips, shift)]
    if len(logits) == 1:
        return logits[0]
    return torch.stack([one.log_softmax(dim=1) for one in logits]).logsumexp(dim=0) - math.log(len(logits))
