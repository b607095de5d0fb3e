"""Base of all data: splits that are loaded once, and loaders whose order is a function of (seed, epoch)."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor

from lit_engine.data.sampler import EpochBatches, Loader, derive, global_seed
from lit_engine.distributed.processes import print_once, replicas
from lit_engine.errors import DataError

Split = Literal["train", "val", "test"]
STAGES: dict[str, tuple[Split, ...]] = {"fit": ("train", "val"), "validate": ("val",)}  # others need the test split


class Rows:
    """Tensors whose first axis is that of the samples; a tensor of indices `(b,)` gives a batch.

    Args:
        batch: makes a batch of the chosen rows of each tensor, and the indices.
        *tensors: of equal length.
    """

    draws = False  # nothing random happens here

    def __init__(self, batch: Callable[..., Any], *tensors: Tensor) -> None:
        self.batch, self.tensors = batch, tensors

    def __len__(self) -> int:
        return len(self.tensors[-1])

    def __getitem__(self, indices: Tensor) -> Any:
        places = indices.to(self.tensors[0].device, non_blocking=True)
        return self.batch(*(tensor.index_select(0, places) for tensor in self.tensors), indices)


def build_datamodule(config: Mapping[str, Any]) -> LightningDataModule:
    """A data module as the `data` of a config describe it."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    try:
        return parser.instantiate(parser.parse_object({"data": config})).data
    except ValueError as error:  # of jsonargparse, around that of the class
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise


def accumulation_steps(trainer: Any) -> int:
    """Micro-batches of an optimizer step."""
    return getattr(trainer.lightning_module, "accumulate", None) or trainer.accumulate_grad_batches


def accumulation_schedule(trainer: Any) -> GradientAccumulationScheduler | None:
    """Lightning's callback that changes the `accumulation_steps` from epoch to epoch, if there is one."""
    callbacks = getattr(trainer, "callbacks", ())
    return next((one for one in callbacks if isinstance(one, GradientAccumulationScheduler)), None)


