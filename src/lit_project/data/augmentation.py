"""Augmentation of whole batches on the device, with separate random parameters for each sample.

If `torchvision.transforms.v2` is applied to a batch, all images get the same crop offset or flip. Here, each sample
gets its own random parameters, but the batch is still processed as a whole.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RandomHorizontalFlip(nn.Module):
    """Random horizontal flip of each image in a batch, with probability `p`. Supports any dtype."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, images: Tensor) -> Tensor:
        """Augment a batch `(B, C, H, W)` without changing its shape."""
        flip_B = torch.rand(len(images), device=images.device) < self.p
        return torch.where(flip_B[:, None, None, None], images.flip(-1), images)


class RandomCrop(nn.Module):
    """Random crop of each image to its original size, after padding each side with `padding` pixels of value `fill`.

    Supports any dtype. This crop is common for small images, with `padding=4` for 32×32 (He et al., 2016, section 4.2).
    """

    def __init__(self, padding: int, fill: int = 0) -> None:
        super().__init__()
        self.padding, self.fill = padding, fill

    def forward(self, images: Tensor) -> Tensor:
        """Augment a batch `(B, C, H, W)` without changing its shape."""
        batch, _, height, width = images.shape
        device = images.device
        padded = F.pad(images, [self.padding] * 4, value=self.fill)
        top_B, left_B = torch.randint(0, 2 * self.padding + 1, (2, batch), device=device)
        # `windows` is a view `(B, C, 2p+1, 2p+1, H, W)`. Copying one window per sample is faster than gathering pixels.
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(batch, device=device), :, top_B, left_B]


