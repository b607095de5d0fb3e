"""Fashion-MNIST (Xiao et al., 2017) and MNIST (LeCun et al., 1998), read from their official archives."""

from typing import Any, ClassVar

from torch import Tensor

from lit_engine.data.images import ImageData
from lit_engine.data.module import Split, random_split
from lit_engine.errors import DataError

# Errors that torchvision raises if files are missing, truncated or malformed.
BROKEN_ARCHIVE = (OSError, RuntimeError, ValueError, AssertionError, KeyError)


class FashionMNIST(ImageData):
    """70,000 greyscale images of clothing in ten classes, with 28×28 pixels each.

    The official test split has 10,000 images. The validation split is a fixed subset of the 60,000 training images. If
    the archives are not in `root/FashionMNIST/raw`, torchvision downloads them and verifies their MD5 checksums.

    Args:
        val_size: number of validation samples.
        **kwargs: arguments of `ImageData` and `SplitData`.

    Raises:
        DataError: an archive is missing or corrupt and cannot be downloaded. The message explains how to add the file.
    """

    NAME: ClassVar[str] = "FashionMNIST"
    official_test = True
    CLASSES: ClassVar[list[str]] = [
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ]  # fmt: skip
    MEAN_STD: ClassVar[tuple[float, float]] = (0.2860, 0.3530)  # computed on the 60,000 training images

    def __init__(self, val_size: int = 5000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.val_size = val_size
        self.class_names = list(self.CLASSES)
        self.input_shape = (1, 28, 28)
        self.mean, self.std = [self.MEAN_STD[0]], [self.MEAN_STD[1]]

    def prepare_data(self) -> None:
        """Download missing or corrupt archives and unpack them. Lightning calls this in one process per node."""
        if self.new is None:
            self._read(download=True)

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return uint8 images `(N, 1, 28, 28)` and int64 targets `(N,)`."""
        dataset = self._read(train=split != "test")
        images, targets = dataset.data[:, None], dataset.targets.long()
        if split == "test":
            return images, targets
        if not 0 < self.val_size < len(targets):
            raise DataError(f"val_size must be between 1 and {len(targets) - 1}, got {self.val_size}")
        train, val = random_split(len(targets), self.val_size)
        chosen = train if split == "train" else val
        return images[chosen], targets[chosen]

    def _read(self, **options: bool) -> Any:
        """Return torchvision's dataset. Its constructor reads the files, and downloads them first if requested."""
        from torchvision import datasets

        kind = getattr(datasets, self.NAME)
        try:
            return kind(str(self.root), **options)
        except BROKEN_ARCHIVE as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            urls = ", ".join(f"{kind.mirrors[0]}{archive}" for archive, _ in kind.resources)
            raise DataError(
                f"cannot download or read {self.NAME} ({reason}). Download {urls} to {self.root / self.NAME / 'raw'}, "
                "and delete any *-ubyte files there"
            ) from error


class MNIST(FashionMNIST):
    """70,000 greyscale images of handwritten digits, with 28×28 pixels each. See `FashionMNIST` for the splits."""

    NAME = "MNIST"
    CLASSES: ClassVar[list[str]] = [str(digit) for digit in range(10)]
    MEAN_STD = (0.1307, 0.3081)
