"""Wrapper that makes the order of any DataLoader depend only on (seed, epoch), so that a run can resume mid-epoch."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from itertools import islice
from typing import Any

import torch
from lightning.fabric.utilities.data import sized_len
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, get_worker_info

from lit_engine._lightning import (
    is_in_hook,
    keeps_iterator,
    processed_batches,
    replace_loader_parts,
    restarts_shorter_loaders,
)
from lit_engine.data.sampler import derive, global_seed, outlive_signals, seed_cpu, seed_dataset
from lit_engine.distributed.processes import replicas


def seed_everywhere(*parts: int | str) -> None:
    """Seed torch on all devices, `random` and NumPy with a seed derived from the parts."""
    seed = derive(*parts)
    torch.manual_seed(seed)
    seed_cpu(seed)


def make_resumable(loader: Any, trainer: Trainer) -> Any:
    """Wrap a DataLoader over a map-style dataset in a `ResumableLoader`. Return other loaders unchanged.

    If a run resumes mid-epoch, iterable datasets and loaders that keep their own iterator start over, unless the loader
    has a `state_dict`, as torchdata's StatefulDataLoader does.
    """
    if isinstance(loader, ResumableLoader) or not isinstance(loader, DataLoader) or trainer.predicting:
        return loader
    if isinstance(loader.dataset, IterableDataset) or keeps_iterator(loader):
        _protect_workers(loader)
        return loader
    return ResumableLoader(loader, trainer)


class ResumableLoader:
    """DataLoader wrapper whose order and random numbers depend only on the seed, the epoch and the index.

    The sampler or batch sampler stays the same, but its generator is seeded at the start of each epoch. When a run
    resumes, only loaders with their own `__iter__` load completed batches again. Random numbers in the dataset depend
    on (seed, epoch, index), even in workers, and on the number of earlier draws if a sample is drawn repeatedly. Each
    training loader, and each pass of a loader that Lightning repeats within an epoch, has its own order and random
    numbers. Random numbers in a training step depend on (seed, epoch, batch, rank). All attributes of the DataLoader
    are available.
    """

    def __init__(self, loader: DataLoader, trainer: Trainer) -> None:
        loader = copy(loader)  # the data module may return the same loader again
        self.loader, self.dataset = loader, loader.dataset
        self.trainer, self._trains = trainer, trainer.training
        self.seed, self.rank = global_seed(), replicas(trainer).rank
        self.passed = (-1, 0, 0)  # at the end of the last pass: epoch, number of passes, number of batches
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        restores = self._trains and not trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        self.order = SeededOrder(getattr(loader, name), self.seed, loader.batch_sampler is not None, restores)
        _protect_workers(loader)
        # A custom `__iter__` may use the sampler and dataset freely, so keep both. Persistent workers are seeded once.
        self._has_own_iter = type(loader).__iter__ is not DataLoader.__iter__
        if self._has_own_iter:
            replace_loader_parts(loader, persistent_workers=False, _iterator=None)
        else:
            samples = SeededSamples(loader.dataset)
            replace_loader_parts(loader, dataset=samples, _iterator=None, **{name: self.order})

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The class of the DataLoader, so that `isinstance` checks in callbacks work."""
        return type(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "passed" or "order" not in vars(self):
            super().__setattr__(name, value)
        else:  # for example, a hook may set `collate_fn`, and Lightning sets `_iterator` to None to stop the workers
            setattr(self.loader, name, value)

    def __iter__(self) -> Iterator[Any]:
        """Yield batches. The epoch is read at the first batch, because Lightning sets it after calling `iter`."""
        # hooks may iterate too, for example to compare a sample with the training set
        in_hook = is_in_hook(self.trainer)
        epoch, done, number = self._find_place(in_hook)
        length = sized_len(self.loader)
        passes, start = divmod(done, length) if length else (0, done)
        if passes and not restarts_shorter_loaders(self.trainer):
            return
        if done and self.passed[0] == epoch:  # Lightning restarts this loader, and may have prefetched its last batch
            (_, passes, done), start = self.passed, 0
        self.order.begin(epoch, passes, start, (f"loader {number}",) if number else ())
        for batch in self._replay(epoch, passes, start) if self._has_own_iter else self.loader:
            seed_everywhere(self.seed, "batch", epoch, done, self.rank)  # for hooks and the training step
            done += 1
            yield batch
        if not in_hook:
            self.passed = epoch, passes + 1, done
            # If the loader has no length, Lightning fetches the next batch before each step. This seeds the step.
            # Before the last step, there is no batch to fetch, so seed this step here.
            seed_everywhere(self.seed, "batch", epoch, done, self.rank)

    def _replay(self, epoch: int, passes: int, start: int) -> Iterator[Any]:
        """Yield the batches of a loader with its own `__iter__`. The first `start` batches are loaded but skipped."""
        self.order.seed_pass()
        for place, batch in enumerate(self.loader):
            if place >= start:
                yield batch
            seed_everywhere(self.seed, "fetch", epoch, passes, place, self.rank)

    def _find_place(self, in_hook: bool) -> tuple[int, int, int]:
        """Return the epoch, the index of its next batch (0 in a hook), and the index of this loader."""
        trainer = self.trainer
        epoch = trainer.current_epoch if trainer.state.fn == "fit" else 0
        if not self._trains:
            return epoch, 0, 0
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        done = 0 if in_hook else processed_batches(trainer)
        return epoch, done, next((k for k, one in enumerate(loaders) if one is self), 0)

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state, because the position follows from Lightning's loop counters."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Do nothing. If this method exists, Lightning assumes that the loader can resume."""


class SeededOrder:
    """Wrapper around a (batch) sampler, which is reseeded before each pass. Each index is yielded with its seed.

    A plain sampler may yield any type of index, even a list of the indices in a batch.

    Args:
        sampler: the (batch) sampler.
        seed: the run's seed.
        yields_batches: whether it is a batch sampler.
        restores: whether to repeat the passes of earlier epochs in a resumed run. The state of a user's sampler, such
            as index lists that it shuffles in place, may depend on them.
    """

    def __init__(self, sampler: Any, seed: int, yields_batches: bool, restores: bool = False) -> None:
        self._sampler, self._seed, self._yields_batches = sampler, seed, yields_batches
        own = [one for one in _parts(sampler) if not type(one).__module__.startswith(("torch.", "lightning."))]
        restores = restores and bool(own) and not any(hasattr(one, "set_epoch") for one in own)
        self._next = 0 if restores and sized_len(sampler) is not None else sys.maxsize  # next epoch to draw
        self.begin(0, 0, 0, ())

    def begin(self, epoch: int, passes: int, start: int, loader: tuple[str, ...]) -> None:
        """Set the position of the next pass: how many passes of this epoch precede it, and how many batches to skip."""
        self._epoch, self._passes, self._start, self._loader = epoch, passes, start, loader

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            super().__setattr__(name, value)
        else:  # for example, a callback may set the difficulty of the samples
            setattr(self._sampler, name, value)

    def __iter__(self) -> Iterator[Any]:
        start, stream, length = self._start, self.seed_pass(), sized_len(self._sampler)
        order = self._sampler if length is None else list(islice(self._sampler, length))
        draws: Counter[str] = Counter()

        def key(index: Any) -> Any:
            before, draws[str(index)] = draws[str(index)], draws[str(index)] + 1
            repeated = (before,) if before else ()
            return derive(self._seed, "sample", self._epoch, str(index), *stream, *repeated), index

        for batch, found in enumerate(order):
            keys = [key(index) for index in found] if self._yields_batches else key(found)
            if batch >= start:
                yield keys
            if length is None:  # an endless sampler draws indices batch by batch
                seed_cpu(derive(self._seed, "order", self._epoch, batch, *stream))

    def seed_pass(self) -> tuple[str, ...]:
        """Seed the next pass, and return its stream names. If the sampler keeps state, first repeat earlier epochs."""
        for epoch in range(self._next, self._epoch):
            self._seed_sampler(epoch, self._loader)
            list(islice(self._sampler, sized_len(self._sampler)))
        self._next = max(self._next, self._epoch + 1)
        stream = (*self._loader, *([f"pass {self._passes}"] if self._passes else []))
        self._seed_sampler(self._epoch, stream)
        return stream

    def _seed_sampler(self, epoch: int, stream: tuple[str, ...]) -> None:
        seed = derive(self._seed, "order", epoch, *stream)
        seed_cpu(seed)
        for one in _parts(self._sampler):
            if isinstance(generator := getattr(one, "generator", None), torch.Generator):
                generator.manual_seed(seed)


def _parts(sampler: Any) -> Iterator[Any]:
    """Yield a sampler and the samplers inside it. Lightning wraps samplers in distributed runs."""
    while sampler is not None:
        yield sampler
        inner = getattr(sampler, "sampler", None)
        sampler = getattr(getattr(sampler, "dataset", None), "_sampler", None) if inner is None else inner


class SeededSamples:
    """Map-style dataset whose indices contain seeds. Each sample is loaded with its own seed."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._draws = type(dataset) is not TensorDataset
        # A Subset has `__getitems__` even if its dataset does not, so check the innermost dataset.
        inner = dataset
        while isinstance(inner, Subset):
            inner = inner.dataset
        self._whole_batches = hasattr(inner, "__getitems__")

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a worker looks up special methods while unpickling
            raise AttributeError(name)
        return getattr(self.__dict__["_dataset"], name)

    def __getitem__(self, place: tuple[int, Any]) -> Any:
        seed, index = place
        if self._draws:
            seed_dataset(seed, self._dataset)
        return self._dataset[index]

    def __getitems__(self, places: list[tuple[int, Any]]) -> list[Any]:
        if self._whole_batches or not self._draws:
            seed_dataset(places[0][0], self._dataset)  # also for a collate function that draws random numbers
        if not self._whole_batches:
            return [self[place] for place in places]
        return self._dataset.__getitems__([index for _, index in places])


def _protect_workers(loader: DataLoader) -> None:
    """Make the workers of a loader survive signals until the run has been saved (see `outlive_signals`)."""
    if getattr(loader.worker_init_fn, "func", None) is not _start_worker:  # the loader may be used in several epochs
        replace_loader_parts(loader, worker_init_fn=partial(_start_worker, loader.worker_init_fn))


def _start_worker(init: Callable[[int], None] | None, worker: int) -> None:
    outlive_signals(worker)
    if init is not None:
        info: Any = get_worker_info()
        if isinstance(info.dataset, SeededSamples):
            object.__setattr__(info, "dataset", info.dataset._dataset)  # the user's function may change the dataset
        init(worker)
