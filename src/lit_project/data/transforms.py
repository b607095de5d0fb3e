"""Augmentation of whole batches on the device, with random choices made anew for every sample.

`torchvision.transforms.v2` applied to a batch draws once a call: one crop offset, one flip for all images. Here the
random ones are applied sample by sample; the two that nearly every recipe uses are vectorised.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RandomHorizontalFlip(nn.Module):
    """Mirrors each image of a batch with probability `p`.

    Shapes:
        `(B, C, H, W)` → `(B, C, H, W)`, any dtype.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p must be a probability, got {p}")
        self.p = p

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, C, H, W)`."""
        flip_B = torch.rand(len(images), device=images.device) < self.p
        return torch.where(flip_B[:, None, None, None], images.flip(-1), images)


class RandomCrop(nn.Module):
    """Pads each image by `padding` pixels of `fill` on all sides and cuts the old size out at a random place.

    The usual augmentation of small images (He et al. 2016, section 4.2); `padding=4` suits 32×32.

    Shapes:
        `(B, C, H, W)` → `(B, C, H, W)`, any dtype.
    """

    def __init__(self, padding: int, fill: int = 0) -> None:
        super().__init__()
        if padding < 1:
            raise ValueError(f"padding must be at least 1, got {padding}")
        self.padding = padding
        self.fill = fill

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, C, H, W)`."""
        batch, _, height, width = images.shape
        device = images.device
        padded = F.pad(images, [self.padding] * 4, value=self.fill)
        top_B, left_B = torch.randint(0, 2 * self.padding + 1, (2, batch), device=device)
        # windows as views (B, C, 2p+1, 2p+1, H, W), of which one a sample is copied: quicker than gathering pixels
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        return windows[torch.arange(batch, device=device), :, top_B, left_B]


class PerSample(nn.Module):
    """Applies a transform to each image of a batch by itself, so that it draws its random numbers for each."""

    def __init__(self, transform: nn.Module) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, C', H', W')`."""
        return torch.stack([self.transform(image) for image in images])


def is_random(transform: nn.Module) -> bool:
    """Whether a torchvision v2 transform, or one inside it, draws random numbers."""
    from torchvision.transforms import v2

    if not isinstance(transform, v2.Transform):
        return False
    name = type(transform).__name__
    draws = type(transform).make_params is not v2.Transform.make_params or name.startswith("Random") or "Aug" in name
    return draws or any(is_random(child) for child in transform.children())


def opened(transforms: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The transforms in their order, those in a `v2.Compose` or `nn.Sequential` one by one."""
    from torchvision.transforms import v2

    for transform in transforms:
        if isinstance(transform, v2.Compose | nn.Sequential):
            yield from opened(transform.transforms if isinstance(transform, v2.Compose) else transform)
        else:
            yield transform if isinstance(transform, nn.Module) else v2.Lambda(transform)


class BatchTransforms(nn.Module):
    """A sequence of transforms on a batch; random ones of torchvision are applied per sample.

    Shapes:
        `(B, C, H, W)` → `(B, C', H', W')`.
    """

    def __init__(self, transforms: Sequence[nn.Module]) -> None:
        super().__init__()
        steps = opened(transforms) if transforms else ()  # without any, torchvision is not imported
        self.steps = nn.ModuleList(PerSample(step) if is_random(step) else step for step in steps)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, C', H', W')`."""
        for step in self.steps:
            images = step(images)
        return images
