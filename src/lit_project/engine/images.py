"""Data of images: batches, splits, augmentation on the device; and the base of those that fit in memory."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities.types import EVAL_DATALOADERS
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from .datamodule import Split, SplitData
from .errors import DataError
from .sampler import EpochBatches, IndexLoader, derive, seed_step

CLASSIC = ("torchvision.transforms.transforms", "torchvision.transforms.autoaugment")  # torchvision's v1


class PerSample(nn.Module):
    """Applies a transform to each image of a batch by itself, so that it draws its random numbers for each."""

    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.transform = transform

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, C', H', W')`."""
        return torch.stack([self.transform(image) for image in images]) if len(images) else images


def is_random(transform: nn.Module) -> bool:
    """Whether a transform of torchvision, or one inside a module, draws random numbers.

    Of the classic ones (v1), which are made for one image, each counts as random.
    """
    from torchvision.transforms import v2

    if any(kind.__module__ in CLASSIC for kind in type(transform).__mro__):
        return True
    draws = False
    if isinstance(transform, v2.Transform):
        name = type(transform).__name__
        draws = (
            type(transform).make_params is not v2.Transform.make_params or name.startswith("Random") or "Aug" in name
        )
    return draws or any(is_random(child) for child in transform.children())


def opened(transforms: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The transforms in their order, those in a `Compose` or `nn.Sequential` one by one."""
    from torchvision.transforms import Compose, v2

    for transform in transforms:
        if isinstance(transform, v2.Compose | Compose | nn.Sequential):
            yield from opened(transform if isinstance(transform, nn.Sequential) else transform.transforms)
        elif isinstance(transform, nn.Module):
            yield transform
        else:
            each = PerSample(transform) if type(transform).__module__ in CLASSIC else transform
            yield v2.Lambda(each)


class BatchTransforms(nn.Module):
    """Transforms of a batch in their order; random ones of torchvision, and modules that hold one, are for each sample.

    Shapes:
        `(B, C, H, W)` → `(B, C', H', W')`.
    """

    def __init__(self, transforms: Sequence[nn.Module]) -> None:
        super().__init__()
        steps = opened(transforms) if transforms else ()  # without any, torchvision is not imported
        self.steps = nn.ModuleList(PerSample(step) if is_random(step) else step for step in steps)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → `(B, C', H', W')`."""
        for step in self.steps:
            images = step(images)
        return images


class ImageBatch(NamedTuple):
    """Images, their classes, and which samples of the split they are.

    `images` is uint8 `(B, C, H, W)` as loaded and float in [0, 1] once it reaches the task; `targets` is int64 `(B,)`
    (-1: unknown); `indices` is int64 `(B,)`.
    """

    images: Tensor
    targets: Tensor
    indices: Tensor


def check_images(images: Tensor, input_shape: tuple[int, int, int], what: str) -> None:
    """Checks images `(N, C, H, W)` that data give: uint8, or floats about in [0, 1] (some resizing goes a bit beyond).

    Raises:
        DataError: they are of another shape than `input_shape` or of another type, or their values are beyond; `what`
            is the subject of its sentence.
    """
    if tuple(images.shape[1:]) != tuple(input_shape):
        raise DataError(f"{what} has the shape {tuple(images.shape[1:])}, not {tuple(input_shape)}")
    if images.dtype == torch.uint8 or not images.numel():
        return
    if not images.is_floating_point():
        raise DataError(f"{what} is of {images.dtype}: it must be torch.uint8, or floats in [0, 1]")
    low, high = (value.item() for value in images.aminmax())
    if not (low >= -0.5 and high <= 1.5):  # NaN, too
        raise DataError(
            f"{what} has values from {low:g} to {high:g}: floats must be in [0, 1], "
            "and no `Normalize` is needed, for the task does that with mean and std"
        )


SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


# what Pillow raises on files that are no images, truncated or hostile
UNREADABLE = (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError)


def plain(image: Image.Image) -> Image.Image:
    """An image of 8 bits a channel without transparency, the right way up as its EXIF orientation says.

    16-bit images are scaled to 8 bits; palettes, CMYK and transparency (on white) become plain colours. Images of
    floats or 32-bit integers do not tell their range: it is taken for [0, 1] (floats), [0, 255] or [0, 65535], the
    least that holds all values.

    Raises:
        ValueError: a value that is not finite.
    """
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it has values that are not finite")
        tops = [65535] if image.mode.startswith("I;16") else [255, 65535] if image.mode == "I" else [1, 255, 65535]
        top = next((top for top in tops if values.max() <= top), 65535)
        image = Image.fromarray((values / top * 255).round().clip(0, 255).astype(np.uint8))
    if "A" in image.mode or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image


def is_picture(path: Path) -> bool:
    """Whether it is an image file by its name; hidden ones (of a Mac, of a notebook) are none."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def to_tensor(image: Image.Image, input_shape: tuple[int, int, int], crop: bool = False) -> Tensor:
    """uint8 of `input_shape` = (C, H, W): grey (C = 1) or RGB (C = 3), resized.

    With `crop` the proportions stay: what is too long after resizing is cut off on both sides.

    Raises:
        ValueError: see `plain`.
    """
    image = plain(image)
    channels, height, width = input_shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        box = None
        if crop:
            scale = min(image.width / width, image.height / height)
            rest = (image.width - width * scale) / 2, (image.height - height * scale) / 2
            box = (rest[0], rest[1], image.width - rest[0], image.height - rest[1])
        image = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


class PictureFiles(Dataset):
    """The image files below a folder, in the order of their names.

    It is indexed by the index tensor of a whole batch.

    Args:
        folder: searched with its subfolders, hidden ones left out; or one image file.
        input_shape: `(C, H, W)` that the images are converted to.
        crop: keeps their proportions, see `to_tensor`.

    Raises:
        DataError: no such folder, or no image file in it.
    """

    def __init__(self, folder: str | Path, input_shape: tuple[int, int, int], crop: bool = False) -> None:
        self.folder = Path(folder)
        self.crop = crop
        self.input_shape = input_shape
        if not self.folder.exists():
            raise DataError(f"no such folder of images: {folder}")
        if self.folder.is_file():
            self.files = [self.folder]
            return
        found = (p for p in self.folder.rglob("*") if is_picture(p) and p.is_file())
        self.files = sorted(p for p in found if not any(part[0] == "." for part in p.relative_to(folder).parts))
        if not self.files:
            raise DataError(f"no image file in {folder} (looked for {', '.join(sorted(SUFFIXES))})")

    def __len__(self) -> int:
        """Number of files, readable or not."""
        return len(self.files)

    def __getitem__(self, indices: Tensor) -> ImageBatch:
        """The files `indices` `(b,)` as a batch without those that cannot be read; it may be empty."""
        images = [torch.empty(0, *self.input_shape, dtype=torch.uint8)]
        readable: list[int] = []
        for index in indices.tolist():
            try:
                with Image.open(self.files[index]) as image:
                    images.append(to_tensor(image, self.input_shape, self.crop)[None])
            except UNREADABLE:
                continue
            readable.append(index)
        found = torch.tensor(readable, dtype=torch.int64)
        return ImageBatch(torch.cat(images), torch.full_like(found, -1), found)


class ImageData(SplitData):
    """Base of `InMemoryImages` and `DatasetImages`: one interface to the tasks.

    A subclass sets the five attributes below in its constructor, before any file is read; the config links them to
    the model. `mean` and `std` refer to values in [0, 1]; the task normalises, so that they travel in the checkpoint.

    Args:
        root: folder of the data.
        batch_size: images an optimizer micro-batch and process.
        eval_batch_size: the same without gradients; it changes no result, only memory and speed.
        train_transforms: applied in training on the batch, on the device, to uint8 `(B, C, H, W)`: the ones of
            `data/augmentation.py`, or any of `torchvision.transforms.v2` (random ones once a sample).
        eval_transforms: the same for validation, test and prediction.
        drop_last: leave out the last training batch if it is not full.
        seed: of the order of the training samples; `null` follows `seed_everything`.

    Raises:
        DataError: a batch size below 1.
    """

    class_names: list[str]
    input_shape: tuple[int, int, int]
    mean: list[float]
    std: list[float]
    predicts_on = "images"
    crop: bool = False  # whether image files keep their proportions

    def __init__(
        self,
        root: str | Path = "data",
        batch_size: int = 64,
        eval_batch_size: int = 1000,
        train_transforms: Sequence[nn.Module] | None = None,
        eval_transforms: Sequence[nn.Module] | None = None,
        drop_last: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if value < 1:
                raise DataError(f"{name} must be at least 1, got {value}")
        self.root = Path(root).expanduser()
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.train_transforms = BatchTransforms(train_transforms or [])
        self.eval_transforms = BatchTransforms(eval_transforms or [])
        self.drop_last = drop_last
        self.seed = seed
        self.pictures: PictureFiles | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def predict_from(self, folder: str | Path) -> dict[int, dict[str, str]]:
        """`predict` then classifies the image files of `folder` instead of the test split.

        Args:
            folder: one with image files, or an image file.

        Returns:
            `file` of each image by its number, for the table of predictions.

        Raises:
            DataError: no such folder, or no image file in it.
        """
        self.pictures = PictureFiles(Path(folder).expanduser(), self.input_shape, self.crop)
        return {number: {"file": str(file)} for number, file in enumerate(self.pictures.files)}

    @property
    def predict_source(self) -> str:
        """What `predict` reads, as a name for its output file."""
        if self.pictures is None:
            return "test"
        place = self.pictures.folder.resolve()
        return f"images_{place.stem if place.is_file() else place.name}"

    @property
    def needs_split(self) -> bool:
        """Whether the dataset itself is needed (not to predict on a folder)."""
        return self.pictures is None

    def order(self, size: int, split: Split) -> EpochBatches:
        """The batches of a split for this process."""
        train = split == "train"
        return EpochBatches(
            size,
            self.batch_size if train else self.eval_batch_size,
            shuffle=self.shuffles(split),
            drop_last=train and self.drop_last,
            **self.share(),
        )

    def predict_dataloader(self) -> EVAL_DATALOADERS:
        """The test split, or the folder of image files that `predict_from` named."""
        return self.loader("test") if self.needs_split else self.predict_pictures()

    def predict_pictures(self) -> DataLoader:
        """Loads the image files that `predict_from` named."""
        assert self.pictures is not None
        order = self.order(len(self.pictures.files), "test")
        return DataLoader(self.pictures, batch_size=None, sampler=order)

    def transfer_batch_to_device(self, batch: ImageBatch, device: torch.device, dataloader_idx: int) -> ImageBatch:
        """Moves a batch; one that is there already is not looked through tensor by tensor."""
        if batch[0].device == device:
            return batch
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: ImageBatch, dataloader_idx: int) -> ImageBatch:
        """Augments and converts on the device: uint8 → float in [0, 1]."""
        trainer = self.trainer
        training = trainer is not None and trainer.training
        transforms = self.train_transforms if training else self.eval_transforms
        if trainer is not None and training and len(transforms.steps):
            # each sample occurs once an epoch, so this is one random stream a batch, also after a resume
            seed_step(self.share()["seed"], "augment", trainer.current_epoch, int(batch[2][0]), device=batch[0].device)
        images = transforms(batch[0])
        if images.dtype == torch.uint8:
            images = images.float().div_(255)
        return batch._replace(images=images)

    def check_targets(self, targets: Tensor, split: Split) -> None:
        """Raises DataError where a split is empty or one of its class indices `(N,)` is out of range."""
        if len(targets) == 0:
            raise DataError(f"{type(self).__name__}: the {split} split is empty")
        wrong = ((targets < 0) | (targets >= self.num_classes)).nonzero().flatten()
        if len(wrong):
            index = int(wrong[0])
            raise DataError(
                f"{type(self).__name__}: sample {index} of the {split} split has label {int(targets[index])}, "
                f"but there are {self.num_classes} classes (0 to {self.num_classes - 1}); {len(wrong)} such label(s)"
            )


# Carves validation from train. Its own constant, so that it is the same whatever the seed of a run.
SPLIT_SEED = 2017


def random_split(size: int, val_size: int) -> tuple[Tensor, Tensor]:
    """Indices of train and validation, `(size - val_size,)` and `(val_size,)`, each ascending; always the same."""
    order = _order(size, val_size)
    return order[val_size:].sort().values, order[:val_size].sort().values


def stratified_split(labels: Tensor, val_size: int) -> tuple[Tensor, Tensor]:
    """As `random_split`, validation having each class in its proportion in `labels` `(N,)`, to within one sample.

    Parts of samples are rounded up where they are largest; but a class keeps its last sample for training as long as
    another can give one instead.
    """
    size = len(labels)
    order = _order(size, val_size)
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    held = counts * val_size // max(1, size)
    parts = counts * val_size - held * size  # of a sample, times size
    is_last = held + 1 == counts
    held[(parts - size * is_last).argsort(descending=True, stable=True)[: val_size - int(held.sum())]] += 1
    by_class = order[classes[order].argsort(stable=True)]
    place_in_class = torch.arange(size) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    is_held = place_in_class < held.repeat_interleave(counts)
    return by_class[~is_held].sort().values, by_class[is_held].sort().values


def _order(size: int, val_size: int) -> Tensor:
    if not 0 <= val_size <= size:
        raise DataError(f"a split of {val_size} samples cannot be taken from {size}")
    return torch.randperm(size, generator=torch.Generator().manual_seed(derive(SPLIT_SEED, size)))


class TensorLoader(IndexLoader):
    """Iterates over batches of in-memory tensors by indexing; as resumable as its `sampler`.

    Args:
        images: uint8 or float `(N, C, H, W)`.
        targets: int64 `(N,)`.
        order: the batches of indices.
    """

    def __init__(self, images: Tensor, targets: Tensor, order: EpochBatches) -> None:
        super().__init__(order)
        self.images = images
        self.targets = targets

    def __iter__(self) -> Iterator[ImageBatch]:
        """Yields the batches of the epoch from the current position on."""
        device = self.images.device
        for indices in self.sampler:
            indices = indices.to(device)
            yield ImageBatch(self.images.index_select(0, indices), self.targets.index_select(0, indices), indices)


class InMemoryImages(ImageData):
    """Base of image data held as one uint8 tensor `(N, C, H, W)` a split.

    A subclass implements `load`, and `prepare_data` if there is something to download.

    Args:
        on_device: keep the splits on the accelerator, so that no batch travels; they need a byte a value there.
        **kwargs: of `ImageData`.
    """

    def __init__(self, on_device: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.on_device = on_device
        self.splits: dict[str, tuple[Tensor, Tensor]] = {}

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Images `(N, C, H, W)`, uint8 or floats in [0, 1], and targets, int64 `(N,)`, of one split."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Loads the splits that the stage needs, once."""
        needed: dict[str, tuple[Split, ...]] = {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}
        for split in needed.get(stage, ("test",) if self.needs_split else ()):
            if split not in self.splits:
                images, targets = self.load(split)
                if len(images) != len(targets):
                    raise DataError(
                        f"{type(self).__name__}: the {split} split has {len(images)} images and {len(targets)} targets"
                    )
                check_images(images, self.input_shape, f"{type(self).__name__}: each image of the {split} split")
                self.check_targets(targets, split)
                if self.on_device and self.trainer is not None:
                    device = self.trainer.strategy.root_device
                    images, targets = images.to(device), targets.to(device)
                self.splits[split] = images, targets

    def size_of(self, split: Split) -> int:
        """Number of samples of a split that has been set up."""
        return len(self.splits[split][1])

    def loader(self, split: Split) -> TensorLoader:
        """Batches of a split for this process."""
        images, targets = self.splits[split]
        return TensorLoader(images, targets, self.order(len(targets), split))
