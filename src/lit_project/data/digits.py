"""Handwritten digits: 1,797 real scans of 8×8 pixels (Alpaydin & Kaynak 1998), a file of this package."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_engine.data.images import ImageData
from lit_engine.data.module import Split, random_split


class Digits(ImageData):
    """Ten classes, 8×8 grey. There is no official split: a fixed 360 are test, a fixed `val_size` validation.

    Args:
        val_size: samples of validation, of the 1,437 that are not test.
        **kwargs: of `ImageData` and `SplitData`; `root` is not used.
    """

    TEST_SIZE = 360

    def __init__(self, val_size: int = 180, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.val_size = val_size
        self.class_names = [str(digit) for digit in range(10)]
        self.input_shape = (1, 8, 8)
        self.mean, self.std = [0.305], [0.376]  # of the training split; those of any fold differ by 0.001

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Images, uint8 `(N, 1, 8, 8)`, and targets, int64 `(N,)`."""
        digits = np.load(Path(__file__).with_name("files") / "digits.npz")
        # 17 grey levels (0 to 16) to 256
        images = torch.from_numpy(digits["images"]).double().mul(255 / 16).round().to(torch.uint8)[:, None]
        targets = torch.from_numpy(digits["target"]).long()
        rest, test = self.hold_out(len(targets), self.TEST_SIZE, targets)
        train, val = random_split(len(rest), self.val_size)
        chosen = {"train": rest[train], "val": rest[val], "test": test}[split]
        return images[chosen], targets[chosen]
