"""Base class for data modules. Splits are loaded once, and the order of samples depends only on (seed, epoch)."""

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Literal

import torch
from jsonargparse import ArgumentParser
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lit_engine.data.corrections import apply_corrections
from lit_engine.data.sampler import EpochBatches, Loader, derive, global_seed
from lit_engine.data.sampling import weights_for
from lit_engine.distributed.processes import print_once, replicas
from lit_engine.errors import DataError

Split = Literal["train", "val", "test"]
"""The name of a split of the data."""


class Rows:
    """Tensors with samples along the first axis. Indexing with a tensor of indices `(b,)` returns a batch.

    Args:
        batch: function that builds a batch from the selected rows of each tensor and their indices.
        *tensors: tensors of equal length.
    """

    draws = False  # loading is deterministic

    def __init__(self, batch: Callable[..., Any], *tensors: Tensor) -> None:
        self.batch, self.tensors = batch, tensors

    def __len__(self) -> int:
        return len(self.tensors[-1])

    def __getitem__(self, indices: Tensor) -> Any:
        places = indices.to(self.tensors[0].device, non_blocking=True)
        return self.batch(*(tensor.index_select(0, places) for tensor in self.tensors), indices)


def build_datamodule(config: Mapping[str, Any]) -> LightningDataModule:
    """Build a data module from the `data` section of a config, which is not modified."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(LightningDataModule, "data")
    try:
        return parser.instantiate(parser.parse_object({"data": deepcopy(config)})).data
    except ValueError as error:  # jsonargparse wraps errors that the class raises
        if isinstance(error.__cause__, DataError):
            raise error.__cause__ from None
        raise


def accumulation_steps(trainer: Any) -> int:
    """Return the number of micro-batches per optimizer step."""
    module = trainer.lightning_module
    own = None if getattr(module, "automatic_optimization", True) else getattr(module, "accumulate", None)
    return own if isinstance(own, int) else trainer.accumulate_grad_batches


def accumulation_schedule(trainer: Any) -> GradientAccumulationScheduler | None:
    """Return Lightning's callback that changes the number of micro-batches between epochs, or None."""
    callbacks = getattr(trainer, "callbacks", ())
    return next((one for one in callbacks if isinstance(one, GradientAccumulationScheduler)), None)


