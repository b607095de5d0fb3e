"""The losses of a short training at rising learning rates."""

import math
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_project.errors import UserError


class RangeTest(Callback):
    """Raises the learning rate from step to step (Smith 2017) and notes a running mean of the losses.

    At rate r each group of the optimizer learns at its `lr_factor` times r, as it would in a run at that rate.
    Schedules rest. The training ends early where the loss explodes.

    Args:
        low: the first rate.
        high: the last one; rates are evenly spaced by their logarithm.
        steps: optimizer steps; the trainer's `max_steps`.

    Attributes:
        rates: of the steps that were made.
        losses: after each of them.
    """

    decay = 0.98  # of the running mean
    exploded = 4.0  # times the best loss

    def __init__(self, low: float, high: float, steps: int) -> None:
        self.curve = [low * (high / low) ** (step / max(steps - 1, 1)) for step in range(steps)]
        self.rates: list[float] = []
        self.losses: list[float] = []
        self._factors: list[float] = []
        self._window: list[Tensor] = []  # losses of the micro-batches of a step
        self._sum = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finds the factors of the groups.

        Raises:
            UserError: there are several optimizers, or one whose rate is 0.
        """
        if len(trainer.optimizers) != 1:
            raise UserError(f"a learning rate is looked for with one optimizer; here are {len(trainer.optimizers)}")
        trainer.strategy.lr_scheduler_configs = []
        rate = float(trainer.optimizers[0].defaults.get("lr") or 0)
        if rate <= 0:
            raise UserError("the optimizer's lr must be above 0: it shows in which proportion the groups learn")
        self._factors = [float(group["lr"]) / rate for group in trainer.optimizers[0].param_groups]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Sets the rate of the step."""
        rate = self.curve[min(trainer.global_step, len(self.curve) - 1)]
        for group, factor in zip(trainer.optimizers[0].param_groups, self._factors, strict=True):
            group["lr"] = factor * rate

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an optimizer step: notes the loss, and stops if it has exploded."""
        if outputs:  # Lightning has divided `loss`
            mean = outputs["mean"] if "mean" in outputs else outputs["loss"] * trainer.accumulate_grad_batches
            self._window.append(mean.detach())
        if trainer.global_step <= len(self.losses) or not self._window:
            return
        loss = trainer.strategy.reduce(torch.stack(self._window).mean(), reduce_op="mean")
        self._window = []
        self._sum = self.decay * self._sum + (1 - self.decay) * float(loss)
        self.rates.append(self.curve[min(len(self.rates), len(self.curve) - 1)])
        self.losses.append(self._sum / (1 - self.decay ** len(self.rates)))
        if not math.isfinite(self.losses[-1]) or self.losses[-1] > self.exploded * min(self.losses) > 0:
            trainer.should_stop = True