class SplitData(LightningDataModule):
    """Three splits, each loaded once; the processes share its batches, and a resumed run continues within an epoch.

    A subclass implements `load`, and `prepare_data` if there is something to download.

    Args:
        batch_size: samples per process (per micro-batch when accumulating); if neither size is given,
            `default_batch_size`.
        eval_batch_size: the same without gradients; it changes no result, only memory and speed.
        drop_last: leave out the last training batch if it is not full.
        seed: of the order of the training samples; `null` follows `seed_everything`.
        global_batch_size: instead of `batch_size`: samples per optimizer step, over processes and micro-batches. The
            samples of each step are then the same for all numbers of them that divide it.
        folds: where the test is carved out of the data (`hold_out`): parts of the data, one of which is the test.
        fold: which one, from 0.

    Attributes:
        splits: what has been loaded, by split.
        new: samples to predict on instead of the test split, set by a `predict_from`.
        predict_source: what `predict` reads, as a name for its output file.

    Raises:
        DataError: a batch size below 1, or two of training; no such fold.
    """

    default_batch_size: ClassVar[int] = 64
    official_test: ClassVar[bool] = False  # True refuses `folds` before anything is downloaded
    batch: Callable[..., Any]  # of tensors: a NamedTuple of them and the indices

    def __init__(
        self,
        batch_size: int | None = None,
        eval_batch_size: int = 1000,
        drop_last: bool = False,
        seed: int | None = None,
        global_batch_size: int | None = None,
        folds: int | None = None,
        fold: int = 0,
    ) -> None:
        super().__init__()
        if folds is not None and (folds < 2 or not 0 <= fold < folds):
            raise DataError(f"folds must be at least 2 and fold from 0 to folds - 1, got {folds} and {fold}")
        if folds is not None and self.official_test:
            raise self._no_folds()
        sizes = {"batch_size": batch_size, "global_batch_size": global_batch_size, "eval_batch_size": eval_batch_size}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise DataError(f"{name} must be at least 1, got {value}")
        if None not in (batch_size, global_batch_size):
            raise DataError(
                f"give one of batch_size and global_batch_size, got {batch_size} and {global_batch_size}: "
                "--data.batch_size=null leaves it to the other"
            )
        self.batch_size = self.default_batch_size if batch_size is global_batch_size is None else batch_size
        self.global_batch_size = global_batch_size
        self.eval_batch_size, self.drop_last, self.seed = eval_batch_size, drop_last, seed
        self.folds, self.fold = folds, fold
        self._folded = False  # whether the test is the fold
        self.splits: dict[str, Any] = {}
        self.new: Any = None
        self.predict_source = "test"
        self._training: Loader | None = None
        self._resume: dict[str, Any] | None = None  # the position at which training continues

    def load(self, split: Split) -> Any:
        """Tensors of one split, samples along the first axis; or what gives a batch for a tensor of indices."""
        raise NotImplementedError

    def loaded(self, split: Split) -> Any:
        """What `load` gives, as it is kept: checked, encoded."""
        return self.load(split)

    def setup(self, stage: str) -> None:
        """Loads the splits that the stage needs, once; raises DataError if there are to be folds and cannot be."""
        for split in STAGES.get(stage, ("test",) if self.new is None else ()):
            if split not in self.splits:
                self.splits[split] = self.loaded(split)
        if self.folds and not self._folded and self.new is None:
            raise self._no_folds()

    def _no_folds(self) -> DataError:
        return DataError(f"{type(self).__name__} has a test split of its own: there are no folds of it")

    def hold_out(
        self, size: int, test_size: int, labels: Tensor | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Indices of `size` samples outside and inside the test split, each ascending, the same in every run.

        The test is a random part of `test_size`, or the fold. If `labels` are classes `(size,)`, the folds share the
        samples of each class to within one, and so does a random part if it is `stratified`.
        """
        if not self.folds:
            return (
                stratified_split(labels, test_size)
                if stratified and labels is not None
                else random_split(size, test_size)
            )
        labels = torch.zeros(size) if labels is None or labels.ndim > 1 else labels
        return self.split_off(folds_of(labels, self.folds))

    def split_off(self, folds: Tensor) -> tuple[Tensor, Tensor]:
        """The same for the fold of each sample `(N,)`."""
        self._folded = True
        return (folds != self.fold).nonzero().flatten(), (folds == self.fold).nonzero().flatten()

    def dataset(self, split: Split) -> Any:
        """A split that has been set up; `dataset[indices]` is a batch."""
        data = self.splits[split]
        return Rows(self.batch, *data) if isinstance(data, tuple) else data

    def size_of(self, split: Split) -> int:
        """Number of samples of a split that has been set up."""
        return len(self.dataset(split))

    def has_split(self, split: Split) -> bool:
        """Whether there is such a split, as far as can be told before `setup`."""
        return True

    def shuffles(self, split: Split) -> bool:
        """Whether the samples of a split come in another order each epoch: training, if it is not to overfit a few."""
        return split == "train" and not getattr(self.trainer, "overfit_batches", 0)

    def rank_settings(self) -> dict[str, int]:
        """What the batches of this process depend on, as `EpochBatches` takes it."""
        here = replicas(self.trainer)
        if self.global_batch_size and accumulation_schedule(self.trainer):
            raise DataError("GradientAccumulationScheduler changes what global_batch_size fixes: give batch_size")
        return {
            "seed": global_seed() if self.seed is None else self.seed,
            "accumulate": accumulation_steps(self.trainer) if self.trainer else 1,
            "num_replicas": here.size,
            "rank": here.rank,
        }

    def batch_sampler(self, dataset: Any, split: Split) -> EpochBatches:
        """The batches of a `dataset` for this process."""
        train = split == "train"
        return EpochBatches(
            len(dataset),
            self.batch_size if train else self.eval_batch_size,
            global_batch_size=self.global_batch_size if train else None,
            shuffle=self.shuffles(split),
            drop_last=train and self.drop_last,
            **self.rank_settings(),
        )

    def loader(self, split: Split) -> Loader:
        """Loads the batches of a split for this process."""
        return self.batches(self.dataset(split), split)

    def batches(self, dataset: Any, split: Split) -> Loader:
        """Return a loader of the batches of a dataset, in the order of a split."""
        return Loader(dataset, self.batch_sampler(dataset, split))

    def train_dataloader(self) -> Loader:
        """Shuffled training batches, which a resumed run continues."""
        self._training = self.loader("train")
        if self._resume is not None:
            self._training.load_state_dict(self._resume)
            self._resume = None
        return self._training

    def val_dataloader(self) -> Loader:
        return self.loader("val")

    def test_dataloader(self) -> Loader:
        return self.loader("test")

    def predict_dataloader(self) -> Loader:
        """The test batches, or the new samples."""
        return self.loader("test") if self.new is None else self.batches(self.new, "test")

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch of training, and the number of samples of each split.

        Lightning also saves that of the loader, but does not restore it if a learning rate schedule has asked for the
        length of the run before.
        """
        position = {} if self._training is None else self._training.state_dict()
        return {**position, "samples": {split: self.size_of(split) for split in self.splits}}  # type: ignore[arg-type]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Training continues at the position.

        Raises:
            DataError: training is to continue, and a split has another number of samples. Evaluation only warns that
                what is held out now may have been trained on.
        """
        trainer: Any = self.trainer
        training = trainer is not None and trainer.training
        before = state_dict.get("samples", {})
        changed = [f"{split} had {before[split]:,} and has {self.size_of(split):,} samples"
                   for split in before if split in self.splits and self.size_of(split) != before[split]]  # fmt: skip
        if changed:
            what = f"the data are not those that the run was trained on: {', '.join(changed)}"
            if training:
                raise DataError(f"{what}; begin a new run, from its weights with --init_from")
            print_once(f"warning: {what}; where splits are carved, the test may hold samples of training")
        if training and "position" in state_dict:
            if trainer.train_dataloader is None:
                self._resume = state_dict
            else:  # the strategy restores late, and a schedule has asked for the length of the run
                trainer.train_dataloader.load_state_dict(state_dict)

    def __str__(self) -> str:
        """Its name. jsonargparse prints what it links, and Lightning would make all loaders to count samples."""
        return type(self).__name__


def has_test(datamodule: Any) -> bool:
    """Whether there is something to test on, as far as can be told before the data are set up; says so if not."""
    own = getattr(type(datamodule), "test_dataloader", None) is not LightningDataModule.test_dataloader
    has = own and (not hasattr(datamodule, "has_split") or datamodule.has_split("test"))
    if not has:
        print_once(f"{type(datamodule).__name__} has no test split: nothing is tested after the training")
    return has


# Carves validation from train. A constant of its own, so that the split does not depend on the seed of a run.
SPLIT_SEED = 2017


def random_split(size: int, val_size: int) -> tuple[Tensor, Tensor]:
    """Indices of train and validation, `(size - val_size,)` and `(val_size,)`, each ascending; always the same."""
    order = _order(size, val_size)
    return order[val_size:].sort().values, order[:val_size].sort().values


def stratified_split(labels: Tensor, val_size: int) -> tuple[Tensor, Tensor]:
    """Like `random_split`, with the classes of `labels` `(N,)` in their proportions, to within one sample.

    Parts of samples are rounded up where they are largest, but a class keeps its last sample for training as long as
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


def folds_of(labels: Tensor, folds: int) -> Tensor:
    """The fold of each sample, from 0: `(N,)`. All have as many of each class of `labels` `(N,)`, to within one.

    Raises:
        DataError: more folds than samples.
    """
    if len(labels) < folds:
        raise DataError(f"{len(labels)} samples cannot be {folds} folds")
    order = _order(len(labels), 0)
    found = torch.empty_like(order)
    found[order[labels[order].argsort(stable=True)]] = torch.arange(len(labels)) % folds
    return found


def _order(size: int, val_size: int) -> Tensor:
    if not 0 <= val_size <= size:
        raise DataError(f"a split of {val_size} samples cannot be taken from {size}")
    return torch.randperm(size, generator=torch.Generator().manual_seed(derive(SPLIT_SEED, size)))
