"""What every image data module promises to a task, whether its images fit in memory or not."""

from collections.abc import Sequence
from pathlib import Path

import torch
from lightning.pytorch.utilities.types import EVAL_DATALOADERS
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lit_project.data.batch import ImageBatch
from lit_project.data.order import EpochBatches
from lit_project.data.picture_files import PictureFiles
from lit_project.data.splits import Split, SplitData
from lit_project.data.transforms import BatchTransforms
from lit_project.errors import DataError
from lit_project.seeding import seed_step


class ImageData(SplitData):
    """Base of `InMemoryImages` and `DatasetImages`: one interface to the tasks.

    A subclass sets the five attributes below in its constructor, before any file is read; the config links them to
    the model. `mean` and `std` refer to values in [0, 1]; the task normalises, so that they travel in the checkpoint.

    Args:
        root: folder of the data.
        batch_size: images an optimizer micro-batch and process.
        eval_batch_size: the same without gradients; it changes no result, only memory and speed.
        train_transforms: applied in training on the batch, on the device, to uint8 `(B, C, H, W)`: the ones of
            `lit_project.data.transforms`, or any of `torchvision.transforms.v2` (random ones once a sample).
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
