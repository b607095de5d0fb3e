"""Random streams that depend only on the seed and the position, so that a resumed run repeats them exactly."""

import hashlib
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities.seed import isolate_rng
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Sampler, get_worker_info

from lit_engine._lightning import set_worker_iterator, worker_iterator
from lit_engine.distributed.processes import SIGNALS
from lit_engine.errors import DataError


def derive(*parts: int | str) -> int:
    """Derive a 32-bit seed from numbers and names (torch's CPU generator uses only the low 32 bits of a seed)."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def global_seed() -> int:
    """Return the seed that `seed_everything` set for this process and the processes it launches, or 0 if unset."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def seed_step(*parts: int | str, device: torch.device) -> None:
    """Seed `random`, NumPy, and torch's generators on the CPU and `device` for one step. This takes 8 µs.

    `torch.manual_seed` seeds all devices and takes 60 µs.
    """
    seed = derive(*parts)
    seed_cpu(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class EpochBatches(Sampler[Tensor]):
    """Sampler that yields this process's batches of sample indices for one epoch.

    All processes have the same number of batches, because otherwise collective operations would hang. Each batch has at
    least one sample, and each sample occurs exactly once per epoch across all processes, unless `weights` or
    `drop_last` is set. Nothing is padded. The order depends only on (seed, epoch).

    With `global_batch_size` G, optimizer step k uses the samples `order[k*G:(k+1)*G]` for any number of processes and
    micro-batches, as in MosaicML Streaming's elastic determinism (https://github.com/mosaicml/streaming). The samples
    are divided evenly among the batches. If the last step of an epoch has fewer samples than batches, each otherwise
    empty batch repeats one sample with weight 0.

    Args:
        size: number of samples.
        batch_size: number of samples per batch and process.
        global_batch_size: number of samples per optimizer step. Set either this or `batch_size`.
        accumulate: number of batches per process and optimizer step.
        shuffle: whether to use a new permutation in each epoch instead of ascending indices.
        weights: float64 weight of each sample `(size,)`. If set, an epoch consists of `size` samples, which are drawn
            with replacement and with probabilities proportional to the weights.
        drop_last: whether to drop the last samples of an epoch if they are too few to fill a batch on all processes.
        seed: seed of the order.
        num_replicas: number of processes.
        rank: rank of this process.

    Attributes:
        epoch: epoch of the next iteration.
        start: first batch of the next iteration. Later iterations start at batch 0.
        together: number of samples per batch across all processes.
        step: number of samples per optimizer step, which must not change mid-epoch.
        fillers: indices of this epoch's batches that have weight 0.

    Raises:
        DataError: if there are too few samples to give each process the same number of batches, or the global batch
            size is not divisible by the number of processes times the number of micro-batches.
    """

    step: int | str

    def __init__(
        self,
        size: int,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        accumulate: int = 1,
        shuffle: bool,
        weights: Tensor | None = None,
        drop_last: bool = False,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.size, self.global_batch_size, self.shuffle, self.weights = size, global_batch_size, shuffle, weights
        self.seed, self.num_replicas, self.rank = seed, num_replicas, rank
        if not size:
            raise DataError("there are no samples to load")
        self.epoch = self.start = 0
        self.parts = num_replicas * accumulate  # batches per step across all processes
        self.batch_size = batch_size or samples_per_micro_batch(global_batch_size or 0, num_replicas, accumulate)
        self.together = self.batch_size * num_replicas
        self.step = self.together * accumulate
        self.fillers: set[int] = set()
        self.used = size - size % (global_batch_size or self.together) if drop_last else size
        self.bounds: list[int] = []  # index at which each batch starts, and index at which the last batch ends
        if global_batch_size is not None and self.used:
            self.bounds = shares([*range(0, self.used, global_batch_size), self.used], self.parts)
        elif self.used < num_replicas or (batch_size == 1 and self.used % num_replicas):
            raise DataError(
                f"{size} samples cannot be split into the same number of batches for {num_replicas} process(es) "
                f"with {'' if batch_size else 'global_'}batch_size {batch_size or global_batch_size}, "
                f"drop_last {drop_last}{'; set --trainer.devices=1 to use one process' if num_replicas > 1 else ''}"
            )

    def __len__(self) -> int:
        if self.bounds:
            return (len(self.bounds) - 1) // self.num_replicas  # the bounds include the batches of all processes
        share = -(-self.used // self.num_replicas)
        return -(-share // self.batch_size)

    def batches(self) -> list[Tensor]:
        """Return this process's batches of the epoch as index tensors `(b,)` with 1 ≤ b ≤ batch_size."""
        generator = torch.Generator().manual_seed(derive(self.seed, "order", self.epoch))
        if not self.shuffle:
            order = torch.arange(self.size)
        elif self.weights is None:
            order = torch.randperm(self.size, generator=generator)
        else:
            order = draw(self.weights, generator)
        if self.global_batch_size:
            return self.parts_of(order, list(range(self.rank, len(self.bounds) - 1, self.num_replicas)))
        share = order[: self.used][self.rank :: self.num_replicas]
        count = len(self)
        cuts = list(range(self.batch_size, count * self.batch_size, self.batch_size))
        # All processes need the same number of batches. If this share has one too few, split off its last sample.
        cuts = [min(cut, len(share) - (count - 1 - i)) for i, cut in enumerate(cuts)]
        return list(torch.tensor_split(share, cuts))

    def parts_of(self, order: Tensor, chosen: list[int]) -> list[Tensor]:
        """Return the samples of the chosen batches. For an empty batch, repeat the preceding sample."""
        ends = [(self.bounds[i], self.bounds[i + 1]) for i in chosen]
        self.fillers = {place for place, (start, end) in enumerate(ends) if start == end}
        return [order[min(start, end - 1) : end] for start, end in ends]

    def __iter__(self) -> Iterator[Tensor]:
        start, self.start = self.start, 0
        yield from self.batches()[start:]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. Lightning calls this method before each epoch. A new epoch discards the saved position."""
        if epoch != self.epoch:
            self.start = 0
        self.epoch = epoch


def draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw N indices with replacement, using the weights `(N,)`. An index with weight 0 is never drawn."""
    ends = weights.cumsum(0)
    points = torch.rand(len(weights), dtype=torch.double, generator=generator) * ends[-1]
    return torch.searchsorted(ends, points, right=True)


def samples_per_micro_batch(global_batch_size: int, processes: int, accumulate: int) -> int:
    """Return the number of samples per process and micro-batch. Raise DataError if this is not a whole number."""
    parts = processes * accumulate
    if global_batch_size % parts or not global_batch_size:
        below = max(global_batch_size // parts, 1) * parts
        raise DataError(
            f"data.global_batch_size {global_batch_size} cannot be divided evenly among {processes} process(es) with "
            f"trainer.accumulate_grad_batches {accumulate}; the nearest valid sizes are {below} and {below + parts}"
        )
    return global_batch_size // parts


def shares(bounds: list[int], parts: int) -> list[int]:
    """Split each interval of `bounds` into parts whose sizes differ by at most 1 and may be 0. Return all bounds."""
    pieces = pairwise(bounds)
    return [start - i * (start - end) // parts for start, end in pieces for i in range(parts)] + bounds[-1:]


def outlive_signals(worker: int) -> None:
    """Make a worker ignore signals to its process group, so that it keeps loading until its parent has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Ignore only the first SIGTERM, because torch and Python use SIGTERM to stop workers that remain at the end.
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def seed_cpu(seed: int) -> None:
    """Seed the CPU generators of torch, `random` and NumPy, which datasets use."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 (datasets use the global generator)


def seed_dataset(seed: int, dataset: Any) -> None:
    """Seed the CPU generators, and the attributes of a dataset that have a `set_random_seed` method."""
    seed_cpu(seed)
    while dataset is not None:  # a dataset may wrap another dataset
        for attribute in list(getattr(dataset, "__dict__", {}).values()):
            if hasattr(attribute, "set_random_seed"):
                attribute.set_random_seed(seed)
        for part in dataset.datasets if isinstance(dataset, ConcatDataset) else ():
            seed_dataset(seed, part)
        dataset = getattr(dataset, "dataset", None)


class Places(Sampler[tuple[int, Tensor]]):
    """Sampler that pairs each batch with a seed derived from the run's seed, the epoch and the first index.

    If samples repeat, the first index does not identify a batch, so the batch number and the rank are used instead.
    """

    def __init__(self, sampler: EpochBatches) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        seed, epoch, repeats = self.sampler.seed, self.sampler.epoch, self.sampler.weights is not None
        for place, indices in enumerate(self.sampler, self.sampler.start):
            key = (place, self.sampler.rank) if repeats else (int(indices[0]),)
            yield derive(seed, "samples", epoch, *key), indices


class SeededBatches:
    """Dataset wrapper that makes the random numbers in a batch depend only on the batch's seed.

    A batch is requested as `(seed, indices)`. The seed is set for torch's CPU generator, `random` and NumPy, and for
    dataset attributes with a `set_random_seed` method, such as albumentations transforms. In the main process, the
    state of the generators is restored afterwards. Datasets with `draws = False` are not seeded.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, place: tuple[int, Tensor]) -> Any:
        seed, indices = place
        if not getattr(self.dataset, "draws", True):
            return self._load(indices)
        with isolate_rng(include_cuda=False) if get_worker_info() is None else nullcontext():
            seed_dataset(seed, self.dataset)
            return self._load(indices)

    def _load(self, indices: Tensor) -> Any:
        """Return a batch or a DataError. If a worker raised the error, the main process would only get a traceback."""
        try:
            return self.dataset[indices]
        except DataError as error:
            return error


class Loader:
    """Loader that follows the order of `EpochBatches` and can resume from a saved position, even with workers.

    The loader is a plain iterable, because Lightning would replace the sampler of a `DataLoader` in distributed runs,
    during prediction, and in runs with `overfit_batches`.

    Args:
        dataset: object that maps a tensor of indices to a batch, or raises a DataError if a sample is invalid.
        sampler: sampler that yields the indices of each batch.
        num_workers: number of processes that load batches. 0 means that the main process loads batches.
        pin_memory: whether to copy batches through page-locked memory.
    """

    def __init__(self, dataset: Any, sampler: EpochBatches, num_workers: int = 0, pin_memory: bool = False) -> None:
        self.samples = dataset  # if this were named `dataset`, Lightning would replace the sampler to overfit batches
        self.sampler = sampler  # Lightning calls this sampler's `set_epoch` before each epoch
        self.batch_sampler = None  # Lightning also reads this attribute
        self.position = self.epoch = 0  # number of batches yielded (not prefetched) so far, and their epoch
        self.recut = False  # whether the batch size has changed since the run was saved
        self.workers: DataLoader | None = None
        if num_workers or pin_memory:
            self.workers = DataLoader(
                SeededBatches(dataset),  # type: ignore[arg-type]
                batch_size=None,  # the sampler yields whole batches
                sampler=Places(sampler),
                num_workers=num_workers,
                pin_memory=pin_memory,
                persistent_workers=num_workers > 0,
                worker_init_fn=outlive_signals,
                # Python 3.14 defaults to a fork server, which takes seconds to start and also receives signals.
                multiprocessing_context="fork" if num_workers and sys.platform == "linux" else None,
                generator=torch.Generator(),  # seeds the workers without using the global generator
            )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Yield the epoch's batches, starting at the current position.

        The position is read at the first batch, because Lightning creates the iterator before it sets the epoch.
        """
        self.position, self.epoch = self.sampler.start, self.sampler.epoch
        batches: Any = self.workers
        if batches is None:
            batches = map(SeededBatches(self.samples).__getitem__, Places(self.sampler))
        for batch in batches:
            if isinstance(batch, DataError):
                raise batch
            self.position += 1
            yield batch

    @property
    def filler(self) -> bool:
        """Whether the newest batch has weight 0."""
        return self.position - 1 in self.sampler.fillers

    @property
    def _iterator(self) -> Any:
        """The DataLoader's iterator, which Lightning sets to None to stop the workers after training or a failure."""
        return None if self.workers is None else worker_iterator(self.workers)

    @_iterator.setter
    def _iterator(self, iterator: None) -> None:
        if self.workers is not None:
            set_worker_iterator(self.workers, iterator)

    def state_dict(self) -> dict[str, int | str]:
        """Return the epoch, the position in it, the seed, and the total numbers of samples per batch and per step."""
        sampler, epoch = self.sampler, self.sampler.epoch
        position = self.position % len(self) if epoch == self.epoch else 0  # the epoch may not have started
        place = {"epoch": epoch, "position": position, "seed": sampler.seed}
        return {**place, "batch": sampler.together, "step": sampler.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position, even if the batch size has changed since then.

        Raises:
            DataError: if the seed or the number of samples per step changed mid-epoch, which would skip or repeat
                samples.
        """
        together = self.sampler.together
        batch, before, now = state["batch"], state["step"], self.sampler.step
        if state["position"] and before != now:
            raise DataError(
                f"the run was stopped mid-epoch. Each step had {before} samples (across all processes), "
                f"but now has {now}: resume with the original batch size, devices and accumulate_grad_batches; "
                "data.global_batch_size keeps the steps the same on any number of devices"
            )
        if state["position"] and state.get("seed", self.sampler.seed) != self.sampler.seed:
            raise DataError(f"the run was stopped mid-epoch with the seed {state['seed']}: resume with this seed")
        self.recut = batch != together
        self.sampler.epoch = self.epoch = state["epoch"]
        self.position = self.sampler.start = state["position"] * batch // together
