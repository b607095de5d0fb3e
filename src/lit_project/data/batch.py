"""What a batch of images is, and what data must give for it."""

from typing import NamedTuple

import torch
from torch import Tensor

from lit_project.errors import DataError


class ImageBatch(NamedTuple):
    """Images, their classes, and which samples of the split they are.

    `images` is uint8 `(B, C, H, W)` as loaded and float in [0, 1] once it reaches the task; `targets` is int64 `(B,)`
    (-1: unknown); `indices` is int64 `(B,)`.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor


def check_images(images: Tensor, input_shape: tuple[int, int, int], what: str) -> None:
    """Checks images `(N, C, H, W)` that data give: uint8, or floats about in [0, 1] (some resizing goes a bit beyond).

    Raises:
        DataError: they are of another shape than `input_shape` or of another type, or their values are beyond; `what`
            is the subject of its sentence.
    """
    if tuple(images.shape[1:]) != tuple(input_shape):
        raise DataError(f"{what} has the shape {tuple(images.shape[1:])}, not {tuple(input_shape)}")
    if images.dtype == torch.uint8 or not images.numel():
        return
    if not images.is_floating_point():
        raise DataError(f"{what} is of {images.dtype}: it must be torch.uint8, or floats in [0, 1]")
    low, high = (value.item() for value in images.aminmax())
    if not (low >= -0.5 and high <= 1.5):  # NaN, too
        raise DataError(
            f"{what} has values from {low:g} to {high:g}: floats must be in [0, 1], "
            "and no `Normalize` is needed, for the task does that with mean and std"
        )
