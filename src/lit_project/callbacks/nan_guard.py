"""Stops a run whose loss or gradients are no longer numbers, before they reach the weights."""

from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lit_project.errors import UserError
from lit_project.run import BEFORE_NAN


class NonFiniteError(UserError):
    """A loss or gradient is NaN or infinite."""


class NaNGuard(Callback):
    """Looks at the losses and at all gradients before each optimizer step.

    Where one is NaN or infinite, the run ends with the step, the samples of its batches and the parameters named, and
    with the weights before it in `checkpoints/before-nan.ckpt`; or the step is left out, `skip` times in all, and
    counted as `train/skipped_steps`. It costs a look at all gradients a step. Under `16-mixed` precision the gradient
    scaler leaves out such steps by itself, as it looks for its scale, and nothing is done here.

    Args:
        skip: how many bad steps are left out before the run ends.

    Raises:
        NonFiniteError: from the training step, see above.
    """

    def __init__(self, skip: int = 0) -> None:
        if skip < 0:
            raise ValueError(f"skip must be at least 0, got {skip}")
        self.skip = skip
        self.skipped = 0
        self._batches: list[Any] = []  # of the optimizer step
        self._loss_is_finite: Tensor | bool = True
        self._before: list[tuple[Tensor, Tensor]] = []  # statistics of batch norms, which a bad batch spoils, too
        self._running: Any = None  # the task's means of the epoch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """No batch has been seen."""
        self._batches, self._loss_is_finite = [], True

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Remembers what the step is computed from, and what a batch changes before its gradients are known."""
        if not self._batches:
            self._before = [(buffer, buffer.clone()) for buffer in _statistics(pl_module)]
            self._running = deepcopy(getattr(pl_module, "running", None))
        self._batches.append(batch)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Looks at the loss, a scalar, without waiting for the device."""
        self._loss_is_finite = loss.detach().isfinite() & self._loss_is_finite

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Looks at the gradients."""
        batches, self._batches = self._batches, []
        loss_is_finite, self._loss_is_finite = bool(self._loss_is_finite), True
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            return
        # of all optimizers there are
        gradients = {name: p.grad for name, p in pl_module.named_parameters() if p.grad is not None}
        if not gradients:
            return
        finite = torch.stack(torch._foreach_norm(list(gradients.values()))).isfinite()
        bad = not (loss_is_finite and finite.all())
        if trainer.world_size > 1:  # all processes leave a step out, or none
            found = trainer.strategy.reduce(torch.tensor(float(bad), device=pl_module.device), reduce_op="sum")
            bad = bool(found)
        if not bad:
            return
        for buffer, before in self._before:
            buffer.copy_(before)
        if self._running is not None:
            pl_module.running = self._running
        if self.skipped < self.skip:
            self.skipped += 1
            for parameter in pl_module.parameters():
                parameter.grad = None  # optimizers leave such parameters alone
            return
        names = [name for name, fine in zip(gradients, finite.tolist(), strict=True) if not fine]
        file = f"{trainer.default_root_dir}/checkpoints/{BEFORE_NAN}"
        trainer.save_checkpoint(file)
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        skipped = f", after {self.skipped} skipped steps" if self.skipped else ""
        what = f"the gradient of {shown}" if names else "the loss"
        raise NonFiniteError(
            f"step {trainer.global_step} (epoch {trainer.current_epoch}): {what} is not finite{skipped}; samples "
            f"{_samples(batches)}. The weights before it are in {file}. Often a lower learning rate, gradient_clip_val "
            "or a warm-up helps"
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs how many steps were left out so far, if any may be."""
        if self.skip:
            pl_module.log("train/skipped_steps", float(self.skipped), sync_dist=False, rank_zero_only=True)

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"skipped": self.skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on counting."""
        self.skipped = state_dict["skipped"]


def _statistics(module: nn.Module) -> list[Tensor]:
    norms = [child for child in module.modules() if isinstance(child, _BatchNorm)]
    return [buffer for norm in norms for buffer in norm.buffers()]


def _samples(batches: list[Any]) -> str:
    """Indices in the split, as far as batches tell them."""
    found: list[int] = []
    for batch in batches:
        indices = getattr(batch, "indices", None)
        if not isinstance(indices, Tensor):
            return "unknown"
        found += indices.tolist()
    return ", ".join(map(str, found[:20])) + (f" and {len(found) - 20} more" if len(found) > 20 else "")
