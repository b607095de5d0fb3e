"""Averages of the weights while they train."""

import warnings
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lit_engine._lightning import BatchNorm, averaged_model
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.errors import UserError
from lit_engine.training.task import Task


class Average(WeightAveraging):
    """Lightning's `WeightAveraging`, of which only one can be at work: two would swap weights in the wrong order.

    Raises:
        UserError: there is another average, or a precision whose weights are not float32.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            callbacks = trainer.callbacks  # type: ignore[attr-defined]
            names = sorted(type(one).__name__ for one in callbacks if isinstance(one, WeightAveraging))
            if len(names) > 1:
                found = " and ".join(names)
                raise UserError(f"only one average of the weights can be at work, and these are configured: {found}")
            if isinstance(trainer.strategy, ModelParallelStrategy):
                raise UserError(f"{names[0]} averages whole weights, and those of this run are sharded")
            if str(trainer.precision).endswith("-true") and trainer.precision != "32-true":
                raise UserError(f"an average needs weights in float32, not with precision {trainer.precision}")
        with warnings.catch_warnings():  # of sharding, which was refused
            warnings.filterwarnings("ignore", message=".*overrides the configure_model")
            super().setup(trainer, pl_module, stage)


class EMA(Average):
    """Moves an average towards the weights after each step: a ← d a + (1 - d) w (as in Tarvainen & Valpola 2017).

    After n steps d is the smaller of `decay` and (1 + n) / (10 + n), as in TensorFlow's `ExponentialMovingAverage`.
    Lightning's `EMAWeightAveraging` has a constant d: with 0.999 the average of a run of a few hundred steps is mostly
    its first weights.

    Args:
        decay: d after many steps: the average looks back over about 1 / (1 - d) of them.

    Raises:
        UserError: a decay that is not in [0, 1).
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise UserError(f"EMA: decay must be in [0, 1), got {decay}")

        def move(averages: Sequence[Tensor], weights: Sequence[Tensor], steps: Tensor) -> None:
            get_ema_multi_avg_fn(min(decay, (1 + int(steps)) / (10 + int(steps))))(averages, weights, steps)

        super().__init__(use_buffers=True, multi_avg_fn=move)


class SWA(Average):
    """The mean of the weights at the ends of the last epochs (Izmailov et al. 2018).

    Until the first of these ends it is the weights that train. An end is the last batch of an epoch or of `max_steps`,
    before its validation. Batch norms get the statistics of the averaged weights over the training data of the epoch;
    frozen ones keep theirs. Schedules are those of the config: rates that stay high suit averaging.

    Lightning's `StochasticWeightAveraging` replaces the schedules, adds an epoch, and writes the average into no
    checkpoint but the last; its `WeightAveraging` validates the initial weights until there is an average.

    Args:
        start: the first epoch, from 0, whose weights count; a share of the run if it is below 1.

    Raises:
        UserError: it lies beyond the run.
    """

    def __init__(self, start: float = 0.75) -> None:
        super().__init__(use_buffers=False)
        if start < 0:
            raise UserError(f"SWA: start must be at least 0, got {start}")
        self.start = start
        self.first_epoch = int(start)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        epochs = pl_module.length("epoch") if isinstance(pl_module, Task) else max(trainer.max_epochs or 0, 0)
        if 0 < self.start < 1:
            if not epochs:
                raise UserError("SWA: a start as a share of the run needs trainer.max_epochs or max_steps")
            self.first_epoch = int(self.start * epochs)
        elif epochs and epochs <= self.start and not fast_dev_run(trainer):
            raise UserError(f"SWA: would start in epoch {self.first_epoch}, but the run ends after {epochs} epochs")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        average = averaged_model(self)
        ends = trainer.is_last_batch or trainer.global_step == trainer.max_steps
        if trainer.current_epoch <= self.first_epoch:
            average.n_averaged.zero_()  # an update copies the weights
        elif not ends:
            return
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if ends and trainer.current_epoch >= self.first_epoch:
            measure_batch_norm(average.module, pl_module, trainer)


@torch.no_grad()
def measure_batch_norm(average: torch.nn.Module, live: LightningModule, trainer: Trainer) -> None:
    """Sets the batch-norm statistics of `average` to the means over the training batches of the current epoch.

    Only those that train in `live`, the same architecture. Needs a data module of this project, whose `loader` is apart
    from that of the training. Each process measures its share; those of the first process are saved.
    """
    pairs = zip(average.modules(), live.modules(), strict=True)
    norms = [module for module, other in pairs if isinstance(module, BatchNorm) and other.training]
    if not norms:
        return
    average.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
        norm.train()
    data = trainer.datamodule  # type: ignore[attr-defined]
    loader = data.loader("train")
    loader.sampler.set_epoch(trainer.current_epoch)
    for batch in islice(loader, int(trainer.num_training_batches)):
        batch = data.transfer_batch_to_device(batch, trainer.strategy.root_device, 0)
        with trainer.precision_plugin.forward_context():
            average(data.on_after_batch_transfer(batch, 0)[0])
