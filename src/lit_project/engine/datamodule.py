"""Base of all data: three splits, whose loaders know their position in the epoch."""

from collections.abc import Mapping
from typing import Any, Literal

from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities.types import EVAL_DATALOADERS, TRAIN_DATALOADERS

from .distributed import print_once
from .errors import DataError
from .sampler import global_seed


class ResumablePosition(LightningDataModule):
    """Saves the position of the training loader and puts the loader of a resumed run there."""

    _training: Any = None  # the loader of the training batches
    _resume: dict[str, Any] | None = None  # the position that it has to begin at

    def resumable(self, loader: Any) -> Any:
        """A training loader, put at the position of the checkpoint that the run is resumed from."""
        if self._resume is not None:
            loader.load_state_dict(self._resume)
        self._training, self._resume = loader, None
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch of training.

        Lightning saves that of the loader, too, but does not restore it where a learning rate schedule has asked for
        the length of the run before.
        """
        return self._training.state_dict() if self._training is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Training continues there."""
        if state_dict and self.trainer is not None and self.trainer.training:
            self._resume = state_dict


Split = Literal["train", "val", "test"]


class SplitData(ResumablePosition):
    """A loader a split, whose batches are a function of (seed, epoch), shared out over the processes.

    A subclass implements `loader` and `size_of`.

    Attributes:
        seed: of the order of the training samples; None follows `seed_everything`.
        splits: what has been set up, by split.
    """

    seed: int | None = None
    splits: Mapping[Any, Any] = {}

    def loader(self, split: Split) -> Any:
        """Batches of a split for this process."""
        raise NotImplementedError

    def size_of(self, split: Split) -> int:
        """Number of samples of a split that has been set up."""
        raise NotImplementedError

    def has_split(self, split: Split) -> bool:
        """Whether there is such a split, as far as can be told before `setup`."""
        return True

    def shuffles(self, split: Split) -> bool:
        """Whether the samples of a split come in another order each epoch: training, if it is not to overfit a few."""
        return split == "train" and not getattr(self.trainer, "overfit_batches", 0)

    def share(self) -> dict[str, int]:
        """What the batches of this process depend on: `seed`, `num_replicas`, `rank`, as `EpochBatches` takes them."""
        return {
            "seed": global_seed() if self.seed is None else self.seed,
            "num_replicas": self.trainer.world_size if self.trainer else 1,
            "rank": self.trainer.global_rank if self.trainer else 0,
        }

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch of training, and the number of samples of each split."""
        return {**super().state_dict(), "samples": {split: self.size_of(split) for split in self.splits}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Training continues at the position.

        With another number of samples, splits that are carved out of them are others, and what is held out now may
        have been trained on: evaluation says so.

        Raises:
            DataError: training is to go on, and a split has another number of samples.
        """
        before = state_dict.get("samples", {})
        changed = [f"{split} had {before[split]:,} and has {self.size_of(split):,} samples"
                   for split in before if split in self.splits and self.size_of(split) != before[split]]  # fmt: skip
        if changed:
            what = f"the data are not those that the run was trained on: {', '.join(changed)}"
            if self.trainer is not None and self.trainer.training:
                raise DataError(f"{what}; begin a new run, from its weights with --init_from")
            print_once(f"warning: {what}; where splits are carved, the test may hold samples of training")
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "samples"})

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


def has_test(datamodule: Any) -> bool:
    """Whether there is something to test on, as far as can be told before the data are set up; says so if not."""
    own = getattr(type(datamodule), "test_dataloader", None) is not LightningDataModule.test_dataloader
    has = own and (not hasattr(datamodule, "has_split") or datamodule.has_split("test"))
    if not has:
        print_once(f"{type(datamodule).__name__} has no test split: nothing is tested after the training")
    return has
