"""Base class for image data, with functions for reading image files and transforming batches on the device."""

import math
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from lit_engine._lightning import ready_batches
from lit_engine.data.module import Rows, Split, SplitData, size_of_split, split_by_class
from lit_engine.data.sampler import seed_step
from lit_engine.data.sampling import labels_of
from lit_engine.distributed.processes import warn_once
from lit_engine.errors import DataError


class PerSample(nn.Module):
    """Module that applies a transform to each image of a batch, with different random numbers for each image."""

    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        """Transform images `(B, C, H, W)` to `(B, C', H', W')`."""
        return torch.stack([self.transform(image) for image in images]) if len(images) else images


def is_per_image(transform: Any) -> bool:
    """Return whether a transform is a plain function or contains a torchvision transform (v1 or v2)."""
    if not isinstance(transform, nn.Module):
        return True
    kinds = (kind for part in transform.modules() for kind in type(part).__mro__)
    return any(kind.__module__.startswith("torchvision.transforms") for kind in kinds)


class BatchTransforms(nn.Sequential):
    """Sequence of transforms from a batch `(B, C, H, W)` to a batch `(B, C', H', W')`.

    torchvision transforms draw random numbers once per call. Modules that contain them, and all plain functions, are
    therefore applied to each image separately. All other modules receive the whole batch, and must draw random
    numbers for each image, as in `data/augmentation.py`.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__(*(PerSample(step) if is_per_image(step) else step for step in transforms))


def transform_with_masks(transforms: nn.Sequential, images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Transform images and their masks `(B, H, W)`. Only transforms from `torchvision.transforms.v2` support masks.

    Mask values are -1 (unknown) for pixels from outside the original image, for example after a rotation.

    Raises:
        DataError: if a transform does not support masks, because images and masks would no longer match.
    """
    from torchvision.transforms import v2
    from torchvision.tv_tensors import Image as OfImage
    from torchvision.tv_tensors import Mask

    steps: list[Any] = [step.transform if isinstance(step, PerSample) else step for step in transforms]
    if wrong := [type(step).__name__ for step in steps if not isinstance(step, v2.Transform)]:
        raise DataError(f"{wrong[0]} cannot transform masks: use torchvision.transforms.v2")
    # Transforms also fill masks. To find the filled pixels, transform two masks with different values: only filled
    # pixels are equal afterwards.
    samples = [
        (OfImage(image), *(Mask(one) for one in (mask, torch.zeros_like(mask), torch.ones_like(mask))))
        for image, mask in zip(images, masks, strict=True)
    ]
    for step in steps:
        samples = [step(*sample) for sample in samples]
    images, masks, zeros, ones = (torch.stack(values) for values in zip(*samples, strict=True))
    return images, masks.where(zeros != ones, -1)


