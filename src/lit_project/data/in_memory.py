"""Image data that fit in memory: each split is one tensor, and a batch is one indexing operation."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lit_project.data.batch import ImageBatch, check_images
from lit_project.data.images import ImageData
from lit_project.data.order import EpochBatches, IndexLoader
from lit_project.data.splits import Split
from lit_project.errors import DataError
from lit_project.seeding import derive

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
