"""Lets a resumed run repeat a step that ran out of memory, with smaller micro-batches."""

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torchmetrics import Metric

from lit_engine import _lightning
from lit_engine.data.sampler import Loader
from lit_engine.training.task import Task

HINT = (
    "out of memory: halve data.batch_size and double trainer.accumulate_grad_batches to halve the memory use. "
    "If data.global_batch_size is set, just double trainer.accumulate_grad_batches. The results do not change. "
    "trainer.precision=bf16-mixed also needs less memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the CPU ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


class StepRepetition:
    """Restores the state from before a step that ran out of memory. A step has `global_batch_size` samples.

    Steps can be repeated only in single-process runs of a `Task` with automatic optimization.

    Attributes:
        accumulation: value of `accumulate_grad_batches` with which to repeat the step, or 0 if no step was saved.
    """

    def __init__(self) -> None:
        self.accumulation = 0
        self._is_possible = False
        # Index of the step's first batch, and the buffers and the metrics' update counts before that batch. None once
        # the optimizer step starts.
        self._before: tuple[int, list[Tensor], list[int]] | None = None

    def start(self, trainer: Trainer, module: LightningModule, can_save: bool) -> None:
        """Check whether steps can be repeated with micro-batches of half the size."""
        self.accumulation, self._before = 0, None
        samples: int = getattr(trainer.datamodule, "global_batch_size", None) or 0  # type: ignore[attr-defined]
        is_exact = isinstance(module, Task) and isinstance(trainer.train_dataloader, Loader)
        has_halves = samples > 0 and samples % (2 * trainer.accumulate_grad_batches) == 0
        is_simple = module.automatic_optimization and trainer.world_size == 1
        self._is_possible = can_save and has_halves and is_exact and is_simple

    def start_batch(self, trainer: Trainer, module: LightningModule, batch_idx: int) -> None:
        """Store the state if this batch is the first of a step."""
        if self._is_possible and batch_idx % trainer.accumulate_grad_batches == 0:
            self._before = batch_idx, [buffer.clone() for buffer in module.buffers()], _update_counts(module)

    def start_update(self) -> None:
        """Mark the step as not repeatable, because the optimizer is about to change the weights."""
        self._before = None

    def rewind(self, trainer: Trainer, module: LightningModule) -> str:
        """Restore the state from before the step.

        Do nothing if values of `self.log` or torchmetrics already contain a part of the step, because these values
        cannot be restored. A validation within the step may use averaged weights, so nothing is restored either.

        Returns:
            The moment to save with: `epoch` at the start of an epoch, `repeat` later, or "" if nothing was restored.
        """
        if self._before is None or trainer.validating or not isinstance(module, Task):
            return ""
        batches, buffers, updates = self._before
        if _lightning.logged_so_far(trainer) or _update_counts(module) != updates:
            return ""
        for buffer, before in zip(module.buffers(), buffers, strict=True):
            buffer.copy_(before)
        module.running.rewind()
        trainer.train_dataloader.position = batches  # type: ignore[union-attr]
        _lightning.rewind_step(trainer, batches)
        return "repeat" if batches else "epoch"


def _update_counts(module: LightningModule) -> list[int]:
    """Return the number of updates of each torchmetrics object in a module."""
    return [metric.update_count for metric in module.modules() if isinstance(metric, Metric)]
