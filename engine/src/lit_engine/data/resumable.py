"""Wrapper that makes the order of any DataLoader depend only on (seed, epoch), so that a run can resume mid-epoch."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
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
    if not isinstance(loader, DataLoader) or trainer.predicting:
        return loader
    if isinstance(loader.dataset, IterableDataset) or keeps_iterator(loader):
        _protect_workers(loader)
        return loader
    return ResumableLoader(loader, trainer)


class ResumableLoader:
    """DataLoader wrapper whose order and random numbers depend only on the seed, the epoch and the index.

    The sampler or batch sampler stays the same, but its generator is seeded at the start of each epoch. Batches that
    were already used are not loaded again. Random numbers in the dataset depend on (seed, epoch, index),
    even in workers. If a sample is drawn several times, they also depend on the number of earlier draws. Each training
    loader, and each pass of a loader that Lightning repeats within an epoch, has its own order and random numbers.
    Random numbers in a training step depend on (seed, epoch, batch, rank). All attributes of the DataLoader are
    available.
    """

    def __init__(self, loader: DataLoader, trainer: Trainer) -> None:
        loader = copy(loader)  # the data module may return the same loader again
        self.loader, self.dataset = loader, loader.dataset
        self.trainer, self._trains = trainer, trainer.training
        self.seed, self.rank = global_seed(), replicas(trainer).rank
        self.passed = (-1, 0, 0)  # epoch, and the passes and batches completed by the end of the last pass
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        # A custom `__iter__` may use the sampler and the dataset in any way.
        self._has_own_iter = type(loader).__iter__ is not DataLoader.__iter__
        kind = Place if self._has_own_iter else _pair
        restores = self._trains and not trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        self.order = SeededOrder(getattr(loader, name), self.seed, loader.batch_sampler is not None, kind, restores)
        samples = SeededSamples(loader.dataset, self._has_own_iter)
        _protect_workers(loader)
        replace_loader_parts(loader, dataset=samples, _iterator=None, **{name: self.order})

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
        in_hook = is_in_hook(self.trainer)  # such as validation that compares each sample with the whole training set
        epoch, done, number = self._find_place(in_hook)
        passes, start = 0, done
        if not restarts_shorter_loaders(self.trainer) and 0 < (sized_len(self.loader) or 0) <= done:
            return
        if done and self.passed[0] == epoch:  # Lightning restarts this loader, and may have prefetched its last batch
            (_, passes, done), start = self.passed, 0
        self.order.begin(epoch, passes, start, (f"loader {number}",) if number else ())
        for batch in self._fetch(epoch, done - start, start) if self._has_own_iter else self.loader:
            seed_everywhere(self.seed, "batch", epoch, done, self.rank)  # for hooks and the training step
            done += 1
            yield batch
        if not in_hook:
            self.passed = epoch, self.order.passes + 1, done
            # If the loader has no length, Lightning fetches each batch one step early, which also seeds that step. For
            # the last step, there is no batch to fetch.
            seed_everywhere(self.seed, "batch", epoch, done, self.rank)

    def _fetch(self, epoch: int, first: int, start: int) -> Iterator[Any]:
        """Yield the batches of a loader with its own `__iter__`, which may draw random numbers and ignore the sampler.

        The pass starts with batch `first` of the epoch. The first `start` batches of the pass are skipped.
        """

        def seed(place: int) -> None:
            seed_everywhere(self.seed, "fetch", epoch, first + place, self.rank)

        self.order.seed_fetch, place = seed, 0
        seed(place)
        for batch in self.loader:
            place = max(place, start) if self.order.is_used else place
            if place >= start:
                yield batch
            place += 1
            seed(place)

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


def _pair(seed: int, index: Any) -> tuple[int, Any]:
    return seed, index


class Place(int):
    """Index with the seed of its sample. Loaders with their own `__iter__` may use it like any other index."""

    seed: int

    def __new__(cls, seed: int, index: Any) -> Any:
        """Return indices other than integers unchanged."""
        if type(index) is not int:
            return index
        place = super().__new__(cls, index)
        place.seed = seed
        return place

    def __reduce__(self) -> Any:
        return Place, (self.seed, int(self))


class SeededOrder:
    """Wrapper around a (batch) sampler, which is reseeded before each pass. Each index is yielded with its seed.

    A plain sampler may yield any type of index, even a list of the indices in a batch.

    Args:
        sampler: the (batch) sampler.
        seed: the run's seed.
        yields_batches: whether it is a batch sampler.
        kind: function that combines a seed and an index.
        restores: whether to repeat the passes of earlier epochs in a resumed run. The state of a user's sampler, such
            as index lists that it shuffles in place, may depend on them.

    Attributes:
        is_used: whether the loader has started to read indices in this pass.
        seed_fetch: function that seeds the batch with a given index, for a loader with its own `__iter__`.
    """

    def __init__(
        self, sampler: Any, seed: int, yields_batches: bool, kind: Any = _pair, restores: bool = False
    ) -> None:
        self._sampler, self._seed, self._yields_batches, self._kind = sampler, seed, yields_batches, kind
        own = [one for one in _parts(sampler) if not type(one).__module__.startswith(("torch.", "lightning."))]
        restores = restores and bool(own) and not any(hasattr(one, "set_epoch") for one in own)
        self._next = 0 if restores and sized_len(sampler) is not None else sys.maxsize  # next epoch to draw
        self.seed_fetch: Callable[[int], None] | None = None
        self.begin(0, 0, 0, ())

    def begin(self, epoch: int, passes: int, start: int, loader: tuple[str, ...]) -> None:
        """Set how many passes of this epoch to skip, and how many batches after them (possibly from several passes)."""
        self._epoch, self.passes, self._start, self._loader = epoch, passes, start, loader
        self.is_used = False

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or name in ("passes", "is_used", "seed_fetch"):
            super().__setattr__(name, value)
        else:  # for example, a callback may set the difficulty of the samples
            setattr(self._sampler, name, value)

    def __iter__(self) -> Iterator[Any]:
        start, self.is_used = self._start, True
        for epoch in range(self._next, self._epoch):
            self._seed_pass(epoch, self._loader)
            list(islice(self._sampler, sized_len(self._sampler)))
        self._next = max(self._next, self._epoch + 1)
        order, stream = self._draw()
        while isinstance(order, list) and 0 < len(order) <= start:  # a shorter loader starts over
            self.passes, start = self.passes + 1, start - len(order)
            order, stream = self._draw()
        draws: Counter[str] = Counter()

        def key(index: Any) -> Any:
            before, draws[str(index)] = draws[str(index)], draws[str(index)] + 1
            repeated = (before,) if before else ()
            return self._kind(derive(self._seed, "sample", self._epoch, str(index), *stream, *repeated), index)

        for batch, found in enumerate(order):
            keys = [key(index) for index in found] if self._yields_batches else key(found)
            if batch == start and self._start and self.seed_fetch is not None:
                self.seed_fetch(self._start)
            if batch >= start:
                yield keys
            if not isinstance(order, list):  # an endless sampler draws the next indices only now
                seed_cpu(derive(self._seed, "order", self._epoch, batch, *stream))

    def _draw(self) -> tuple[Iterable[Any], tuple[str, ...]]:
        """Seed a pass. Return its order (the sampler if it is endless, else a list) and its stream names."""
        stream = (*self._loader, *([f"pass {self.passes}"] if self.passes else []))
        self._seed_pass(self._epoch, stream)
        length = sized_len(self._sampler)
        return self._sampler if length is None else list(islice(self._sampler, length)), stream

    def _seed_pass(self, epoch: int, stream: tuple[str, ...]) -> None:
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

    def __init__(self, dataset: Any, accepts_any: bool = False) -> None:
        self._dataset = dataset
        self._accepts_any = accepts_any  # whether indices may be a `Place`, a list or any other index
        self._draws = type(dataset) is not TensorDataset
        # A Subset only forwards `__getitems__` to its dataset.
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

    def __getitem__(self, place: Any) -> Any:
        seed, index = self._split(place)
        if self._draws and seed is not None:
            seed_dataset(seed, self._dataset)
        return self._dataset[index]

    def __getitems__(self, places: list[Any]) -> list[Any]:
        if (self._whole_batches or not self._draws) and (seed := self._split(places[0])[0]) is not None:
            seed_dataset(seed, self._dataset)  # also for a collate function that draws random numbers
        if not self._whole_batches:
            return [self[place] for place in places]
        return self._dataset.__getitems__([self._split(place)[1] for place in places])

    def _split(self, place: Any) -> tuple[int | None, Any]:
        """Return the seed, if known, and the index."""
        if not self._accepts_any:
            return place
        first = place[0] if isinstance(place, list) and place else place
        return getattr(first, "seed", None), place


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
