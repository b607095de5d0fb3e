"""Computes exact means over batches, micro-batches and processes, and measures the training time."""

from collections.abc import Iterable
from time import perf_counter
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from lit_engine._lightning import multiply_all
from lit_engine.distributed.processes import Replicas, all_gathered, all_reduced, replicas
from lit_engine.distributed.sharding import gradients, local_shards


class Totals:
    """Running sums and a sample count for computing exact means, even with uneven batches and several processes."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count: float | Tensor = 0
        self.mark()

    def add(self, count: float | Tensor, **sums: Tensor) -> None:
        """Add scalar sums without waiting for the device. `count` is the number or weight of the samples or tokens."""
        if isinstance(count, Tensor) and count.is_floating_point():
            count = count.to(_sum_dtype(count.device))
        # Do not add in place, because the mark may refer to the same tensor.
        self.count = self.count + count
        for name, value in sums.items():
            value = value.detach()
            if name in self.sums:
                self.sums[name] = _scalar_on(value.device, self.sums[name]) + value  # restored sums are on the CPU
            else:
                self.sums[name] = value.to(_sum_dtype(value.device))

    def gather(self, task: LightningModule) -> dict[str, Any]:
        """Return the `sums` and the `count` with one value per replica, `(W,)` each. All processes must call this."""
        own = {name: value.item() for name, value in self.sums.items()}, float(self.count)
        shares = all_gathered([own], task.trainer)
        names = dict.fromkeys(name for sums, _ in shares for name in sums)  # a resumed run logs the means in this order
        columns = {name: _column(sums.get(name, 0.0) for sums, _ in shares) for name in names}
        return {"sums": columns, "count": _column(count for _, count in shares)}

    def scatter(self, state: dict[str, Any], here: Replicas) -> None:
        """Restore this replica's sums. If the number of replicas changed, the first replica receives all sums."""
        shares, counts = state["sums"], state["count"]
        if len(counts) == here.size:
            self.sums = {name: share[here.rank] for name, share in shares.items()}
            self.count = _number(counts[here.rank])
        else:
            first = here.rank == 0
            self.sums = {name: share.sum() * first for name, share in shares.items()}
            self.count = _number(counts.sum()) * first

    def mark(self) -> None:
        self._marked, self._marked_count = dict(self.sums), self.count

    def rewind(self) -> None:
        """Remove everything added since the mark."""
        self.sums, self.count = dict(self._marked), self._marked_count

    def mean_loss_since_mark(self, task: LightningModule) -> float | None:
        """Return the mean loss over all processes since the last call to `mark`, or None if no loss was added.

        All processes must call this. Unlike `reduce`, this sends only one small tensor.
        """
        now, before = (_scalar_on(task.device, sums.get("loss", 0.0)) for sums in (self.sums, self._marked))
        added = torch.stack([now - before, _scalar_on(task.device, self.count - self._marked_count)])
        size, _, group = replicas(task.trainer)
        total, count = (all_reduced(added, group=group) if size > 1 else added).tolist()
        # If there are several processes, others may have added a loss.
        return total / count if count and (size > 1 or "loss" in self.sums) else None

    def means(self) -> dict[str, float]:
        """Return this process's means, which are the sums divided by the count."""
        count = _number(self.count)
        return {name: value.item() / count for name, value in self.sums.items()} if count else {}

    def reduce(self, task: LightningModule) -> "Totals":
        """Return the totals over all processes. All processes must call this."""
        state, total = self.gather(task), Totals()
        total.sums = {name: shares.sum() for name, shares in state["sums"].items()}
        total.count = _number(state["count"].sum())
        return total


def totals_of(module: LightningModule) -> Totals | None:
    """Return a task's sums for the training epoch so far, or None for other modules."""
    running = getattr(module, "running", None)
    return running if isinstance(running, Totals) else None


