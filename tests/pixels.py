"""Helpers for testing transforms: images and all their possible crops."""

import torch
from torch.nn import functional as F


def images(batch=8, channels=2, height=5, width=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (batch, channels, height, width), generator=generator, dtype=torch.uint8)


def windows(image, padding, fill=0):
    """Return all (2p+1)² windows of the padded image `(C, H, W)` by offset."""
    _, height, width = image.shape
    padded = F.pad(image, [padding] * 4, value=fill)
    return {
        (top, left): padded[:, top : top + height, left : left + width]
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    }
