"""Callback that stops a run before non-finite gradients reach the weights."""

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_engine._lightning import scales_loss
from lit_engine.distributed.processes import all_gathered, all_reduced
from lit_engine.distributed.sharding import local_shards
from lit_engine.errors import NonFiniteError, first_of
from lit_engine.run.directory import BEFORE_NAN


class NaNGuard(Callback):
    """Callback that checks all gradients before each optimizer step.

    If a gradient is NaN or infinite, the run stops with an error that names the epoch, the step, the parameters and the
    samples. The weights before the step are saved in `checkpoints/before-nan.ckpt`, but batch-norm statistics already
    include the batch. With precision `16-mixed`, NaNGuard does nothing, because the gradient scaler skips such steps.

    Raises:
        NonFiniteError: a gradient is NaN or infinite.
    """

    def __init__(self) -> None:
        self._step, self._batches = -1, list[Any]()  # the next optimizer step and its batches

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.global_step != self._step:
            self._step, self._batches = trainer.global_step, []
        self._batches.append(batch)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        gradients = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
        if not gradients or scales_loss(trainer):
            return
        shards = local_shards(gradients.values())
        if not _not_finite(torch.nn.utils.get_total_norm(shards).isfinite(), trainer):
            return
        # Check each gradient, because the norm of finite gradients may overflow.
        bad = _not_finite(torch.stack([one.isfinite().all() for one in shards]), trainer)
        if not bad.any():
            return
        names = [name for name, found in zip(gradients, bad.tolist(), strict=True) if found]
        indices = [getattr(batch, "indices", None) for batch in self._batches]  # positions in the split, if known
        samples = all_gathered([i for some in indices if isinstance(some, Tensor) for i in some.tolist()], trainer)
        file = f"{trainer.default_root_dir}/checkpoints/{BEFORE_NAN}"
        trainer.save_checkpoint(file, weights_only=False)
        raise NonFiniteError(
            f"step {trainer.global_step} (epoch {trainer.current_epoch}): "
            f"the gradient of {first_of(names)} is not finite; samples {first_of(samples, 20) or 'unknown'}. "
            f"The weights before the step are in {file}. Try a lower learning rate, gradient_clip_val or a warm-up"
        )


def _not_finite(finite: Tensor, trainer: Trainer) -> Tensor:
    """Count the processes in which each gradient is not finite, so that all processes save together."""
    bad = finite.logical_not().float()
    return all_reduced(bad) if trainer.world_size > 1 else bad