class ImageBatch(NamedTuple):
    """Images, their targets, and their indices in the split.

    `images` `(B, C, H, W)` are loaded as uint8, and converted to float in [0, 1] before they reach the task. `targets`
    are int64 classes `(B,)` (-1 if unknown), labels or masks (see `ImageData.load`). `indices` are int64 `(B,)`.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor


def check_images(images: Tensor, input_shape: tuple[int, int, int], what: str) -> None:
    """Raise DataError unless images `(N, C, H, W)` are uint8, or floats roughly in [0, 1] (resizing may overshoot).

    The message starts with `what`.
    """
    if tuple(images.shape[1:]) != tuple(input_shape):
        raise DataError(f"{what} has the shape {tuple(images.shape[1:])}, not {tuple(input_shape)}")
    if images.dtype == torch.uint8 or not images.numel():
        return
    if not images.is_floating_point():
        raise DataError(f"{what} has dtype {images.dtype}: use torch.uint8, or floats in [0, 1]")
    low, high = (value.item() for value in images.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        broken = (~images.isfinite()).flatten(1).any(dim=1).nonzero()
        place = f" (sample {int(broken[0])})" if len(images) > 1 else ""
        raise DataError(f"{what} contains NaN or infinity{place}")
    if low < -0.5 or high > 1.5:
        raise DataError(
            f"{what} has values from {low:g} to {high:g}: floats must be in [0, 1]. "
            "Remove any `Normalize` transform, because the task normalizes by mean and std"
        )


SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


# Errors that Pillow raises for files that are truncated, malicious or not images.
UNREADABLE = (OSError, EOFError, TypeError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError)


def to_8bit_upright(image: Image.Image) -> Image.Image:
    """Convert an image to 8 bits per channel, apply its EXIF orientation, and fill transparent areas with white.

    Raises:
        ValueError: if the pixel values are floats or 32-bit integers, whose range is unknown.
    """
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):  # Pillow scales PGM to 16 bits
        values, transparent = np.asarray(image), image.info.get("transparency")
        pixels = (values / 257).round().astype(np.uint8)  # 65535 becomes 255
        image = Image.fromarray(pixels if transparent is None else np.where(values == transparent, 255, pixels))
    elif image.mode in ("I", "F"):
        raise ValueError("the range of the pixel values is unknown: save the image with 8 or 16 bits per channel")
    if "A" in image.mode or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image


def is_picture(path: Path) -> bool:
    """Return whether a path has an image suffix and is not hidden. macOS and notebooks create hidden files."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def pictures_in(folder: Path) -> list[str]:
    """Return the image files in a folder and its subfolders, sorted by folder and name. Hidden folders are skipped.

    Links are followed unless they lead to a parent folder or a folder that was already visited.
    """
    found = []
    seen = {up for start in (folder.resolve(), folder.parent.resolve()) for up in (start, *start.parents)}
    for path, folders, files in os.walk(folder, followlinks=True):
        real = {Path(path, name).resolve(): name for name in sorted(folders, reverse=True) if name[0] != "."}
        folders[:] = [name for place, name in real.items() if place not in seen]
        seen |= real.keys()
        found.append((path, [str(Path(path, name)) for name in sorted(files) if is_picture(Path(name))]))
    return [file for _, inner in sorted(found) for file in inner]


def decode_smaller(image: Image.Image, side: int) -> None:
    """Make the decoder scale a large JPEG image down to 1/2, 1/4 or 1/8 of its size, which is much faster.

    Height and width remain at least `2 * side` pixels, so that resizing to `side` still averages over pixels.
    """
    image.draft(None, (2 * side, 2 * side))


def to_tensor(image: Image.Image, input_shape: tuple[int, int, int], crop: bool = False) -> Tensor:
    """Resize an image to a uint8 tensor of shape `input_shape` (C, H, W), in greyscale (C = 1) or RGB (C = 3).

    With `crop`, the aspect ratio is preserved, and the image is cropped equally on both sides.
    """
    channels, height, width = input_shape
    decode_smaller(image, max(height, width))
    image = to_8bit_upright(image).convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        resize = ImageOps.fit if crop else Image.Image.resize
        image = resize(image, (width, height), Image.Resampling.BILINEAR)
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


class PictureFiles(Dataset):
    """Image files in a folder, sorted by path. Indexing with a tensor of indices `(b,)` returns a batch.

    Args:
        folder: folder to search, including visible subfolders, or a single image file.
        input_shape: shape `(C, H, W)` of the converted images.
        crop: whether to preserve the aspect ratio (see `to_tensor`).

    Raises:
        DataError: if the folder does not exist or contains no image file.
    """

    def __init__(self, folder: Path, input_shape: tuple[int, int, int], crop: bool = False) -> None:
        self.input_shape, self.crop = input_shape, crop
        if not folder.exists():
            raise DataError(f"no such folder of images: {folder}")
        self.files = [folder] if folder.is_file() else sorted(map(Path, pictures_in(folder)))
        if not self.files:
            raise DataError(f"no image file in {folder} (looked for {', '.join(sorted(SUFFIXES))})")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, indices: Tensor) -> ImageBatch:
        """Return a batch of all files that can be read. The batch is empty if no file can be read."""
        images = [torch.empty(0, *self.input_shape, dtype=torch.uint8)]
        readable = []
        for index in indices.tolist():
            try:
                with Image.open(self.files[index]) as image:
                    images.append(to_tensor(image, self.input_shape, self.crop)[None])
            except UNREADABLE:
                continue
            readable.append(index)
        found = torch.tensor(readable, dtype=torch.int64)
        return ImageBatch(torch.cat(images), torch.full_like(found, -1), found)


