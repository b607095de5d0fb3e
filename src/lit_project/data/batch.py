"""What a batch of images is."""

from typing import NamedTuple

from torch import Tensor


class ImageBatch(NamedTuple):
    """Images, their classes, and which samples of the split they are.

    `images` is uint8 `(B, C, H, W)` as loaded and float in [0, 1] once it reaches the task; `targets` is int64 `(B,)`
    (-1: unknown); `indices` is int64 `(B,)`.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor
