"""Random streams that are pure functions of (seed, where we are), so that a resumed run repeats them exactly."""

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
from torch.utils.data import DataLoader, Sampler, get_worker_info

from lit_engine._lightning import set_worker_iterator, worker_iterator
from lit_engine.distributed.processes import SIGNALS
from lit_engine.errors import DataError


def derive(*parts: int | str) -> int:
    """A 32-bit seed from any numbers and names (torch's CPU generator uses only the low 32 bits of a seed)."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def global_seed() -> int:
    """The seed that `seed_everything` set in this process (and in those that it launched); 0 before any."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def seed_step(*parts: int | str, device: torch.device) -> None:
    """Seeds torch's generators (CPU and that of `device`) for one step; costs microseconds.

    `torch.manual_seed` does the same for every device and takes 60 µs.
    """
    seed = derive(*parts)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class EpochBatches(Sampler[Tensor]):
    """Yields this process's batches of sample indices for one epoch.

    Every process makes the same number of batches (collective operations would hang otherwise), each batch has at
    least one sample, and over all processes each sample occurs exactly once per epoch; nothing is padded. The order
    depends on (seed, epoch) alone.

    With `global_batch_size` G, optimizer step k has the samples `order[k * G : (k + 1) * G]` for any number of
    processes and micro-batches, as in MosaicML Streaming's elastic determinism
    (https://github.com/mosaicml/streaming). They share them evenly. Where the last step of an epoch has too few for
    all, the others get one that another process counts, with weight 0.

    Args:
        size: number of samples.
        batch_size: samples per batch and process.
        global_batch_size: samples per optimizer step. Exactly one of the two is given.
        accumulate: batches of a process per optimizer step.
        shuffle: a new permutation in each epoch; otherwise ascending indices.
        drop_last: leave out what does not fill a batch on every process.
        seed: of the permutations.
        num_replicas: number of processes.
        rank: this process, from 0.

    Attributes:
        epoch: that of the next iteration.
        start: the batch that the next iteration begins with; later ones begin with the first.
        together: samples of a batch in all processes.
        step: samples of an optimizer step; what must not change within an epoch.
        fillers: places in this epoch of the batches to be counted 0 times.

    Raises:
        DataError: too few samples to give every process equally many batches, or a global batch size that processes
            and micro-batches do not divide.
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
        drop_last: bool = False,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        self.size, self.global_batch_size, self.shuffle = size, global_batch_size, shuffle
        self.seed, self.num_replicas, self.rank = seed, num_replicas, rank
        if not size:
            raise DataError("there are no samples to make batches of")
        self.epoch = self.start = 0
        self.parts = num_replicas * accumulate  # of a step
        self.batch_size = batch_size or whole_parts(global_batch_size or 0, num_replicas, accumulate)
        self.together = self.batch_size * num_replicas
        self.step = self.together * accumulate
        self.fillers: set[int] = set()
        self.used = size - size % (global_batch_size or self.together) if drop_last else size
        self.bounds: list[int] = []  # where the parts of the steps begin in the order, and its end
        if global_batch_size is not None and self.used:
            self.bounds = shares([*range(0, self.used, global_batch_size), self.used], self.parts)
        elif self.used < num_replicas or (batch_size == 1 and self.used % num_replicas):
            raise DataError(
                f"{size} samples do not make equally many batches for {num_replicas} process(es) "
                f"with {'' if batch_size else 'global_'}batch_size {batch_size or global_batch_size}, "
                f"drop_last {drop_last}{'; --trainer.devices=1 takes one process' if num_replicas > 1 else ''}"
            )

    def __len__(self) -> int:
        if self.bounds:  # of all parts
            return (len(self.bounds) - 1) // self.num_replicas
        share = -(-self.used // self.num_replicas)
        return -(-share // self.batch_size)

    def batches(self) -> list[Tensor]:
        """All batches of this epoch: index tensors `(b,)` with 1 ≤ b ≤ batch_size."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "order", self.epoch))
            order = torch.randperm(self.size, generator=generator)
        else:
            order = torch.arange(self.size)
        if self.global_batch_size:
            return self.parts_of(order, list(range(self.rank, len(self.bounds) - 1, self.num_replicas)))
        share = order[: self.used][self.rank :: self.num_replicas]
        count = len(self)
        cuts = list(range(self.batch_size, count * self.batch_size, self.batch_size))
        # A share that fills one batch less than the largest share gives its last sample to the last batch.
        cuts = [min(cut, len(share) - (count - 1 - i)) for i, cut in enumerate(cuts)]
        return list(torch.tensor_split(share, cuts))

    def parts_of(self, order: Tensor, chosen: list[int]) -> list[Tensor]:
        """The chosen parts of `bounds`; an empty one gets the sample before it, which is of the same step."""
        ends = [(self.bounds[i], self.bounds[i + 1]) for i in chosen]
        self.fillers = {place for place, (start, end) in enumerate(ends) if start == end}
        return [order[min(start, end - 1) : end] for start, end in ends]

    def __iter__(self) -> Iterator[Tensor]:
        start, self.start = self.start, 0
        yield from self.batches()[start:]

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch. Drops a saved position if the epoch changed."""
        if epoch != self.epoch:
            self.start = 0
        self.epoch = epoch


def whole_parts(global_batch_size: int, processes: int, accumulate: int) -> int:
    """Samples per process and micro-batch; raises DataError if they cannot be as many in each."""
    parts = processes * accumulate
    if global_batch_size % parts or not global_batch_size:
        below = max(global_batch_size // parts, 1) * parts
        raise DataError(
            f"data.global_batch_size {global_batch_size} cannot be shared evenly by {processes} process(es) with "
            f"trainer.accumulate_grad_batches {accumulate}; the nearest that can: {below} and {below + parts}"
        )
    return global_batch_size // parts


def shares(bounds: list[int], parts: int) -> list[int]:
    """Splits each piece into so many parts, as evenly as possible; if it is too short, the last ones are empty."""
    pieces = pairwise(bounds)
    return [start - i * (start - end) // parts for start, end in pieces for i in range(parts)] + bounds[-1:]


def outlive_signals(worker: int) -> None:
    """What ends a run may reach its whole group: workers go on until the process that they load for has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # of SIGTERM the first alone: torch and Python send one to workers that are left at the end
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


class Places(Sampler[tuple[int, Tensor]]):
    """The batches of a sampler, each paired with a seed derived from the run's seed, the epoch and the first index."""

    def __init__(self, sampler: EpochBatches) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[tuple[int, Tensor]]:
        seed, epoch = self.sampler.seed, self.sampler.epoch
        for indices in self.sampler:
            yield derive(seed, "samples", epoch, int(indices[0])), indices


class SeededBatches:
    """Batches of a dataset that may draw random numbers, seeded so that the draws depend only on the seed of the batch.

    A batch is requested as `(seed, indices)`. The seed is set for torch's CPU generator, `random`, NumPy and attributes
    of the dataset with a `set_random_seed`, such as transforms of albumentations. In the main process, the state of the
    generators is restored afterwards. Datasets with `draws = False` are not seeded.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, place: tuple[int, Tensor]) -> Any:
        seed, indices = place
        if not getattr(self.dataset, "draws", True):
            return self.dataset[indices]
        with isolate_rng(include_cuda=False) if get_worker_info() is None else nullcontext():
            self._seed(seed)
            return self.dataset[indices]

    def _seed(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 (the global generator is the one that datasets use)
        dataset = self.dataset
        while dataset is not None:  # a dataset may wrap another
            attributes = list(getattr(dataset, "__dict__", {}).values())
            for attribute in attributes:
                if hasattr(attribute, "set_random_seed"):
                    attribute.set_random_seed(seed)
            dataset = getattr(dataset, "dataset", None)


class Loader:
    """Batches of a dataset in the order of `EpochBatches`; continues where a checkpoint was taken, also with workers.

    A plain iterable, because Lightning would put samplers of its own into a bare `DataLoader` (in several processes,
    to predict, with `overfit_batches`).

    Args:
        dataset: gives a whole batch for a tensor of indices; or the DataError that its samples raised.
        sampler: the batches of indices.
        num_workers: processes that load batches; 0 loads in the main process.
        pin_memory: copies through page-locked memory.
    """

    def __init__(self, dataset: Any, sampler: EpochBatches, num_workers: int = 0, pin_memory: bool = False) -> None:
        self.samples = dataset  # not `dataset`: with `overfit_batches` Lightning would give that a sampler
        self.sampler = sampler  # Lightning calls its set_epoch before each epoch
        self.batch_sampler = None  # and reads this beside it
        self.position = self.epoch = 0  # batches handed out in which epoch; workers are ahead
        self.recut = False  # whether it continues a run whose batches had another size
        self.workers: DataLoader | None = None
        if num_workers or pin_memory:
            self.workers = DataLoader(
                SeededBatches(dataset),  # type: ignore[arg-type]
                batch_size=None,  # the sampler gives whole batches
                sampler=Places(sampler),
                num_workers=num_workers,
                pin_memory=pin_memory,
                persistent_workers=num_workers > 0,
                worker_init_fn=outlive_signals,
                # Python 3.14 has a server fork, which takes seconds and signals
                multiprocessing_context="fork" if num_workers and sys.platform == "linux" else None,
                generator=torch.Generator(),  # for the seeds of workers, so that the global state stays as it is
            )

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Yields the batches of the epoch from the current position on.

        All happens when the first one is asked for: on resume Lightning makes the iterator before it sets the epoch.
        """
        self.position, self.epoch = self.sampler.start, self.sampler.epoch
        for batch in self.workers or map(SeededBatches(self.samples).__getitem__, Places(self.sampler)):
            if isinstance(batch, DataError):
                raise batch
            self.position += 1
            yield batch

    @property
    def filler(self) -> bool:
        """Whether the newest batch is to be counted 0 times."""
        return self.position - 1 in self.sampler.fillers

    @property
    def _iterator(self) -> Any:
        """That of the workers. Lightning looks for this name, and ends them with the training or its failure."""
        return self.workers and worker_iterator(self.workers)

    @_iterator.setter
    def _iterator(self, iterator: None) -> None:
        if self.workers is not None:
            set_worker_iterator(self.workers, iterator)

    def state_dict(self) -> dict[str, int | str]:
        """Batches handed out in which epoch, of how many samples in all processes, and samples of a step."""
        sampler, epoch = self.sampler, self.sampler.epoch
        position = self.position % len(self) if epoch == self.epoch else 0  # the epoch may not have begun
        return {"epoch": epoch, "position": position, "batch": sampler.together, "step": sampler.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues there, also in parts of another size if the steps are the same.

        Raises:
            DataError: it is within an epoch of larger or smaller steps: samples would be left out or repeated.
        """
        together = self.sampler.together
        batch, before, now = state["batch"], state["step"], self.sampler.step
        if state["position"] and before != now:
            raise DataError(
                f"the run was stopped within an epoch, in batches of {before} samples (of all processes), and would "
                f"continue in batches of {now}: resume it with the batch size, devices and accumulate_grad_batches "
                "that it had; data.global_batch_size keeps batches as they are on any number of devices"
            )
        self.recut = batch != together
        self.sampler.epoch = self.epoch = state["epoch"]
        self.position = self.sampler.start = state["position"] * batch // together