class RandomResizedCrop(nn.Module):
    """Random crop of each image, resized to a fixed size. A standard augmentation for ImageNet (Szegedy et al., 2015).

    The area of the crop, the logarithm of its aspect ratio (width / height) and its position are uniformly distributed.
    If ten random crops in a row exceed the image, the largest centred crop with an aspect ratio in the range is used.
    The interpolation is bilinear, without antialiasing. Unlike torchvision's transform of the same name, this one
    processes a whole batch at once, with a different crop for each image.

    Args:
        size: output height and width in pixels.
        scale: minimum and maximum area of the crop, as a fraction of the image area.
        ratio: minimum and maximum aspect ratio.
    """

    def __init__(
        self, size: int, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ) -> None:
        super().__init__()
        self.size, self.scale, self.ratio = size, scale, ratio

    def boxes(self, count: int, height: int, width: int) -> Tensor:
        """Sample a crop for each of `count` images. Return the top, left, height and width, int64 `(count, 4)`."""
        found = random_boxes(count, height, width, self.scale, self.ratio)
        middle_w, middle_h = width, height
        if width / height < self.ratio[0]:
            middle_h = round(width / self.ratio[0])
        elif width / height > self.ratio[1]:
            middle_w = round(height * self.ratio[1])
        centred = torch.tensor([(height - middle_h) // 2, (width - middle_w) // 2, middle_h, middle_w])
        return torch.where(found[:, 2:3] > 0, found, centred)

    def forward(self, images: Tensor) -> Tensor:
        """Augment uint8 or float images `(B, C, H, W)`. Return `(B, C, size, size)` with the same dtype."""
        height, width = images.shape[2:]
        top, left, h, w = self.boxes(len(images), height, width).to(images.device, non_blocking=True).float().unbind(1)
        y, x = _places(top, h, self.size, height), _places(left, w, self.size, width)
        grid_BHW2 = torch.stack(
            [x[:, None, :].expand(-1, self.size, -1), y[:, :, None].expand(-1, -1, self.size)], dim=3
        )
        return _sample_grid(images, grid_BHW2, "border")


def _places(start: Tensor, length: Tensor, count: int, whole: int) -> Tensor:
    """Return where to read `count` output pixels of crops along one axis, `(B, count)`, for `F.grid_sample`.

    Args:
        start: first pixel of each crop, `(B,)`.
        length: number of pixels of each crop, `(B,)`.
        count: number of output pixels.
        whole: number of pixels of the image, which span -1 to 1.
    """
    steps = (torch.arange(count, device=start.device) + 0.5) / count
    # The first and the last pixel of a crop are repeated, so that no pixel outside of the crop is read.
    in_crop = (steps * length[:, None] - 0.5).clamp(min=0).minimum(length[:, None] - 1)
    return (start[:, None] + in_crop + 0.5) * 2 / whole - 1


class RandomErasing(nn.Module):
    """Random erasing of a rectangle in each image, with probability `p` (Zhong et al., 2020).

    It works like torchvision's transform of the same name, but processes a whole batch at once, with different random
    parameters for each image. An image stays unchanged if none of ten random rectangles fits into it.

    Args:
        p: probability of erasing.
        scale: minimum and maximum area of the rectangle, as a fraction of the image area.
        ratio: minimum and maximum ratio of the rectangle's height to its width, as in torchvision.
        fill: value of the erased pixels, from 0 to 255 for the images of the bundled data modules.

    Raises:
        ValueError: `p` is not in [0, 1].
    """

    def __init__(
        self, p: float = 0.5, scale: tuple[float, float] = (0.02, 0.33), ratio: tuple[float, float] = (0.3, 3.3),
        fill: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p must be in [0, 1], got {p}")
        self.p, self.scale, self.ratio, self.fill = p, scale, ratio, fill

    def forward(self, images: Tensor) -> Tensor:
        """Augment a batch `(B, C, H, W)` without changing its shape. Supports any dtype."""
        batch, _, height, width = images.shape
        boxes = random_boxes(batch, height, width, self.scale, (1 / self.ratio[1], 1 / self.ratio[0]))
        boxes = boxes * (torch.rand(batch, 1) < self.p)
        top, left, h, w = boxes.to(images.device, non_blocking=True)[:, :, None].unbind(1)
        y, x = (torch.arange(size, device=images.device) for size in (height, width))
        inside_BHW = ((y >= top) & (y < top + h))[:, :, None] & ((x >= left) & (x < left + w))[:, None]
        return images.masked_fill(inside_BHW[:, None], self.fill)


def random_boxes(count: int, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Sample random boxes in images of `height` × `width` pixels.

    The area (as a fraction of the image), the logarithm of the aspect ratio and the position are uniformly distributed.

    Returns:
        Top, left, height and width, int64 `(count, 4)`. The size is 0 if none of ten random boxes fits into the image.
    """
    tries = 10
    area = height * width * torch.empty(count, tries).uniform_(*scale)
    aspect = torch.empty(count, tries).uniform_(math.log(ratio[0]), math.log(ratio[1])).exp()
    w, h = (area * aspect).sqrt().round().long(), (area / aspect).sqrt().round().long()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.long().argmax(dim=1, keepdim=True)  # `argmax` returns the first maximum.
    w, h = ((part * fits).gather(1, first)[:, 0] for part in (w, h))
    top, left = ((torch.rand(count) * (size - part + 1)).long() for size, part in ((height, h), (width, w)))
    return torch.stack([top, left, h, w], dim=1)


class RandomAffine(nn.Module):
    """Random rotation, scaling, shear and shift of each image about its centre. The background is black.

    All parameters are uniformly distributed. The interpolation is bilinear. Unlike torchvision's transform of the same
    name, this one processes a whole batch at once, with different random parameters for each image.

    Args:
        degrees: maximum rotation in degrees, in both directions.
        translate: maximum shift as a fraction of height and width, in both directions.
        scale: minimum and maximum scale factor.
        shear: maximum shear parallel to the x axis in degrees, in both directions.
    """

    def __init__(
        self, degrees: float, translate: float = 0.0, scale: tuple[float, float] = (1.0, 1.0), shear: float = 0.0
    ) -> None:
        super().__init__()
        if not 0 < scale[0] <= scale[1]:
            raise ValueError(f"scale must be positive and ascending, got {scale}")
        self.degrees, self.translate, self.scale, self.shear = degrees, translate, scale, shear

    def draw(self, count: int, height: int, width: int) -> Tensor:
        """Return random rotations (°), shifts to the right and down (pixels), scales and shears (°) as `(5, count)`."""
        right, down = self.translate * width, self.translate * height
        ranges = [*((-limit, limit) for limit in (self.degrees, right, down)), self.scale, (-self.shear, self.shear)]
        return torch.stack([torch.empty(count).uniform_(*each) for each in ranges])

    def forward(self, images: Tensor) -> Tensor:
        """Augment uint8 or float images `(B, C, H, W)` without changing their shape or dtype."""
        height, width = images.shape[2:]
        degrees, right, down, scale, shear = self.draw(len(images), height, width).to(images.device, non_blocking=True)
        angle, slope = degrees.deg2rad(), shear.deg2rad().tan()
        # The inverse of scale · rotation · shear maps output pixels to source pixels, relative to the centre.
        cos, sin = angle.cos() / scale, angle.sin() / scale
        xx, xy, yx, yy = cos - slope * sin, sin + slope * cos, -sin, cos
        across = torch.stack([xx, xy * height / width, -(xx * right + xy * down) * 2 / width], dim=1)
        along = torch.stack([yx * width / height, yy, -(yx * right + yy * down) * 2 / height], dim=1)
        grid_BHW2 = F.affine_grid(torch.stack([across, along], dim=1), list(images.shape), align_corners=False)
        return _sample_grid(images, grid_BHW2, "zeros")


def _sample_grid(images: Tensor, grid_BHW2: Tensor, beyond: str) -> Tensor:
    """Run bilinear `F.grid_sample` and preserve the dtype. `beyond` is the padding mode outside the images."""
    found = F.grid_sample(images.float(), grid_BHW2, mode="bilinear", padding_mode=beyond, align_corners=False)
    return (found if images.is_floating_point() else found.round()).to(images.dtype)


class ImageNetTrain(nn.Sequential):
    """Random resized crop and horizontal flip, the standard augmentation for ImageNet since 2015 (Szegedy et al.).

    Args:
        size: output height and width in pixels. Training works best with a smaller size than evaluation ("FixRes",
            Touvron et al., 2019). For example, torchvision's recipes train at 176 and evaluate at 224.
        scale: minimum and maximum area of a crop, as a fraction of the image area.
        flip: probability of a flip.

    Shapes:
        Images `(B, C, H, W)` become `(B, C, size, size)`.
    """

    def __init__(self, size: int = 224, scale: tuple[float, float] = (0.08, 1.0), flip: float = 0.5) -> None:
        super().__init__(RandomResizedCrop(size, scale), RandomHorizontalFlip(flip))


class ImageNetEval(nn.Sequential):
    """Transform that resizes the shorter side to a fixed length and then crops the centre.

    Args:
        size: output height and width in pixels.
        resize: length of the shorter side before cropping. Default: 8/7 of `size`.

    Raises:
        ValueError: `resize` is smaller than `size`.

    Shapes:
        Images `(B, C, H, W)` become `(B, C, size, size)`.
    """

    def __init__(self, size: int = 224, resize: int | None = None) -> None:
        from torchvision.transforms import v2

        resize = resize or round(size * 8 / 7)
        if resize < size:
            raise ValueError(f"resize must be at least size, got {resize} and {size}")
        super().__init__(v2.Resize(resize, antialias=True), v2.CenterCrop(size))