def _sum_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on MPS, which lacks float64. Long float32 sums lose precision."""
    return torch.double if device.type != "mps" else torch.float


# With several processes, losses are weighted by count / COMMON_UNIT, because the other processes' counts are unknown.
# COMMON_UNIT is about the size of a batch, so that half precision does not overflow.
COMMON_UNIT = 1024


def _divisor(count: Any) -> Any:
    """Return the count as a divisor, or 1 if the count is 0. In that case, the sum is also 0."""
    return count.masked_fill(count == 0, 1) if isinstance(count, Tensor) else count or 1


def _column(values: Iterable[float]) -> Tensor:
    return torch.tensor([*values], dtype=torch.double)


def _scalar_on(device: torch.device, value: float | Tensor) -> Tensor:
    """Return a number as a scalar tensor. Unlike copying a number to the GPU, filling a tensor does not block."""
    wide = _sum_dtype(device)
    return value.to(device, wide) if isinstance(value, Tensor) else torch.full((), value, dtype=wide, device=device)


def _number(count: float | Tensor) -> float:
    """Return a count as an int, or as a float if it is a sum of fractional weights."""
    value = float(count)
    return int(value) if value.is_integer() else value


class StepMean:
    """Exact mean loss of an optimizer step, weighted by the counts of its micro-batches and processes.

    Lightning divides each loss by `accumulate_grad_batches`, even in the last window of an epoch, which may be shorter.
    DistributedDataParallel and FSDP2 weight all processes equally. The resulting relative error can be 50 % for a short
    window and a few percent for token batches of different sizes. A single batch in one process needs no correction.
    """

    def __init__(self) -> None:
        self._new: tuple[float | Tensor, int] | None = None  # sample and replica counts; None once the loss is scaled
        self._weight: Any = None  # weight of the current batch
        self._count: float | Tensor | None = None  # samples since the last step
        self._unit: float | Tensor = 1
        self._factor: Tensor | None = None  # factor that rescaled the latest gradients

    def start_batch(self, new: tuple[float | Tensor, int] | None = None) -> None:
        """Set the number of samples of a batch and the number of replicas. If `new` is None, losses are not scaled."""
        self._new, self._weight = new, None

    @property
    def is_pending(self) -> bool:
        """Whether the current batch has a loss, but no gradients yet."""
        return self._new is not None

    def weigh(self, loss: Tensor) -> Tensor:
        """Scale a mean loss of the batch, so that the gradients of a step's micro-batches can be summed."""
        if self._new is not None:
            (count, replicas), self._new = self._new, None
            is_first = self._count is None
            self._count = count if self._count is None else self._count + count
            if is_first:
                self._unit = count if replicas == 1 else COMMON_UNIT
            if isinstance(count, Tensor):
                # Use at least the precision of the loss, because dividing integer tensors would return float32.
                count = count.to(torch.promote_types(loss.dtype, torch.float32))
            self._weight = None if is_first and replicas == 1 else count / _divisor(self._unit)
        elif self._count is None:
            self._factor = None
        return loss if self._weight is None else loss * self._weight

    def rescale(self, optimizer: Any, trainer: Any) -> None:
        """Divide the gradients by the step's total number of samples across all processes, before gradient clipping."""
        if self._count is not None:
            accumulated, (size, _, group) = trainer.accumulate_grad_batches, replicas(trainer)
            self._factor = None
            if self._count is not self._unit or accumulated > 1:
                unit, total = (_scalar_on(trainer.strategy.root_device, count) for count in (self._unit, self._count))
                if size > 1:
                    total = all_reduced(total, group=group)
                # `accumulated * size` undoes the divisions by Lightning (micro-batches) and by DDP or FSDP2 (replicas).
                self._factor = _divisor(unit) * (accumulated * size) / _divisor(total)
            self._count = self._weight = None
        # Optimizers that step without a new backward pass share the loss and therefore the factor.
        if self._factor is not None and (found := local_shards(gradients(optimizer))):
            multiply_all(found, self._factor)


class Clock:
    """Stopwatch that can be paused."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._mark = perf_counter()

    def lap(self) -> None:
        """Add the time since the last mark to the total, and set a new mark."""
        now = perf_counter()
        self.seconds += now - self._mark
        self._mark = now

    def skip(self) -> None:
        """Move the mark to the current time without adding the elapsed time."""
        self._mark = perf_counter()
