"""Image data that do not fit in memory: any map-style dataset, through a DataLoader with workers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from .datamodule import Split
from .distributed import print_once
from .errors import DataError
from .images import ImageBatch, ImageData, check_images, random_split, stratified_split, to_tensor
from .sampler import EpochBatches


class Batched(Dataset):
    """Makes a dataset of `(image, target)` give whole `ImageBatch`es for a tensor of indices.

    Images may be PIL images or tensors `(C, H, W)`; they become uint8 (floats in [0, 1] stay float) of `input_shape`.
    """

    def __init__(self, dataset: Dataset, input_shape: tuple[int, int, int], crop: bool = False) -> None:
        self.dataset = dataset
        self.crop = crop
        self.input_shape = input_shape

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, indices: Tensor) -> ImageBatch:
        """Samples `indices` `(b,)` as one batch."""
        samples = [self.dataset[index] for index in indices.tolist()]
        images = [self.fit(image) for image, _ in samples]
        return ImageBatch(torch.stack(images), torch.tensor([int(target) for _, target in samples]), indices)

    def fit(self, image: Tensor | Image.Image) -> Tensor:
        """One image as `(C, H, W)` of `input_shape`; a tensor of that shape is taken as it is."""
        if isinstance(image, Image.Image):
            return to_tensor(image, self.input_shape, self.crop)
        check_images(image[None], self.input_shape, "an image of the dataset")
        return image


class ResumableLoader(DataLoader):
    """A DataLoader over `EpochBatches` that continues where a checkpoint was taken, also with workers.

    Workers fetch ahead, so it counts what it has handed out, not what the sampler has. Iteration begins when the first
    batch is asked for: on resume Lightning makes the iterator before it sets the epoch and the position.
    """

    sampler: EpochBatches
    position = 0

    def __iter__(self) -> Iterator[ImageBatch]:  # type: ignore[override]
        """Yields the batches of the epoch from the current position on."""
        self.position = self.sampler.start
        try:
            for batch in super().__iter__():
                self.position += 1
                yield batch
        except DataError as error:  # from a worker with its traceback as text: the message is what follows the name
            name = f"{DataError.__module__}.{DataError.__qualname__}: "
            raise DataError(str(error).rpartition(name)[2].strip()) from error

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch."""
        return {**self.sampler.state_dict(), "position": self.position % len(self)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at a position."""
        self.sampler.load_state_dict(state)
        self.position = state["position"]


class DatasetImages(ImageData):
    """Images from any map-style datasets that give `(image, target)`, such as those of torchvision.

    Without `val`, a fixed `val_size` of `train` becomes validation, each class in its proportion where the dataset has
    `targets`, as those of torchvision have; without `test`, only `fit` and `validate` work.

    Args:
        train: training samples.
        val: validation samples.
        test: test samples.
        val_size: samples of validation where `val` is not given; a share of `train` if below 1.
        class_names: names of the classes; default: the `classes` of `train`.
        input_shape: `(C, H, W)` that images are resized to.
        mean: of each channel, of values in [0, 1].
        std: of each channel.
        num_workers: processes that load batches; 0 loads in the main process.
        pin_memory: copies through page-locked memory, which speeds up the way to a GPU.
        **kwargs: of `ImageData`.

    Raises:
        DataError: no class names, or a split that is asked for and not given.
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
        num_workers: int = 2,
        pin_memory: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        names = class_names or getattr(train, "classes", None)
        if not names:
            raise DataError(f"{type(self).__name__}: the training data have no `classes`: give class_names")
        if len(mean) != input_shape[0] or len(std) != input_shape[0]:
            raise DataError(f"mean and std need a value for each of the {input_shape[0]} channel(s) of input_shape")
        self.class_names = list(names)
        self.input_shape = input_shape
        self.mean, self.std = list(mean), list(std)
        self.num_workers = num_workers
        self.pin_memory = pin_memory
        self.splits: dict[str, Dataset] = {}
        self._given = {"train": train, "val": val, "test": test}
        self._val_size = val_size

    def setup(self, stage: str) -> None:
        """Makes the splits and checks their labels, where these are at hand without loading the images."""
        if self.splits or not self.needs_split:
            return
        splits = {name: dataset for name, dataset in self._given.items() if dataset is not None}
        for name, dataset in splits.items():
            targets = getattr(dataset, "targets", None)
            if targets is not None:
                self.check_targets(torch.as_tensor(np.asarray(targets)), name)  # type: ignore[arg-type]
        if "val" not in splits and "train" in splits:
            size = len(splits["train"])  # type: ignore[arg-type]
            share = 0 < self._val_size < 1
            val_size = round(size * self._val_size) if share else self._val_size
            if not 0 < val_size < size:
                raise DataError(f"val_size {self._val_size} leaves no training or no validation sample of {size}")
            train, val = split_by_class(splits["train"], int(val_size))
            splits["val"] = Subset(splits["train"], val.tolist())
            splits["train"] = Subset(splits["train"], train.tolist())
            _note_untrained(splits["train"], self.class_names)
        self.splits = splits

    def has_split(self, split: Split) -> bool:
        """Whether it was given or is carved out of the training data."""
        return self._given["train" if split == "val" and self._given["val"] is None else split] is not None

    def size_of(self, split: Split) -> int:
        """Number of samples of a split that has been set up."""
        return len(self._split(split))  # type: ignore[arg-type]

    def _split(self, split: Split) -> Dataset:
        if split not in self.splits:
            where = "" if self.splits or self.root.is_dir() else f" (there is no folder {self.root})"
            raise DataError(
                f"{type(self).__name__} has no {split} split: only {', '.join(self.splits) or 'none'}{where}"
            )
        return self.splits[split]

    def loader(self, split: Split) -> ResumableLoader:
        """Batches of a split for this process, loaded by `num_workers` processes."""
        dataset = Batched(self._split(split), self.input_shape, self.crop)
        return ResumableLoader(
            dataset,
            batch_size=None,  # the sampler gives whole batches
            sampler=self.order(len(dataset), split),
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            persistent_workers=self.num_workers > 0,
        )


def split_by_class(dataset: Any, val_size: int) -> tuple[Tensor, Tensor]:
    """Indices of train `(N - val_size,)` and validation `(val_size,)`, each ascending; always the same.

    They are those of `stratified_split` where the labels are at hand without the images, else of `random_split`.
    """
    labels = _labels(dataset)
    return random_split(len(dataset), val_size) if labels is None else stratified_split(labels, val_size)


def _labels(dataset: Any) -> Tensor | None:
    """The `targets` `(N,)` of a dataset, or of a part of one; None without, or if they are of other samples."""
    if isinstance(dataset, Subset):
        labels = _labels(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    targets = getattr(dataset, "targets", None)
    return None if targets is None or len(targets) != len(dataset) else torch.as_tensor(np.asarray(targets))


def _note_untrained(train: Dataset, class_names: Sequence[str]) -> None:
    """Says which classes have no sample in what is left of the training data, where the labels are at hand."""
    labels = _labels(train)
    if labels is None:
        return
    seen = set(labels.tolist())
    untrained = [name for index, name in enumerate(class_names) if index not in seen]
    if untrained:
        few = ", ".join(untrained[:5]) + (", …" if len(untrained) > 5 else "")
        print_once(f"note: {len(untrained)} class(es) without a training sample, all being held out: {few}")
