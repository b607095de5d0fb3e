"""Random streams that are pure functions of (seed, where we are), so that a resumed run repeats them exactly."""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DistributedSampler, SequentialSampler

from .errors import DataError


def derive(*parts: int | str) -> int:
    """A 32-bit seed from any numbers and names (torch's CPU generator uses only the low 32 bits of a seed).

    >>> derive(1, "epoch", 0) == derive(1, "epoch", 0)
    True
    """
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


class EpochBatches(DistributedSampler, SequentialSampler):
    """Yields this process's batches of sample indices for one epoch.

    Every process makes the same number of batches (collective operations would hang otherwise), each batch has at
    least one sample, and over all processes each sample occurs exactly once an epoch; nothing is padded. The order
    depends on (seed, epoch) alone: not on the global random state, on workers or on what ran before.

    It counts the batches that it has handed out, so that a checkpoint in the middle of an epoch knows the position.
    It is a `DistributedSampler` so that Lightning leaves it as it is, and a `SequentialSampler` so that it does so with
    `overfit_batches`, too, which `SplitData.shuffles` sees to.

    Args:
        size: number of samples.
        batch_size: samples a batch and process.
        shuffle: a new permutation each epoch; otherwise ascending indices.
        drop_last: leave out what does not fill a batch on every process.
        seed: with the epoch, all that the order depends on.
        num_replicas: number of processes.
        rank: this process, from 0.

    Raises:
        DataError: fewer samples than processes, or `drop_last` leaves no batch, or batches of one sample cannot be
            equally many on all processes.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool = False,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        super().__init__(
            range(size),  # type: ignore[arg-type]
            num_replicas,
            rank,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
        )
        self.size = size
        self.batch_size = batch_size
        self.position = 0  # batches handed out in this epoch
        self.start = 0  # where the next iteration begins
        if drop_last:
            size -= size % (batch_size * num_replicas)
            if size == 0:
                raise DataError(f"drop_last with batch_size {batch_size} leaves no batch of {self.size} samples")
        elif size < num_replicas:
            raise DataError(f"{size} samples cannot be shared by {num_replicas} processes")
        elif batch_size == 1 and size % num_replicas:
            raise DataError(
                f"with batch_size 1, {size} samples cannot be shared by {num_replicas} processes in equally many "
                "batches: use a larger batch size"
            )
        self.used = size

    def __len__(self) -> int:
        """Number of batches a process makes in one epoch."""
        share = -(-self.used // self.num_replicas)
        return -(-share // self.batch_size)

    def indices(self) -> Tensor:
        """This process's share of the samples of this epoch, in order: `(share,)` int64."""
        if self.shuffle:
            generator = torch.Generator().manual_seed(derive(self.seed, "order", self.epoch))
            order = torch.randperm(self.size, generator=generator)
        else:
            order = torch.arange(self.size)
        return order[: self.used][self.rank :: self.num_replicas]

    def batches(self) -> list[Tensor]:
        """All batches of this epoch: index tensors `(b,)` with 1 ≤ b ≤ batch_size."""
        share = self.indices()
        count = len(self)
        cuts = list(range(self.batch_size, count * self.batch_size, self.batch_size))
        # A share that fills one batch less than the largest share gives its last sample to the last batch.
        cuts = [min(cut, len(share) - (count - 1 - i)) for i, cut in enumerate(cuts)]
        return list(torch.tensor_split(share, cuts))

    def __iter__(self) -> Iterator[Tensor]:  # type: ignore[override]
        """Yields the batches of the epoch; once after `load_state_dict`, those from its position on."""
        self.position, self.start = self.start, 0
        for batch in self.batches()[self.position :]:
            self.position += 1
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Lightning calls this before each epoch; a position in another one, whose batches were limited, is none."""
        if epoch != self.epoch:
            self.start = 0
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where the iteration is: batches handed out in which epoch, and of how many samples in all processes."""
        return {"epoch": self.epoch, "position": self.position % len(self), "batch": self.together}

    @property
    def together(self) -> int:
        """Samples of a batch in all processes."""
        return self.batch_size * self.num_replicas

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues there.

        Raises:
            DataError: it is within an epoch of larger or smaller batches: samples would be left out or repeated.
        """
        before = state.get("batch", self.together)
        if state["position"] and before != self.together:
            raise DataError(
                f"the run was stopped within an epoch, in batches of {before} samples (of all processes), and would go "
                f"on in batches of {self.together}: resume it with the batch size and the devices that it had"
            )
        self.epoch = state["epoch"]
        self.position = self.start = state["position"]


class IndexLoader:
    """Base of loaders that make a batch by indexing tensors: as long and as resumable as its sampler.

    Args:
        order: the batches of indices.
    """

    def __init__(self, order: EpochBatches) -> None:
        self.sampler = order  # Lightning calls sampler.set_epoch before each epoch
        self.batch_sampler = None  # and looks here too

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.sampler)

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at a position."""
        self.sampler.load_state_dict(state)
