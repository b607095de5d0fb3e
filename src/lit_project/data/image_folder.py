"""Images of your own: one folder per class."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from lit_project.engine.errors import DataError
from lit_project.engine.images import UNREADABLE, DatasetImages, is_picture, plain, split_by_class

SPLIT_FOLDERS = {"train": "train|training", "val": "val|valid|validation", "test": "test|testing"}


def open_image(path: str) -> Image.Image:
    """Reads an image file, see `plain`; names it if it cannot be read."""
    try:
        with Image.open(path) as image:
            image.load()
            return plain(image)
    except UNREADABLE as error:
        raise DataError(f"cannot read the image {path}: {error}") from error


class ImageFolder(DatasetImages):
    """Images in `root/train/CLASS/`, `root/val/CLASS/`, `root/test/CLASS/`; or all in `root/CLASS/`.

    Split folders may also be called `Training`, `valid`, `validation`, `test_set`… Without them a fixed `test_size` of
    all images becomes the test split; without a `val` folder a fixed `val_size` of the rest becomes validation; both
    keep the proportions of the classes. With split folders but no test folder there is no test. Hidden files and
    folders are left out.

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
        splits = _read_splits(root, test_size, class_names)
        colour = channels == 3
        super().__init__(
            train=splits.get("train"),
            val=splits.get("val"),
            test=splits.get("test"),
            root=root,
            class_names=class_names,
            input_shape=(channels, image_size, image_size),
            mean=mean or ([0.485, 0.456, 0.406] if colour else [0.449]),
            std=std or ([0.229, 0.224, 0.225] if colour else [0.226]),
            **kwargs,
        )
        self.crop = crop


def _read_splits(root: Path, test_size: float, class_names: list[str] | None) -> dict[str, Any]:
    """The datasets by split; none if `root` is missing and the classes are known (to predict elsewhere)."""
    if not root.is_dir():
        if class_names:
            return {}
        raise DataError(f"no such folder of images: {root}")
    folders = _split_folders(root)
    if not folders:
        if not class_names:
            _check_no_splits(root)
        everything = _read_folder(root, class_names)
        rest, test = split_by_class(everything, round(len(everything) * test_size))
        rest.classes = everything.classes  # type: ignore[attr-defined]
        return {"train": rest, **({"test": test} if len(test) else {})}
    if "train" not in folders:
        found = ", ".join(sorted(folder.name for folder in folders.values()))
        raise DataError(f"{root} has split folders ({found}), but no `train` to learn from")
    train = _read_folder(folders["train"], class_names)
    others = {split: _read_folder(folder, train.classes) for split, folder in folders.items() if split != "train"}
    return {"train": train, **others}


def _folders_in(folder: Path) -> list[Path]:
    """By name; hidden ones are left out."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


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


def _check_no_splits(root: Path) -> None:
    """Raises DataError if what would be taken for classes looks like splits of other names."""
    classes = _folders_in(root)
    if classes and not any(path.is_file() for folder in classes for path in folder.glob("[!.]*")):
        inner = sorted({path.name for folder in classes for path in _folders_in(folder)})
        if inner:
            raise DataError(
                f"the folders in {root} ({', '.join(f.name for f in classes[:4])}) hold folders "
                f"({', '.join(inner[:4])}) and no images: expected train/CLASS, val/CLASS and test/CLASS, or CLASS "
                "with images in it; give class_names if they are classes"
            )


def _pictures_in(folder: Path) -> list[str]:
    """The image files below a folder; links that lead up, or where it has been, are not followed."""
    found = []
    seen = {up for start in (folder.resolve(), folder.parent.resolve()) for up in (start, *start.parents)}
    for path, folders, files in os.walk(folder, followlinks=True):
        real = {Path(path, name).resolve(): name for name in sorted(folders, reverse=True) if name[0] != "."}
        folders[:] = [name for place, name in real.items() if place not in seen]
        seen |= real.keys()
        found.append((path, [str(Path(path, name)) for name in sorted(files) if is_picture(Path(name))]))
    return [file for _, inner in sorted(found) for file in inner]


def _read_folder(folder: Path, class_names: list[str] | None) -> Any:
    from torchvision.datasets import ImageFolder as Folder

    class Visible(Folder):
        def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
            names = [path.name for path in _folders_in(Path(directory))]
            if not names:
                raise FileNotFoundError(f"no class folder in {directory}")
            return names, {name: index for index, name in enumerate(names)}

        @staticmethod
        def make_dataset(directory: str | Path, class_to_idx: dict[str, int], *_: Any, **__: Any) -> list[Any]:
            found = {name: _pictures_in(Path(directory, name)) for name in class_to_idx}
            if empty := [name for name, files in found.items() if not files]:
                raise FileNotFoundError(f"{directory} has no image in {', '.join(empty)}")
            return [(file, class_to_idx[name]) for name, files in found.items() for file in files]

    try:
        dataset = Visible(str(folder), loader=open_image)
    except FileNotFoundError as error:  # no class folder, or one without an image
        raise DataError(str(error)) from error
    if len(dataset.classes) < 2:
        raise DataError(f"{folder} has one class folder only ({dataset.classes[0]}): there is nothing to tell apart")
    if class_names and dataset.classes != list(class_names):
        differing = ", ".join(sorted(set(dataset.classes) ^ set(class_names))) or "their order, which must be sorted"
        raise DataError(f"{folder} has other classes than expected; they differ in: {differing}")
    return dataset
