"""Your own images, in one folder per class."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from torch.utils.data import Dataset, Subset

from lit_engine.data.images import UNREADABLE, DatasetImages, decode_smaller, is_picture, pictures_in, to_8bit_upright
from lit_engine.data.module import Split
from lit_engine.distributed.processes import print_once
from lit_engine.errors import DataError

SPLITS = {"train": "train|training", "val": "val|valid|validation", "test": "test|testing"}
SPLIT_FOLDERS = {split: re.compile(rf"({n})([ _-]?(set|data|images))?", re.IGNORECASE) for split, n in SPLITS.items()}


class Pictures(Dataset):
    """Dataset of `(image, class index)` pairs for the files in `folder/CLASS/`, sorted by name.

    Args:
        folder: folder with one subfolder per class.
        class_names: expected names of the class folders; default: any names.
        image_size: size in pixels to which images are resized later. JPEG files are decoded at twice this size or more.
        complete: whether each class must have images.

    Raises:
        DataError: the classes differ from `class_names`, there are fewer than two classes, or a class has no images.
    """

    def __init__(self, folder: Path, class_names: list[str] | None, image_size: int, complete: bool = True) -> None:
        self.image_size = image_size
        names = [path.name for path in _folders_in(folder)]
        self.classes = list(class_names or names)
        if len(names) < 2 and complete:
            raise DataError(f"{folder} needs at least two class folders; it has: {', '.join(names) or 'none'}")
        missing, extra = set(self.classes) - set(names), set(names) - set(self.classes)
        if extra or (complete and names != self.classes):
            facts = [f"{word} {', '.join(sorted(kind))}" for word, kind in (("no", missing), ("also", extra)) if kind]
            why = "; ".join(facts) or "class_names must be sorted"
            raise DataError(f"the classes in {folder} are not as expected: {why}")
        found = {name: pictures_in(folder / name) for name in self.classes}
        if complete and (empty := [name for name, files in found.items() if not files]):
            raise DataError(f"{folder}/{empty[0]} has no images: add images or delete this class folder")
        if not any(found.values()) and pictures_in(folder):
            raise DataError(f"{folder} has loose images: add class folders, or move them and use `predict --images`")
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
    """Images in `root/train/CLASS/`, `root/val/CLASS/` and `root/test/CLASS/`, or all in `root/CLASS/`.

    Split folders may also be called `Training`, `valid`, `validation`, `test_set`… Without split folders, the test
    split is a fixed subset of all images (`test_size`). Without a `val` folder, the validation split is a fixed subset
    of the remaining images (`val_size`). These subsets are stratified by class. If there are split folders but no test
    folder, only `folds` can create a test split. Only the training split needs images of each class. To test a run on
    new images, a `test` folder is enough. Hidden files and folders are ignored.

    Args:
        root: folder of the images.
        image_size: height and width in pixels to which images are resized.
        crop: keep the aspect ratio of images and crop the longer side. If false, images are squashed.
        channels: 3 for colour, 1 for greyscale.
        test_size: fraction of the images in the test split if there are no split folders; 0 for no test split.
        class_names: expected names of the class folders, sorted; default: the names found. Required if no class
            folder directly contains an image, because class folders then look like split folders.
        mean: mean of each channel for values in [0, 1]. Default: ImageNet's mean, averaged over channels for greyscale.
            ImageNet weights require the default. For greyscale images, GoogLeNet and Inception need mean = std = 0.5.
        std: standard deviation of each channel.
        **kwargs: arguments of `DatasetImages`, `ImageData` and `SplitData`.

    Raises:
        DataError: the folder does not exist or has no class folders; classes differ from `class_names` or between
            splits; the training folder is missing, or a split has two folders; `channels` or `test_size` is invalid.
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
            raise DataError(f"test_size must be at least 0 and below 1, got {test_size}")
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
        """Return the `file` of each image in a split, for the prediction table."""
        return {number: {"file": file} for number, file in enumerate(_files_of(self.splits[split]))}


def _files_of(dataset: Any) -> list[str]:
    if isinstance(dataset, Subset):
        files = _files_of(dataset.dataset)
        return [files[number] for number in dataset.indices]
    return [file for file, _ in dataset.samples]


def _read_splits(root: Path, class_names: list[str] | None, image_size: int) -> dict[str, Any]:
    """Return the datasets by split. For prediction, `root` may be missing if the classes are known."""
    if not root.is_dir():
        if class_names:
            return {}
        raise DataError(f"the image folder {root} does not exist: set data.root")
    folders = _split_folders(root)
    if not folders:
        classes = _folders_in(root)
        for path in classes:
            if any(name.fullmatch(path.name) for name in SPLIT_FOLDERS.values()):
                print_once(f"note: {path} is used as a class, because it is the only split and has no subfolders")
        if classes and not class_names and not any(is_picture(file) for path in classes for file in path.iterdir()):
            raise DataError(
                f"the folders in {root} ({', '.join(path.name for path in classes[:4])}) contain no images. Put "
                "them in CLASS/, or train/CLASS/, val/CLASS/ and test/CLASS/. If CLASS/ has subfolders, set class_names"
            )
        return {"train": Pictures(root, class_names, image_size)}
    if "train" not in folders and not class_names:
        raise DataError(f"{root} has split folders ({', '.join(sorted(folders))}), but no `train`: add it")
    names = class_names or [path.name for path in _folders_in(folders["train"])]
    return {split: Pictures(folder, names, image_size, split == "train") for split, folder in folders.items()}


def _folders_in(folder: Path) -> list[Path]:
    """Return the visible subfolders of a folder, sorted by name."""
    return sorted((p for p in folder.iterdir() if p.is_dir() and p.name[0] != "."), key=lambda path: path.name)


def _split_folders(root: Path) -> dict[str, Path]:
    """Return the folder of each existing split. A lone split folder with files but no subfolders counts as a class."""
    found: dict[str, Path] = {}
    for split, name in SPLIT_FOLDERS.items():
        folders = [path for path in _folders_in(root) if name.fullmatch(path.name)]
        if len(folders) > 1:
            raise DataError(f"{root} has several folders for the {split} split: {', '.join(p.name for p in folders)}")
        if folders:
            found[split] = folders[0]
    if len(found) == 1:
        (only,) = found.values()
        if any(only.iterdir()) and not _folders_in(only):
            return {}
    return found