def to_targets(value: Any) -> Tensor:
    """Return targets, such as a class, an array or the PIL image of a mask, as an int64 tensor.

    Raises:
        DataError: if a target is not a whole number.
    """
    try:
        found = torch.as_tensor(np.array(value) if isinstance(value, Image.Image) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"image targets must be classes or labels, got {shorten(repr(value), 80)}") from error
    if found.is_floating_point() and bool((found != found.round()).any()):
        wrong = found[found != found.round()][0].item()
        raise DataError(f"image targets must be whole numbers, got {wrong:g}: do not apply `ToTensor` to masks")
    return found.long()


def check_targets(
    targets: Tensor, num_classes: int, input_shape: tuple[int, int, int], what: str, indices: Tensor | None = None
) -> None:
    """Raise DataError if there are no targets, or if they are out of range or have the wrong shape.

    `ImageData.load` describes valid targets. The message starts with `what`. The indices `(N,)` default to 0, 1, …
    """
    if not len(targets):
        raise DataError(f"{what} is empty")
    last = num_classes - 1
    kinds = {1: ((), 0, last), 2: ((num_classes,), 0, 1), 3: (tuple(input_shape[1:]), -1, last)}
    shape, lowest, highest = kinds.get(targets.ndim, ((), 0, last))
    if tuple(targets.shape[1:]) != shape:
        raise DataError(f"{what} has targets of shape {tuple(targets.shape[1:])}, expected {shape}")
    wrong = ((targets < lowest) | (targets > highest)).nonzero()
    if len(wrong):
        label, place = int(targets[tuple(wrong[0])]), int(wrong[0, 0])
        index = place if indices is None else int(indices[place])
        classes = f"there are {num_classes} classes ({lowest} to {highest})"
        valid = "multi-label targets must be 0 or 1" if targets.ndim == 2 else classes
        raise DataError(f"{what} has label {label} in sample {index}, but {valid}")


class Samples(Dataset):
    """Batches from a dataset of `(image, target)` pairs. Images are PIL images or tensors `(C, H, W)`."""

    def __init__(self, dataset: Any, input_shape: tuple[int, int, int], num_classes: int, crop: bool = False) -> None:
        self.dataset, self.input_shape, self.num_classes, self.crop = dataset, input_shape, num_classes, crop

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: Tensor) -> ImageBatch:
        """Return the samples with the given indices `(b,)` as a batch. Raise DataError if a sample is invalid."""
        samples = [self.dataset[index] for index in indices.tolist()]
        if isinstance(samples[0], dict):
            raise DataError(f"the dataset must return pairs (image, target), not dicts with {', '.join(samples[0])}")
        if not isinstance(samples[0], tuple | list) or len(samples[0]) != 2:
            got = f"{len(samples[0])} values" if isinstance(samples[0], tuple | list) else type(samples[0]).__name__
            raise DataError(f"the dataset must return pairs (image, target), not {got}")
        images = [self.fit(image, index) for (image, _), index in zip(samples, indices.tolist(), strict=True)]
        targets = [to_targets(target) for _, target in samples]
        if len(shapes := {tuple(target.shape) for target in targets}) > 1:
            raise DataError(f"the dataset has targets of different shapes, such as {' and '.join(map(str, shapes))}")
        batch = ImageBatch(torch.stack(images), torch.stack(targets), indices)
        check_targets(batch.targets, self.num_classes, self.input_shape, "the dataset", indices)
        return batch

    def fit(self, image: Tensor | Image.Image, index: int) -> Tensor:
        """Convert the image of sample `index` to a uint8 or float tensor of shape `input_shape` `(C, H, W)`."""
        what = f"image {index} of the dataset"
        if isinstance(image, Image.Image):
            try:
                return to_tensor(image, self.input_shape, self.crop)
            except ValueError as error:
                raise DataError(f"{what} cannot be used: {error}") from None
        image = torch.as_tensor(image)
        check_images(image[None], self.input_shape, what)
        return image


