"""Images of your own: one folder per class."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset, Subset

from lit_engine.data.images import UNREADABLE, DatasetImages, decode_smaller, is_picture, pictures_in, to_8bit_upright
from lit_engine.data.module import Split
from lit_engine.errors import DataError

SPLIT_FOLDERS = {"train": "train|training", "val": "val|valid|validation", "test": "test|testing"}


class Pictures(Dataset):
    """`(image, class)` of the files in `folder/CLASS/`, by name.

    Args:
        folder: the folder.
        class_names: the names that the class folders must have; default: any.
        image_size: the size in pixels that images are resized to later; JPEG files are decoded at least twice as large.

    Raises:
        DataError: other classes than `class_names`, fewer than two, or one without an image.
    """

    def __init__(self, folder: Path, class_names: list[str] | None, image_size: int) -> None:
        self.image_size = image_size
        self.classes = [path.name for path in _folders_in(folder)]
        if len(self.classes) < 2:
            raise DataError(f"{folder} needs two class folders at least; it has: {', '.join(self.classes) or 'none'}")
        if class_names and self.classes != list(class_names):
            here, there = set(self.classes), set(class_names)
            sides = (("no", there - here), ("also", here - there))
            facts = [f"{word} {', '.join(sorted(names))}" for word, names in sides if names]
            why = "; ".join(facts) or "their order must be sorted"
            raise DataError(f"{folder} has other classes than expected: {why}")
        found = {name: pictures_in(folder / name) for name in self.classes}
        if empty := [name for name, files in found.items() if not files]:
            raise DataError(f"{folder}/{empty[0]} has no images: each folder is a class, so add some or delete it")
        self.samples = [(file, target) for target, files in enumerate(found.values()) for file in files]
        self.targets = [target for _, target in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        path, target = self.samples[index]
        try:
            with Image.open(path) as image:
                decode_smaller(image, self.image_size)
                image.load()
                return to_8bit_upright(image), target
        except UNREADABLE as error:
            raise DataError(f"cannot read the image {path}: {error}; fix or delete it") from error


class ImageFolder(DatasetImages):
    """Images in `root/train/CLASS/`, `root/val/CLASS/`, `root/test/CLASS/`; or all in `root/CLASS/`.

    Split folders may also be called `Training`, `valid`, `validation`, `test_set`… Without them a fixed `test_size` of
    all images becomes the test split; without a `val` folder a fixed `val_size` of the rest becomes validation; both
    keep the proportions of the classes. With split folders but no test folder only `folds` make a test. Hidden files
    and folders are left out.

    Args:
        root: the folder.
        image_size: height and width that images are resized to, in pixels.
        crop: keep their proportions and cut off what is too long; otherwise they are squashed.
        channels: 3 for colour, 1 for grey.
        test_size: share of the images for the test split where there are no split folders; 0 for none.
        class_names: default: the names of the class folders, sorted. If given they must be the same; they are needed
            where all class folders hold folders and no images, which look like splits of unknown names.
        mean: of each channel, of values in [0, 1]; default: ImageNet's, for grey their mean over the colours,
            which weights of ImageNet want (those of GoogLeNet and Inception want 0.5 and 0.5).
        std: of each channel.
        **kwargs: of `DatasetImages`, `ImageData` and `SplitData`.

    Raises:
        DataError: no such folder, no class folder in it, other classes than `class_names` or than in training; split
            folders without one for training, or two for the same split; another number of channels, no share.
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
        if channels not in (1, 3):
            raise DataError(f"channels must be 1 (grey) or 3 (colour), got {channels}")
        if not 0 <= test_size < 1:
            raise DataError(f"test_size must be a share from 0 to below 1, got {test_size}")
        root = Path(root).expanduser()
        splits = _read_splits(root, class_names, image_size)
        colour = channels == 3
        super().__init__(
            train=splits.get("train"),
            val=splits.get("val"),
            test=splits.get("test"),
            root=root,
            test_size=0 if not splits or _split_folders(root) else test_size,
            class_names=class_names,
            input_shape=(channels, image_size, image_size),
            mean=mean or ([0.485, 0.456, 0.406] if colour else [0.449]),
            std=std or ([0.229, 0.224, 0.225] if colour else [0.226]),
            **kwargs,
        )
        self.crop = crop

    def inputs(self, split: Split) -> dict[int, dict[str, str]]:
        """The `file` of each image of a split, for the table of predictions."""
        return {number: {"file": file} for number, file in enumerate(_files_of(self.splits[split]))}


def _files_of(dataset: Any) -> list[str]:
    if isinstance(dataset, Subset):
        files = _files_of(dataset.dataset)
        return [files[number] for number in dataset.indices]
    return [file for file, _ in dataset.samples]


def _read_splits(root: Path, class_names: list[str] | None, image_size: int) -> dict[str, Any]:
    """The datasets by split; none if `root` is missing and the classes are known (to predict elsewhere)."""
    if not root.is_dir():
        if class_names:
            return {}
        raise DataError(f"no such folder of images: {root}")
    folders = _split_folders(root)
    if not folders:
        classes = _folders_in(root)
        if classes and not class_names and not any(is_picture(file) for path in classes for file in path.iterdir()):
            raise DataError(
                f"the folders in {root} ({', '.join(path.name for path in classes[:4])}) hold no images: expected "
                "train/CLASS, val/CLASS and test/CLASS, or CLASS with images; give class_names if they are classes"
            )
        return {"train": Pictures(root, class_names, image_size)}
    if "train" not in folders:
        raise DataError(f"{root} has split folders ({', '.join(sorted(folders))}), but no `train` to learn from")
    train = Pictures(folders.pop("train"), class_names, image_size)
    others = {split: Pictures(folder, train.classes, image_size) for split, folder in folders.items()}
    return {"train": train, **others}


def _folders_in(folder: Path) -> list[Path]:
    """By name; hidden ones are left out."""
    return sorted((p for p in folder.iterdir() if p.is_dir() and p.name[0] != "."), key=lambda path: path.name)


def _split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split that there is. A single one that holds images and no folder is a class of that name."""
    found: dict[str, Path] = {}
    for split, names in SPLIT_FOLDERS.items():
        pattern = re.compile(rf"({names})([ _-]?(set|data|images))?", re.IGNORECASE)
        folders = [path for path in _folders_in(root) if pattern.fullmatch(path.name)]
        if len(folders) > 1:
            raise DataError(f"{root} has several folders for the {split} split: {', '.join(p.name for p in folders)}")
        if folders:
            found[split] = folders[0]
    if len(found) == 1:
        (only,) = found.values()
        if any(only.iterdir()) and not _folders_in(only):
            return {}
    return found