class SplitData(LightningDataModule):
    """Data module with three splits. Each split is loaded once, and training can resume mid-epoch.

    A subclass implements `load`, and `prepare_data` if data must be downloaded. In a training loop without a `Trainer`,
    call `loader.sampler.set_epoch(epoch)` before each epoch. Otherwise, all epochs have the same order.

    Args:
        batch_size: number of samples per process (and per micro-batch when accumulating gradients). If neither this nor
            `global_batch_size` is set, `default_batch_size` is used.
        eval_batch_size: number of samples per process in evaluations. The size affects memory and speed, not results.
        drop_last: drop the last samples of an epoch if they do not fill a batch on every process, or a step of
            `global_batch_size` samples.
        seed: seed for the order and the augmentation of the training samples. Default: the seed set by
            `seed_everything`.
        global_batch_size: number of samples per optimizer step, which replaces `batch_size`. The size must be divisible
            by processes × micro-batches. A step uses the same samples for any number of processes and micro-batches.
        folds: number of folds. One fold is the test split. Data modules must use `hold_out` to support folds.
        fold: index of the test fold, counted from 0.
        sampling: draw the training samples of each epoch with replacement. `balanced` draws all classes equally often.
            A dict sets the weight of each class (1 if omitted), so samples of a class with weight 3 are drawn three
            times as often. Each line of a file contains the weight of one training sample. Epochs keep their length.
        corrections: CSV file written by `doubts`, which contains corrected labels for training samples. Labels of
            validation and test samples are not changed.

    Attributes:
        splits: loaded data by split name.
        sample_weights: weight of each training sample `(N,)`, set by `setup` if `sampling` is used.
        new: samples that `predict` uses instead of the test split. They are set by `predict_from`.
        predict_source: name of the input to `predict` and of the output file, such as `test` or `images_FOLDER`.
        total: number of samples from which splits were held out, or None. If it changes, so do random splits.

    Raises:
        DataError: if a batch size is below 1, both training batch sizes are set, or the fold does not exist.
    """

    default_batch_size: ClassVar[int] = 64
    official_test: ClassVar[bool] = False  # if True, `folds` is rejected before anything is downloaded
    pin_memory: bool | None = None  # None pins memory only on CUDA (see `pins`)
    batch: Callable[..., Any]  # builds a NamedTuple of tensors and indices (see `Rows`)

    def __init__(
        self,
        batch_size: int | None = None,
        eval_batch_size: int = 1000,
        drop_last: bool = False,
        seed: int | None = None,
        global_batch_size: int | None = None,
        folds: int | None = None,
        fold: int = 0,
        sampling: dict[str, float] | str | None = None,
        corrections: str | None = None,
    ) -> None:
        super().__init__()
        if folds is not None and (folds < 2 or not 0 <= fold < folds):
            raise DataError(f"folds must be at least 2, and fold must be from 0 to folds - 1, got {folds} and {fold}")
        if folds is not None and self.official_test:
            raise self._no_folds()
        sizes = {"batch_size": batch_size, "global_batch_size": global_batch_size, "eval_batch_size": eval_batch_size}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise DataError(f"{name} must be at least 1, got {value}")
        if None not in (batch_size, global_batch_size):
            raise DataError(
                f"set either batch_size or global_batch_size, got {batch_size} and {global_batch_size}: "
                "--data.batch_size=null unsets batch_size"
            )
        if batch_size is None and global_batch_size is None:
            batch_size = self.default_batch_size
        self.batch_size, self.global_batch_size = batch_size, global_batch_size
        self.eval_batch_size, self.drop_last, self.seed = eval_batch_size, drop_last, seed
        self.folds, self.fold, self.sampling, self.corrections = folds, fold, sampling, corrections
        self.sample_weights: Tensor | None = None
        self._folded = False  # whether the test split is a fold
        self._corrected = False  # whether the corrections have been applied
        self.splits: dict[str, Any] = {}
        self.total: int | None = None
        self.new: Any = None
        self.predict_source = "test"
        self._resume: dict[str, Any] | None = None  # position at which training continues

    def load(self, split: Split) -> Any:
        """Return a split as a tuple of tensors, one row per sample, or as an object that maps indices to a batch."""
        raise DataError(f"{type(self).__name__} must implement load(split)")

    def load_split(self, split: Split) -> Any:
        """Load a split in the form that is stored in `splits`. Subclasses may check or encode the result of `load`."""
        return self.load(split)

    def setup(self, stage: str) -> None:
        """Load the splits that the stage needs. Raise DataError if folds were requested but cannot be created."""
        needed: tuple[Split, ...]
        if stage == "fit":
            needed = ("train", "val")
        elif stage == "validate":
            needed = ("val",)
        else:  # `predict` may use new samples instead of the test split
            needed = ("test",) if self.new is None else ()
        for split in needed:
            if split not in self.splits:
                self.splits[split] = self.load_split(split)
        if self.folds and not self._folded and self.new is None:
            raise self._no_folds()
        if stage != "fit":
            return
        if self.corrections and not self._corrected:
            apply_corrections(self, self.corrections)
            self._corrected = True
        if self.sampling is not None:
            names = getattr(self, "class_names", None)
            self.sample_weights = weights_for(self.sampling, self.splits["train"], self.size_of("train"), names)

    def _no_folds(self) -> DataError:
        return DataError(f"{type(self).__name__} has its own test split, so folds are not supported")

    def hold_out(
        self, size: int, test_size: int, labels: Tensor | None = None, stratified: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the ascending sample indices outside and inside the test split, which are the same in every run.

        The test split contains `test_size` random samples, or the test fold. Folds contain equal shares of each class
        in `labels` `(size,)`, to within one sample. With `stratified`, random samples also preserve class proportions.
        """
        self.total = size
        if not self.folds:
            return split_by_class(size, test_size, labels if stratified else None)
        labels = torch.zeros(size) if labels is None or labels.ndim > 1 else labels
        return self.split_off(folds_of(labels, self.folds))

    def split_off(self, folds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices outside and inside the test fold, given the fold of each sample `(N,)`."""
        self._folded = True
        return (folds != self.fold).nonzero().flatten(), (folds == self.fold).nonzero().flatten()

    def dataset(self, split: Split) -> Any:
        """Return the dataset of a loaded split. Indexing the dataset with a tensor of indices returns a batch."""
        data = self.splits[split]
        return Rows(self.batch, *data) if isinstance(data, tuple) else data

    def size_of(self, split: Split) -> int:
        """Return the number of samples in a loaded split."""
        return len(self.dataset(split))

    def has_split(self, split: Split) -> bool:
        """Return False if the split does not exist. This method can be called before `setup`."""
        return True

    def shuffles(self, split: Split) -> bool:
        """Return whether a split is shuffled, which is true for training unless `overfit_batches` is set."""
        return split == "train" and not getattr(self.trainer, "overfit_batches", 0)

    def rank_settings(self) -> dict[str, int]:
        """Return the arguments of `EpochBatches` that depend on this process and the trainer."""
        here = replicas(self.trainer)
        changing = self.trainer is not None and accumulation_schedule(self.trainer) is not None
        if self.global_batch_size and changing:
            raise DataError("GradientAccumulationScheduler does not support global_batch_size: set batch_size instead")
        return {
            "seed": global_seed() if self.seed is None else self.seed,
            "accumulate": accumulation_steps(self.trainer) if self.trainer and not changing else 1,
            "num_replicas": here.size,
            "rank": here.rank,
        }

    def batch_sampler(self, dataset: Any, split: Split) -> EpochBatches:
        """Return a sampler of the batches that this process reads from a dataset."""
        train = split == "train"
        return EpochBatches(
            len(dataset),
            self.batch_size if train else self.eval_batch_size,
            global_batch_size=self.global_batch_size if train else None,
            shuffle=self.shuffles(split),
            weights=self.sample_weights if train else None,
            drop_last=train and self.drop_last,
            **self.rank_settings(),
        )

    def loader(self, split: Split) -> Loader:
        """Return a loader for this process's batches of a split."""
        return self.batches(self.dataset(split), split)

    def batches(self, dataset: Any, split: Split) -> Loader:
        """Return a loader for a dataset's batches, in the order that is used for `split`.

        The loader uses `num_workers` processes if the class has this attribute and the samples are not in memory.
        """
        workers = 0 if isinstance(dataset, Rows) else getattr(self, "num_workers", 0)
        return Loader(dataset, self.batch_sampler(dataset, split), workers, self.pins(dataset))

    def pins(self, dataset: Any) -> bool:
        """Return whether to copy batches through page-locked memory, so that copying to CUDA does not block the CPU."""
        if any(tensor.device.type != "cpu" for tensor in getattr(dataset, "tensors", ())):
            return False
        on_cuda = self.trainer is not None and self.trainer.strategy.root_device.type == "cuda"
        return on_cuda if self.pin_memory is None else self.pin_memory

    def train_dataloader(self) -> Loader:
        """Return the training data loader. In a resumed run, the loader starts from its saved position."""
        loader = self.loader("train")
        if self._resume is not None:
            loader.load_state_dict(self._resume)
            self._resume = None
        return loader

    def val_dataloader(self) -> Loader:
        return self.loader("val")

    def test_dataloader(self) -> Loader:
        return self.loader("test")

    def predict_dataloader(self) -> Loader:
        """Return a loader for the new samples, or for the test split if there are no new samples."""
        return self.loader("test") if self.new is None else self.batches(self.new, "test")

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training epoch and the sample counts.

        Lightning also saves the loader's position, but does not restore it if a learning rate schedule has already
        queried the length of the run.
        """
        loader = None if self.trainer is None else self.trainer.train_dataloader
        position = loader.state_dict() if isinstance(loader, Loader) else {}
        return {**position, "samples": self._sizes()}

    def _sizes(self) -> dict[str, int]:
        """Return the number of samples in each loaded split and in the whole dataset, if known."""
        total = {} if self.total is None else {"the dataset": self.total}
        return {**{split: self.size_of(split) for split in self.splits}, **total}  # type: ignore[arg-type]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue training at the saved position.

        Raises:
            DataError: if training continues but the number of samples in a split has changed. An evaluation, or a fork
                from the end of an epoch (`may_change`), only warns that the model may have trained on held-out samples.
        """
        trainer: Any = self.trainer
        training = trainer is not None and trainer.training
        before, now = state_dict.get("samples", {}), self._sizes()
        changed = [f"{name} had {before[name]:,} samples and now has {now[name]:,}"
                   for name in before if name in now and now[name] != before[name]]  # fmt: skip
        if changed:
            what = f"the data changed since training: {', '.join(changed)}"
            if training and not state_dict.get("may_change"):
                raise DataError(f"{what}; start a new run, optionally with the trained weights (--init_from)")
            split = "validation" if training else "test"
            print_once(f"warning: {what}; if splits are random, the {split} split may contain training samples")
        if training and "position" in state_dict:
            if trainer.train_dataloader is None:
                self._resume = state_dict
            else:  # a schedule queried the length of the run, which created the loader
                trainer.train_dataloader.load_state_dict(state_dict)


def has_test(datamodule: Any, module: LightningModule) -> bool:
    """Return whether there is a test split and a test step, and print a message if not. This works before `setup`."""
    if not is_overridden("test_step", module, LightningModule):
        print_once(f"{type(module).__name__} has no test_step, so the run is not tested after training")
        return False
    owner = module if datamodule is None else datamodule
    own = is_overridden("test_dataloader", owner)
    has = own and (not hasattr(datamodule, "has_split") or datamodule.has_split("test"))
    if not has:
        print_once(f"{type(owner).__name__} has no test split, so the run is not tested after training")
    return has


# The seed for random splits is constant, so that splits do not depend on the run's seed.
SPLIT_SEED = 2017


def size_of_split(name: str, size: float, samples: int) -> int:
    """Convert the size of a split, which may be a fraction of `samples`, to a number of samples.

    Raises:
        DataError: if the size is not positive, or at least 1 but not a whole number. The message contains `name`.
    """
    if not 0 < size < math.inf or (size >= 1 and size != int(size)):
        raise DataError(f"{name} must be a fraction between 0 and 1 or a number of samples, got {size}")
    return int(size) if size >= 1 else round(size * samples)


def random_split(size: int, val_size: int) -> tuple[Tensor, Tensor]:
    """Return sorted training and validation indices, `(size - val_size,)` and `(val_size,)`, the same in all runs."""
    order = _order(size, val_size)
    return order[val_size:].sort().values, order[:val_size].sort().values


def stratified_split(labels: Tensor, val_size: int) -> tuple[Tensor, Tensor]:
    """Return a `random_split` that preserves the proportions of the classes in `labels` `(N,)`, to within one sample.

    Class shares with the largest fractional parts are rounded up. The last training sample of a class is used for
    validation only if no other class can provide a sample.
    """
    order = _order(len(labels), val_size)
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    by_class = order[classes[order].argsort(stable=True)].split(counts.tolist())
    held = _proportional_counts(counts, val_size).tolist()
    train = torch.cat([order[:0], *(indices[count:] for indices, count in zip(by_class, held, strict=True))])
    val = torch.cat([order[:0], *(indices[:count] for indices, count in zip(by_class, held, strict=True))])
    return train.sort().values, val.sort().values


def _proportional_counts(counts: Tensor, val_size: int) -> Tensor:
    """Divide `val_size` among classes in proportion to `counts` `(K,)`. Return the sizes `(K,)`."""
    size = int(counts.sum())
    held, remainders = counts * val_size // max(1, size), counts * val_size % max(1, size)
    # Classes with the largest remainder get one more sample. Classes that would lose their last training sample are
    # last. Ties are broken at random, because they would otherwise favour the first classes.
    priority = remainders - size * (held + 1 == counts)
    shuffled = _order(len(counts), 0)
    ranked = shuffled[priority[shuffled].argsort(descending=True, stable=True)]
    held[ranked[: val_size - int(held.sum())]] += 1
    return held


def split_by_class(size: int, val_size: int, labels: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return a `stratified_split` if each sample has one class in `labels`, or else a `random_split`."""
    return random_split(size, val_size) if labels is None or labels.ndim > 1 else stratified_split(labels, val_size)


def folds_of(labels: Tensor, folds: int) -> Tensor:
    """Return the fold of each sample `(N,)`, counted from 0. Per class, fold sizes differ by at most one sample.

    Raises:
        DataError: if there are more folds than samples.
    """
    if len(labels) < folds:
        raise DataError(f"{len(labels)} samples cannot be divided into {folds} folds")
    order = _order(len(labels), 0)
    found = torch.empty_like(order)
    found[order[labels[order].argsort(stable=True)]] = torch.arange(len(labels)) % folds
    return found


def _order(size: int, val_size: int) -> Tensor:
    if not 0 <= val_size <= size:
        raise DataError(f"cannot split off {val_size} of {size} samples: reduce val_size or test_size")
    return torch.randperm(size, generator=torch.Generator().manual_seed(derive(SPLIT_SEED, size)))
