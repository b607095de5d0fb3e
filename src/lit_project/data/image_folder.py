"""A user's own images: one folder a class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Subset

from lit_project.data.datasets import DatasetImages
from lit_project.data.in_memory import random_split
from lit_project.data.picture_files import UNREADABLE
from lit_project.errors import DataError

SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test", "testing")}


def open_image(path: str) -> Image.Image:
    """Reads an image file; an unreadable one is an error that names it."""
    try:
        with Image.open(path) as image:
            image.load()
            return image
    except UNREADABLE as error:
        raise DataError(f"cannot read the image {path}: {error}") from error


class ImageFolder(DatasetImages):
    """Images in `root/train/CLASS/`, `root/val/CLASS/`, `root/test/CLASS/`; or all in `root/CLASS/`.

    Without a `train` folder a fixed `test_size` of all images becomes the test split; without a `val` folder a fixed
    `val_size` of the rest becomes validation.

    Args:
        root: the folder.
        image_size: height and width that images are resized to, in pixels.
        crop: keep their proportions, and cut off what is then too long; otherwise they are squashed.
        channels: 3 for colour, 1 for grey.
        test_size: share of the images for the test split where there are no split folders.
        class_names: default: the names of the class folders, sorted. If given they must be the same.
        mean: of each channel, of values in [0, 1]; default: ImageNet's for colour, 0.5 for grey.
        std: of each channel.
        **kwargs: of `DatasetImages` and `ImageData`.

    Raises:
        DataError: no such folder, no class folder in it, or other classes than `class_names` or than in training.
    """

    def __init__(
        self,
        root: str | Path = "data/images",
        image_size: int = 224,
        crop: bool = False,
        channels: int = 3,
        test_size: float = 0.1,
        class_names: list[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        root = Path(root)
        splits = _read_splits(root, test_size, class_names)
        colour = channels == 3
        super().__init__(
            train=splits.get("train"),
            val=splits.get("val"),
            test=splits.get("test"),
            root=root,
            class_names=class_names,
            input_shape=(channels, image_size, image_size),
            mean=mean or ([0.485, 0.456, 0.406] if colour else [0.5] * channels),
            std=std or ([0.229, 0.224, 0.225] if colour else [0.5] * channels),
            **kwargs,
        )
        self.crop = crop


def _read_splits(root: Path, test_size: float, class_names: list[str] | None) -> dict[str, Any]:
    """The datasets by split; none if `root` is missing and the classes are known (to predict elsewhere)."""
    if not root.is_dir():
        if class_names:
            return {}
        raise DataError(f"no such folder of images: {root}")
    folders = {
        split: next((root / n for n in names if (root / n).is_dir()), None) for split, names in SPLIT_FOLDERS.items()
    }
    if folders["train"] is None:
        everything = _read_folder(root, class_names)
        rest, test = random_split(len(everything), round(len(everything) * test_size))
        splits: dict[str, Any] = {"train": Subset(everything, rest.tolist()), "test": Subset(everything, test.tolist())}
        splits["train"].classes = everything.classes
        return splits
    train = _read_folder(folders["train"], class_names)
    others = {s: _read_folder(f, train.classes) for s, f in folders.items() if f is not None and s != "train"}
    return {"train": train, **others}


def _read_folder(folder: Path, class_names: list[str] | None) -> Any:
    from torchvision.datasets import ImageFolder as Folder

    try:
        dataset = Folder(str(folder), loader=open_image)
    except FileNotFoundError as error:  # no class folder, or one without an image
        raise DataError(str(error)) from error
    if len(dataset.classes) < 2:
        raise DataError(f"{folder} has one class folder only ({dataset.classes[0]}): there is nothing to tell apart")
    if class_names and dataset.classes != list(class_names):
        differing = ", ".join(sorted(set(dataset.classes) ^ set(class_names))) or "their order, which must be sorted"
        raise DataError(f"{folder} has other classes than expected; they differ in: {differing}")
    return dataset
