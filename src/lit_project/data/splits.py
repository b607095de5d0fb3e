"""Data in three splits: what every data module here has in common."""

from typing import Any, Literal

from lightning.pytorch.utilities.types import EVAL_DATALOADERS, TRAIN_DATALOADERS

from lit_project.data.position import ResumablePosition
from lit_project.seeding import global_seed

Split = Literal["train", "val", "test"]


class SplitData(ResumablePosition):
    """A loader a split, whose batches are a function of (seed, epoch), shared out over the processes.

    A subclass implements `loader` and `size_of`.

    Attributes:
        seed: of the order of the training samples; None follows `seed_everything`.
    """

    seed: int | None = None

    def loader(self, split: Split) -> Any:
        """Batches of a split for this process."""
        raise NotImplementedError

    def size_of(self, split: Split) -> int:
        """Number of samples of a split that has been set up."""
        raise NotImplementedError

    def has_split(self, split: Split) -> bool:
        """Whether there is such a split, as far as can be told before `setup`."""
        return True

    def share(self) -> dict[str, int]:
        """What the batches of this process depend on: `seed`, `num_replicas`, `rank`, as `EpochBatches` takes them."""
        return {
            "seed": global_seed() if self.seed is None else self.seed,
            "num_replicas": self.trainer.world_size if self.trainer else 1,
            "rank": self.trainer.global_rank if self.trainer else 0,
        }

    def train_dataloader(self) -> TRAIN_DATALOADERS:
        """Shuffled training batches, which a resumed run continues."""
        return self.resumable(self.loader("train"))

    def val_dataloader(self) -> EVAL_DATALOADERS:
        """Validation batches."""
        return self.loader("val")

    def test_dataloader(self) -> EVAL_DATALOADERS:
        """Test batches."""
        return self.loader("test")

    def predict_dataloader(self) -> EVAL_DATALOADERS:
        """The test batches."""
        return self.loader("test")

    def __str__(self) -> str:
        """Its name: Lightning would make all loaders to count their samples, and jsonargparse prints what it links."""
        return type(self).__name__
