"""Small datasets for the modules in this folder: points in 20 dimensions and images, both with random noise."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset

CLASSES = 3


class Points(Dataset):
    """Points `(20,)` of three classes. Each access adds noise from torch, `random` and NumPy."""

    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.points = torch.randn(size, 20, generator=generator)
        self.targets = (self.points[:, :5].sum(1) > 0).long() + (self.points[:, 5] > 0).long()

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        noise = 0.1 * torch.randn(20) + 0.01 * random.random() + 0.01 * float(np.random.rand())  # noqa: NPY002
        return self.points[index] + noise, self.targets[index]


def pictures(size, seed):
    """Return images `(size, 1, 8, 8)` in [0, 1] with a bright half, and the index of this half, 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 * torch.rand(size, 1, 8, 8, generator=generator)
    targets = torch.arange(size) % 2
    images[targets == 0, :, :4] += 0.5
    images[targets == 1, :, 4:] += 0.5
    return images, targets
