"""Exact means: sums and counts over batches, micro-batches and processes; and the time that training takes."""

from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lit_engine._lightning import multiply_all
from lit_engine.distributed.processes import Replicas, all_reduced, replicas
from lit_engine.distributed.sharding import gradients, local_shards


class Totals:
    """Sums over samples and their count, from which means are exact: ragged batches and processes weigh right."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count: int | Tensor = 0
        self._total: Totals | None = None
        self.mark()

    def add(self, count: int | Tensor, **sums: Tensor) -> None:
        """Adds sums over `count` samples (or tokens), scalar tensors, without waiting for the device."""
        self._total = None
        self.count = self.count + count  # not in place: a mark may be of the same tensor
        for name, value in sums.items():
            value = value.detach()
            if name in self.sums:
                self.sums[name] = self.sums[name].to(value.device) + value  # those of a checkpoint are on the CPU
            else:
                self.sums[name] = value.to(_wide(value.device))

    def gather(self, task: LightningModule) -> dict[str, Any]:
        """For a checkpoint: `sums`, name → `(W,)`, and `count` `(W,)`, of each of W replicas; to be called in all."""
        names, own = self._packed(task.device)
        gathered: Any = task.all_gather(own, group=replicas(task.trainer).group)
        shares = gathered.reshape(-1, len(own)).cpu()
        by_name = dict(zip(names, shares.T.clone(), strict=False))
        return {"sums": {name: by_name[name] for name in self.sums}, "count": shares[:, -1].clone()}

    def _packed(self, device: torch.device) -> tuple[list[str], Tensor]:
        """Names in the order of all processes; their sums, and the count at the end."""
        names = sorted(self.sums)
        values = [*(self.sums[name] for name in names), torch.as_tensor(self.count)]
        return names, torch.stack([value.to(device, _wide(device)) for value in values])

    def scatter(self, state: dict[str, Any], here: Replicas) -> None:
        """Restores the share of a replica; if their number changed, the first one gets everything."""
        self._total = None
        shares, counts = state["sums"], state["count"]
        if len(counts) == here.size:
            self.sums, self.count = {name: share[here.rank] for name, share in shares.items()}, int(counts[here.rank])
        else:  # the others know the names, which all must have to gather
            first = here.rank == 0
            self.sums, self.count = {n: share.sum() * first for n, share in shares.items()}, int(counts.sum()) * first

    def mark(self) -> None:
        self._marked, self._marked_count = dict(self.sums), self.count

    def since_mark(self) -> "Totals":
        """What was added since the mark."""
        added = Totals()
        added.count = self.count - self._marked_count
        added.sums = {name: value - self._marked.get(name, 0.0) for name, value in self.sums.items()}
        return added

    def means(self) -> dict[str, float]:
        """Sum / count of each name in this process."""
        count = int(self.count)
        return {name: value.item() / count for name, value in self.sums.items()} if count else {}

    def reduce(self, task: LightningModule) -> "Totals":
        """Return the totals over all processes; until more is added, they are reduced only once."""
        if self._total is not None:
            return self._total
        total = self._total = Totals()
        total.count = int(self.count)
        total.sums = dict(self.sums)
        size, _, group = replicas(task.trainer)
        if size > 1 and self.sums:
            names, packed = self._packed(task.device)
            packed = all_reduced(packed, group=group)
            total.sums = dict(zip(names, packed[:-1], strict=True))
            total.count = int(packed[-1].item())
        return total


def totals_of(module: LightningModule) -> Totals | None:
    """Return the sums of the training epoch so far, which tasks have; None for other modules."""
    running = getattr(module, "running", None)
    return running if isinstance(running, Totals) else None


def _wide(device: torch.device) -> torch.dtype:
    """Double: a million float32 additions lose digits; an MPS device has none."""
    return torch.double if device.type != "mps" else torch.float


# Divides the weights if there are several processes, which do not know each other's counts yet: about the size of a
# batch, so that half precision does not overflow.
COMMON_UNIT = 1024


def _divisor(count: Any) -> Any:
    """The count, or 1 if it is 0: the sum is 0 then, too."""
    return count.masked_fill(count == 0, 1) if isinstance(count, Tensor) else count or 1


class StepMean:
    """Weighs the losses of micro-batches by their counts, and divides the gradients once by the count of the step.

    Lightning divides each loss by `accumulate_grad_batches`, also in the last window of an epoch that has fewer, and
    DistributedDataParallel and FSDP2 give each process the same weight: means of means, which are off by half for such
    a window and by some per cent for ragged batches of tokens. A step of one micro-batch in one process is left as it
    is, to the bit.
    """

    def __init__(self) -> None:
        self._count: int | Tensor | None = None  # of the micro-batches since the last step
        self._unit: int | Tensor = 1

    def weigh(self, loss: Tensor, count: int | Tensor, replicas: int) -> Tensor:
        """A mean over `count` samples, a scalar, so weighted that the gradients of the step's losses add up."""
        if self._count is None:
            self._count = count
            self._unit = count if replicas == 1 else COMMON_UNIT
            if replicas == 1:
                return loss
        else:
            self._count = self._count + count
        if isinstance(count, Tensor):
            # in the precision of the loss at least: whole numbers divided would be float32
            wide = torch.promote_types(loss.dtype, torch.float32)
            return loss * (count.to(wide) / _divisor(self._unit))
        return loss * (count / _divisor(self._unit))

    def rescale(self, optimizer: Any, trainer: Any) -> None:
        """Divides the gradients by the count of all micro-batches and processes, before they are clipped."""
        if self._count is None:
            return
        accumulated, (size, _, group) = trainer.accumulate_grad_batches, replicas(trainer)
        if self._count is not self._unit or accumulated > 1:
            # of one process on the CPU: Apple's GPUs have no double
            count = self._count.cpu() if size == 1 and isinstance(self._count, Tensor) else self._count
            total = torch.as_tensor(count, dtype=torch.double if size == 1 else torch.float)
            if size > 1:  # whole numbers, exact up to 16 million
                total = all_reduced(total.to(trainer.strategy.root_device), group=group)
            # Lightning has divided the losses by the number of micro-batches, DDP or FSDP2 the gradients by replicas
            factor = float(_divisor(self._unit)) * accumulated * size / float(_divisor(total))
            if found := local_shards(gradients(optimizer)):  # none if a callback has dropped them
                multiply_all(found, factor)
        self._count = None


class Clock:
    """A stopwatch that can pause."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._mark = perf_counter()

    def lap(self) -> None:
        """Counts the time since the mark, and sets a new mark."""
        now = perf_counter()
        self.seconds += now - self._mark
        self._mark = now

    def skip(self) -> None:
        """Sets a new mark without counting the time before it."""
        self._mark = perf_counter()