class ImageData(SplitData):
    """Base class for image data. Each split is a pair of tensors or a map-style dataset.

    A subclass implements `load`, and sets `class_names`, `input_shape`, `mean` and `std` in its constructor. The config
    links them to the model. Tasks normalize images, so checkpoints contain `mean` and `std` (for values in [0, 1]).

    Args:
        root: folder that contains the data.
        train_transforms: transforms for uint8 training batches `(B, C, H, W)` on the device. torchvision transforms
            receive one image at a time. All other modules receive the whole batch (see `data/augmentation.py`).
        eval_transforms: transforms for validation, test and prediction, which receive the whole batch.
        on_device: store tensors in the accelerator's memory (one byte per uint8 value), so that batches are not copied.
        num_workers: number of processes that load batches. If this is 0 or the data are tensors, no process is started.
        pin_memory: copy batches through page-locked memory to transfer them to a GPU faster. Default: only on CUDA.
        **kwargs: arguments of `SplitData`.
    """

    class_names: list[str]
    input_shape: tuple[int, int, int]
    mean: list[float]
    std: list[float]
    batch = ImageBatch
    predicts_on = "images"
    crop: bool = False  # whether to preserve the aspect ratio of image files

    def __init__(
        self,
        root: str | Path = "data",
        train_transforms: Sequence[nn.Module] | None = None,
        eval_transforms: Sequence[nn.Module] | None = None,
        on_device: bool = False,
        num_workers: int = 2,
        pin_memory: bool | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.root = Path(root).expanduser()
        self.train_transforms = BatchTransforms(train_transforms or [])
        self.eval_transforms = nn.Sequential(*eval_transforms or [])
        self.on_device, self.num_workers, self.pin_memory = on_device, num_workers, pin_memory

    def setup(self, stage: str) -> None:
        """Warn if the model does not receive the mean or standard deviation of the data.

        Raises:
            DataError: if `mean` or `std` does not match the number of channels, or the data are invalid.
        """
        if missing := " and ".join(name for name in ("mean", "std") if not hasattr(self, name)):
            kind = type(self).__name__
            warn_once(f"warning: {kind} does not set {missing}: set model.mean and model.std to normalize images")
        super().setup(stage)
        for name in ("mean", "std"):
            values = getattr(self, name, None)
            if values is not None and torch.as_tensor(values).numel() not in (1, self.input_shape[0]):
                size, shape = torch.as_tensor(values).numel(), self.input_shape
                raise DataError(f"{type(self).__name__}.{name} has {size} values, but input_shape is {shape}")

    def load(self, split: Split) -> tuple[Tensor, Tensor] | Dataset:
        """Return the images `(N, C, H, W)` (uint8 or floats in [0, 1]) and the int64 targets of a split.

        Targets are classes `(N,)`, labels `(N, num_classes)` (1 if the image has the label, else 0), or masks
        `(N, H, W)` with the class of each pixel (-1 if unknown).

        Alternatively, return a dataset of `(image, target)` pairs. The images are PIL images or tensors `(C, H, W)`.
        PIL images are resized to `input_shape` (bilinear), as in `predict --images`. Masks are not resized, so they
        must have the height and width of `input_shape`. To resize a mask, use `Image.Resampling.NEAREST`.
        """
        return super().load(split)

    def load_split(self, split: Split) -> tuple[Tensor, Tensor] | Dataset:
        """Return the result of `load` after checking all images and targets that are in memory.

        Raises:
            DataError: if `load` returns a different type, the split is empty, images or targets are invalid, or their
                counts differ.
        """
        data = self.load(split)
        what = f"{type(self).__name__}: the {split} split"
        if not isinstance(data, tuple):
            if isinstance(data, dict) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
                expected = "a tuple (images, targets) or a map-style dataset"
                raise DataError(f"{type(self).__name__}.load must return {expected}, not {type(data).__name__}")
            self.check_labels(data, split)
            return data
        try:
            images = torch.as_tensor(data[0])  # converts NumPy arrays
        except (TypeError, ValueError, RuntimeError):
            raise DataError(f"{what}'s images must be a tensor or an array, not {type(data[0]).__name__}") from None
        targets = to_targets(data[1])
        if len(images) != len(targets):
            raise DataError(f"{what} has {len(images)} images and {len(targets)} targets")
        check_images(images, self.input_shape, f"{type(self).__name__}: an image of the {split} split")
        check_targets(targets, self.num_classes, self.input_shape, what)
        if self.on_device and self.trainer is not None:
            device = self.trainer.strategy.root_device
            return images.to(device), targets.to(device)
        return images, targets

    def check_labels(self, dataset: Any, split: str) -> None:
        """Raise DataError if a dataset's list of labels is empty or has a label that is out of range."""
        labels = labels_of(dataset)
        if labels is not None and labels.ndim < 3:  # the dataset may still crop or resize masks
            check_targets(labels, self.num_classes, self.input_shape, f"{type(self).__name__}: the {split} split")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def dataset(self, split: Split) -> Rows | Samples:
        """Return the dataset of a loaded split. Indexing it with a tensor of indices returns an `ImageBatch`."""
        data = super().dataset(split)
        return data if isinstance(data, Rows) else Samples(data, self.input_shape, self.num_classes, self.crop)

    def describe_preparation(self) -> dict[str, Any]:
        """Return a description of how images are prepared for the network, which `export` writes to model.json."""
        channels, height, width = self.input_shape
        return {
            "channels": channels,
            "size": [height, width],
            "keep_proportions_and_crop": self.crop,
            "eval_transforms": [str(step) for step in self.eval_transforms],
            "values": "float32 from 0 to 1 (uint8 values divided by 255)",
        }

    def predict_from(self, folder: str | Path) -> dict[int, dict[str, str]]:
        """Make `predict` read the image files in a folder, or a single image file, instead of the test split.

        Returns:
            A dict from image indices to `{"file": …}`, for the prediction table.

        Raises:
            DataError: if the folder does not exist or contains no image file.
        """
        self.new = PictureFiles(Path(folder).expanduser(), self.input_shape, self.crop)
        return {number: {"file": str(file)} for number, file in enumerate(self.new.files)}

    def transfer_batch_to_device(self, batch: ImageBatch, device: torch.device, dataloader_idx: int) -> ImageBatch:
        """Read a batch's first index before the transfer, because reading it later would wait for the device."""
        self._first = int(batch.indices[0]) if len(batch.indices) else 0
        if device.type == "cpu":  # looking for tensors to move would take 15 µs
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: ImageBatch, dataloader_idx: int) -> ImageBatch:
        """Augment images on the device, and convert uint8 to float in [0, 1]."""
        trainer = self.trainer
        training = trainer is not None and trainer.training
        transforms = self.train_transforms if training else self.eval_transforms
        if trainer is not None and training and len(transforms):
            # The seed depends on the first sample of the batch, so that a resumed run repeats the augmentation. If
            # samples repeat within an epoch, the seed depends on the batch number and the rank instead.
            repeats = self.sample_weights is not None
            settings = self.rank_settings()
            key = (ready_batches(trainer), settings["rank"]) if repeats else (self._first,)
            seed_step(settings["seed"], "augment", trainer.current_epoch, *key, device=batch[0].device)
        images, targets = batch[0], batch[1]
        if targets.ndim == 3 and len(transforms):
            images, targets = transform_with_masks(transforms, images, targets)
        else:
            images = transforms(images)
        if images.dtype == torch.uint8:
            images = images.float().div_(255)
        return batch._replace(images=images, targets=targets)


