"""The gradient of the mean over all samples or tokens of an optimizer step, however they are split."""

from typing import Any

import torch
from torch import Tensor

# By which counts are divided where processes have to agree on a number before they know each other's: of the order of
# a batch's count, so that half precision does not overflow.
COMMON_UNIT = 1024


class StepMean:
    """Weighs the losses of micro-batches by their counts, and divides the gradients once by the count of the step.

    Lightning divides each loss by `accumulate_grad_batches`, also in the last window of an epoch that has fewer, and
    DistributedDataParallel gives each process the same weight: means of means, which are off by half for such a window
    and by some per cent for ragged batches of tokens. A step of one micro-batch in one process is left as it is, to
    the bit.
    """

    def __init__(self) -> None:
        self._count: int | Tensor | None = None  # of the micro-batches since the last step
        self._unit: int | Tensor = 1

    def reset(self) -> None:
        """Forgets what came before."""
        self._count = None

    def weigh(self, loss: Tensor, count: int | Tensor, world_size: int) -> Tensor:
        """A mean over `count` samples, a scalar, so weighted that the gradients of the step's losses add up."""
        if self._count is None:
            self._count = count
            self._unit = count if world_size == 1 else COMMON_UNIT
            if world_size == 1:
                return loss
        else:
            self._count = self._count + count
        if isinstance(count, Tensor):
            # in the precision of the loss at least: whole numbers divided would be float32
            wide = torch.promote_types(loss.dtype, torch.float32)
            return loss * (count.to(wide) / self._unit)
        return loss * (count / self._unit)

    def rescale(self, optimizer: Any, trainer: Any) -> None:
        """Divides the gradients by the count of all micro-batches and processes, before they are clipped."""
        if self._count is None:
            return
        accumulated, world_size = trainer.accumulate_grad_batches, trainer.world_size
        if self._count is not self._unit or accumulated > 1:
            total = torch.as_tensor(self._count, dtype=torch.double if world_size == 1 else torch.float)
            if world_size > 1:  # whole numbers, exact up to 16 million
                total = trainer.strategy.reduce(total.to(trainer.strategy.root_device), reduce_op="sum")
            # Lightning has divided the losses by the number of micro-batches, DDP the gradients by the processes
            factor = float(self._unit) * accumulated * world_size / float(total)
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            if gradients:  # there are none where a callback has dropped them
                torch._foreach_mul_(gradients, factor)
        self._count = None
