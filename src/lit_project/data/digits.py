"""A dataset of 1,797 scanned handwritten digits, which is included in this package (Alpaydin & Kaynak, 1998)."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lit_engine.data.images import ImageData
from lit_engine.data.module import Split, random_split


class Digits(ImageData):
    """Greyscale images of 8×8 pixels in ten classes. The test split is a fixed but unofficial set of 360 images.

    Args:
        val_size: size of the validation split, a fixed subset of the 1,437 samples outside the test split.
        **kwargs: arguments of `ImageData` and `SplitData`; `root` is not used.
    """

    TEST_SIZE = 360

    def __init__(self, val_size: int = 180, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.val_size = val_size
        self.class_names = [str(digit) for digit in range(10)]
        self.input_shape = (1, 8, 8)
        self.mean, self.std = [0.305], [0.376]  # computed on the training split (differs by 0.001 between folds)

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return uint8 images `(N, 1, 8, 8)` and int64 targets `(N,)`."""
        digits = np.load(Path(__file__).with_name("files") / "digits.npz")
        # Scale the 17 grey levels (0 to 16) to 256 levels.
        images = torch.from_numpy(digits["images"]).double().mul(255 / 16).round().to(torch.uint8)[:, None]
        targets = torch.from_numpy(digits["target"]).long()
        rest, test = self.hold_out(len(targets), self.TEST_SIZE, targets)
        train, val = random_split(len(rest), self.val_size)
        chosen = {"train": rest[train], "val": rest[val], "test": test}[split]
        return images[chosen], targets[chosen]
