"""Random images."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from lit_engine.data.images import ImageData
from lit_engine.data.module import random_split


class Noise(nn.Module):
    """Adds noise of up to `level` grey levels, which is different in each step."""

    def __init__(self, level: int = 20):
        super().__init__()
        self.level = level

    def forward(self, images):
        noise = torch.randint_like(images, -self.level, self.level + 1, dtype=torch.int16)
        return (images + noise).clamp(0, 255).to(images.dtype)


class Digits(ImageData):
    """1,797 noisy copies `(1, 8, 8)` of ten patterns: 360 for testing, `val_size` for validation."""

    def __init__(self, val_size: int = 180, **kwargs):
        super().__init__(**kwargs)
        self.val_size = val_size
        self.class_names = [str(digit) for digit in range(10)]
        self.input_shape, self.mean, self.std = (1, 8, 8), [0.5], [0.25]

    def load(self, split):
        generator = torch.Generator().manual_seed(0)
        targets = torch.randint(0, 10, (1797,), generator=generator)
        patterns = 255 * torch.rand(10, 1, 8, 8, generator=generator)
        images = patterns[targets] + 120 * torch.randn(1797, 1, 8, 8, generator=generator)
        rest, test = self.hold_out(len(targets), 360, targets)
        train, val = random_split(len(rest), self.val_size)
        chosen = {"train": rest[train], "val": rest[val], "test": test}[split]
        return images[chosen].clamp(0, 255).to(torch.uint8), targets[chosen]


class Images(ImageData):
    """Random images `(1, 4, 4)` of four classes: 29 for training, 17 each for validation and testing."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.class_names, self.input_shape, self.mean, self.std = list("abcd"), (1, 4, 4), [0.4], [0.3]

    def load(self, split):
        generator = torch.Generator().manual_seed(len(split))
        size = 29 if split == "train" else 17
        targets = torch.randint(0, 4, (size,), generator=generator)
        return torch.randint(0, 256, (size, 1, 4, 4), generator=generator, dtype=torch.uint8), targets


class Pictures(ImageData):
    """Random images `(1, 6, 5)` of three classes: `size` for training, `size // 2` each for validation and testing."""

    def __init__(self, size: int = 23, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.class_names, self.input_shape, self.mean, self.std = list("abc"), (1, 6, 5), [0.5], [0.25]

    def load(self, split):
        generator = torch.Generator().manual_seed(len(split))
        size = self.size if split == "train" else self.size // 2
        images = torch.randint(0, 256, (size, 1, 6, 5), generator=generator, dtype=torch.uint8)
        return images, torch.arange(size) % 3


class PictureDataset(Pictures):
    """The same images as a dataset, whose samples can be loaded in other processes."""

    def load(self, split):
        return TensorDataset(*super().load(split))