class DatasetImages(ImageData):
    """Images from map-style datasets, such as torchvision's.

    Without `val`, a fixed part of `train` (`val_size`) is used for validation. Without `test`, the test split is a
    fixed part of `train` (`test_size`) or one of the `folds`. These parts are stratified by class if the dataset has
    `targets`, as torchvision datasets do. Without a test split, only `fit` and `validate` work.

    Args:
        train: training samples. Held-out samples use the same transforms, so augment with `train_transforms`.
        val: validation samples.
        test: test samples.
        val_size: number of validation samples if `val` is omitted. Values below 1 are fractions of non-test samples.
        class_names: names of the classes. Default: the `classes` of `train`.
        input_shape: shape `(C, H, W)` of the resized images.
        mean: mean of each channel, for values in [0, 1].
        std: standard deviation of each channel.
        test_size: number of test samples if `test` is omitted. Values below 1 are fractions of `train`. 0 creates none.
        **kwargs: arguments of `ImageData`.

    Raises:
        DataError: if there are no class names, or a requested split does not exist.
    """

    def __init__(
        self,
        train: Dataset | None = None,
        val: Dataset | None = None,
        test: Dataset | None = None,
        val_size: float = 0.1,
        class_names: list[str] | None = None,
        input_shape: tuple[int, int, int] = (3, 224, 224),
        mean: Sequence[float] = (0.485, 0.456, 0.406),  # ImageNet's
        std: Sequence[float] = (0.229, 0.224, 0.225),
        test_size: float = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        names = class_names or getattr(train, "classes", None)
        if not names:
            raise DataError(f"{type(self).__name__}: the training data have no `classes`: set class_names")
        if len(mean) != input_shape[0] or len(std) != input_shape[0]:
            raise DataError(f"mean and std need a value for each of the {input_shape[0]} channel(s) of input_shape")
        self.class_names = list(names)
        self.input_shape = input_shape
        self.mean, self.std = list(mean), list(std)
        whole: Any = train
        if whole is not None and test is None:
            size = size_of_split("test_size", test_size, len(whole)) if test_size else 0
            if size or self.folds:
                parts = self.hold_out(len(whole), size, labels_of(whole), stratified=True)
                train, test = (Subset(whole, part.tolist()) for part in parts)
        given: dict[str, Any] = {"train": train, "val": val, "test": test}
        self._given = {split: dataset for split, dataset in given.items() if dataset is not None}
        self._val_size = val_size

    def setup(self, stage: str) -> None:
        """Create all splits at once, without reading the images."""
        if self.new is None and not self.splits:
            for split, dataset in self._given.items():
                self.check_labels(dataset, split)
            self.splits = dict(self._given)
            if "train" in self._given and "val" not in self._given:
                train = self._given["train"]
                size = len(train)
                val_size = size_of_split("val_size", self._val_size, size) if self._val_size > 0 else 0
                if not 0 < val_size < size:
                    raise DataError(f"with val_size {self._val_size}, one split of the {size} samples would be empty")
                parts = split_by_class(size, val_size, labels_of(train))
                self.splits["train"], self.splits["val"] = (Subset(train, part.tolist()) for part in parts)
        super().setup(stage)

    def load(self, split: Split) -> Dataset:
        """Raise DataError for a split that `setup` has not created."""
        where = "" if self.splits or self.root.is_dir() else f" (there is no folder {self.root})"
        raise DataError(f"{type(self).__name__} has no {split} split: only {', '.join(self.splits) or 'none'}{where}")

    def has_split(self, split: Split) -> bool:
        """Return whether the split exists. If there is training data, a validation split can be taken from it."""
        return split in self._given or (split == "val" and "train" in self._given)
