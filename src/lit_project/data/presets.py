"""The usual chains of transforms, to be named in a config: `train_transforms: [lit_project.data.presets.…]`."""

from torch import nn

from lit_project.data.transforms import RandomHorizontalFlip, RandomResizedCrop


class ImageNetTrain(nn.Sequential):
    """Random part, resized, and random mirror: training on ImageNet since Szegedy et al. 2015.

    Args:
        size: of the results in pixels. Networks do best when they are trained at a somewhat smaller size than they are
            used at (Touvron et al. 2019, "FixRes"; torchvision's recipes train at 176 and evaluate at 224).
        scale: smallest and largest share of the area of a part.
        flip: probability of mirroring.

    Shapes:
        `(B, C, H, W)` → `(B, C, size, size)`.
    """

    def __init__(self, size: int = 224, scale: tuple[float, float] = (0.08, 1.0), flip: float = 0.5) -> None:
        super().__init__(RandomResizedCrop(size, scale), RandomHorizontalFlip(flip))


class ImageNetEval(nn.Sequential):
    """The shorter side resized, and the middle cut out.

    Args:
        size: of the results in pixels.
        resize: what the shorter side becomes before; default: 8/7 of the size, such as 256 for 224.

    Raises:
        ValueError: it is resized to less than is cut out.

    Shapes:
        `(B, C, H, W)` → `(B, C, size, size)`.
    """

    def __init__(self, size: int = 224, resize: int | None = None) -> None:
        from torchvision.transforms import v2

        resize = resize or round(size * 8 / 7)
        if resize < size:
            raise ValueError(f"resize must be at least size, got {resize} and {size}")
        super().__init__(v2.Resize(resize, antialias=True), v2.CenterCrop(size))
