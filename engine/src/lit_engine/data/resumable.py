"""Ordinary DataLoaders, in an order that depends on (seed, epoch) alone, so that a run resumes within an epoch."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from lit_engine._lightning import ready_batches, replace_loader_parts, set_worker_iterator, worker_iterator
from lit_engine.data.sampler import derive, global_seed, outlive_signals
from lit_engine.distributed.processes import replicas

Place = Callable[[], tuple[int, int]]  # returns the epoch, and the batch with which to start


def seed_everywhere(*parts: int | str) -> None:
    """Seed torch on all devices, `random` and NumPy with a seed derived from the parts."""
    seed = derive(*parts)
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (the global generator is the one that datasets use)


def make_resumable(loader: Any, trainer: Trainer) -> Any:
    """Return a DataLoader over a map-style dataset as a `ResumableLoader`; others are returned as they are.

    Loaders with a `state_dict`, such as torchdata's StatefulDataLoader, resume by themselves. An iterable dataset
    starts over.
    """
    is_map_style = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    if not is_map_style or hasattr(loader, "state_dict") or trainer.predicting:
        return loader
    trains = bool(trainer.training)

    def place() -> tuple[int, int]:
        epoch = trainer.current_epoch if trainer.state.fn == "fit" else 0
        return epoch, ready_batches(trainer) if trains else 0

    return ResumableLoader(loader, global_seed(), replicas(trainer).rank, place)


class ResumableLoader:
    """Iterates over a DataLoader; the order and all random draws depend only on the seed, the epoch and the index.

    The sampler, or the batch sampler, stays as it is, but draws from a generator that is seeded at the start of each
    epoch. Batches that were already used are skipped without loading them. Random draws in the dataset depend on
    (seed, epoch, index), also in workers, and those of a training step on (seed, epoch, batch, rank). All attributes of
    the DataLoader are available.

    Args:
        loader: The DataLoader. Its sampler and dataset are replaced.
        seed: The seed of the run.
        rank: The rank of this process.
        place: Called when an iteration starts.
    """

    def __init__(self, loader: DataLoader, seed: int, rank: int, place: Place) -> None:
        self.loader, self.seed, self.rank, self.place = loader, seed, rank, place
        self.dataset = loader.dataset
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        order = SeededOrder(getattr(loader, name), seed, place)
        init = partial(_start_worker, loader.worker_init_fn)
        replace_loader_parts(loader, dataset=SeededSamples(loader.dataset), worker_init_fn=init, **{name: order})

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __iter__(self) -> Iterator[Any]:
        """Starts when the first batch is requested: Lightning creates the iterator before it restores the epoch."""
        epoch, start = self.place()
        for number, batch in enumerate(self.loader, start):
            seed_everywhere(self.seed, "batch", epoch, number, self.rank)  # for the hooks and the step that follow
            yield batch

    @property
    def _iterator(self) -> Any:
        """The iterator of the workers. Lightning looks for this name, and ends them with the training."""
        return worker_iterator(self.loader)

    @_iterator.setter
    def _iterator(self, iterator: None) -> None:
        set_worker_iterator(self.loader, iterator)

    def state_dict(self) -> dict[str, Any]:
        """Empty, because the position follows from the progress of the training."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing. With this method, Lightning knows that the loader resumes."""


class SeededOrder:
    """The indices, or the lists of indices, of a sampler, each index as (seed, index), in an order seeded by epoch."""

    def __init__(self, sampler: Any, seed: int, place: Place) -> None:
        self._sampler, self._seed, self._place = sampler, seed, place

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self._place()
        seed_everywhere(self._seed, "order", epoch)
        for one in (self._sampler, getattr(self._sampler, "sampler", None)):
            if isinstance(generator := getattr(one, "generator", None), torch.Generator):
                generator.manual_seed(derive(self._seed, "order", epoch))
        order = list(self._sampler)
        for found in order[start % max(len(order), 1) :]:  # a shorter one of several loaders is repeated
            if isinstance(found, list | tuple):
                yield [(derive(self._seed, "sample", epoch, str(index)), index) for index in found]
            else:
                yield derive(self._seed, "sample", epoch, str(found)), found


class SeededSamples:
    """A map-style dataset whose random draws depend on the (seed, index) with which a sample is requested."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._draws = type(dataset) is not TensorDataset
        # a Subset only forwards them
        self._whole_batches = hasattr(dataset, "__getitems__") and not isinstance(dataset, Subset)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __getitem__(self, place: tuple[int, Any]) -> Any:
        seed, index = place
        if self._draws:
            _seed_sample(seed)
        return self._dataset[index]

    def __getitems__(self, places: list[tuple[int, Any]]) -> list[Any]:
        if not self._whole_batches:
            return [self[place] for place in places]
        _seed_sample(places[0][0])
        return self._dataset.__getitems__([index for _, index in places])


def _seed_sample(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def _start_worker(init: Callable[[int], None] | None, worker: int) -> None:
    outlive_signals(worker)
    if init is not None:
        init(worker)
