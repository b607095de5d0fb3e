"""Callbacks that average the weights during training."""

import math
import warnings
from collections import defaultdict
from functools import partial
from itertools import chain, islice
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lit_engine._lightning import BatchNorm, get_averaged_model, reset_average
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.checkpoints.weights import with_versions
from lit_engine.errors import UserError
from lit_engine.training.plain import call_after_setup, forward_batch
from lit_engine.training.task import Task


class Average(WeightAveraging):
    """Base class for weight averages. A run can use only one, because two would swap weights in the wrong order.

    Raises:
        UserError: the weights are already averaged by another callback, sharded, or not in float32.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        reset_average(self, trainer)
        if stage == "fit":
            callbacks = trainer.callbacks  # type: ignore[attr-defined]
            names = sorted(type(one).__name__ for one in callbacks if isinstance(one, WeightAveraging))
            if len(names) > 1:
                found = " and ".join(names)
                raise UserError(f"a run can use only one weight average: remove one of the callbacks {found}")
            if isinstance(trainer.strategy, ModelParallelStrategy):
                raise UserError(f"{names[0]} does not support sharded weights: remove it, or use the strategy ddp")
            if str(trainer.precision).endswith("-true") and trainer.precision != "32-true":
                raise UserError(f"{names[0]} needs float32 weights: use 32-true or mixed, not {trainer.precision}")
            call_after_setup(pl_module, lambda: self.create(trainer, pl_module))  # `setup` may create layers

    def create(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Create the average as a copy of the module."""
        with warnings.catch_warnings():  # a warning about sharding is ignored, because `setup` rejects sharding
            warnings.filterwarnings("ignore", message=".*overrides the configure_model")
            super().setup(trainer, pl_module, "fit")
        average = get_averaged_model(self)
        average.n_averaged = average.n_averaged.cpu()  # a counter on a GPU would make each step wait
        load = average.load_state_dict
        average.load_state_dict = lambda state: load(with_versions(state, average))

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(trainer, pl_module, checkpoint)
        checkpoint["state_dict"] = with_versions(checkpoint["state_dict"], pl_module)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Add weights that a module without `strict_loading` omits from checkpoints, because averages include them."""
        for name in ("state_dict", "current_model_state"):
            if not pl_module.strict_loading and name in checkpoint:
                checkpoint[name] = {**pl_module.state_dict(), **checkpoint[name]}
        super().on_load_checkpoint(trainer, pl_module, checkpoint)


class EMA(Average):
    """Exponential moving average of the weights (Tarvainen & Valpola 2017).

    Each step updates the average `a` to d a + (1 - d) w, where w denotes the current weights. After n steps, d is the
    minimum of `decay` and (1 + n) / (10 + n), as in TensorFlow's `ExponentialMovingAverage`, but 0 in the first step.
    With a constant d of 0.999, as in Lightning's `EMAWeightAveraging`, the initial weights would dominate the average
    for hundreds of steps.

    Args:
        decay: the value of d after many steps. The average covers about the last 1 / (1 - d) steps.

    Raises:
        UserError: `decay` is not in [0, 1).
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise UserError(f"EMA: decay must be in [0, 1), got {decay}")

        super().__init__(use_buffers=True)
        self.decay = decay

    def create(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().create(trainer, pl_module)
        average = get_averaged_model(self)
        average.update_parameters = partial(self._update, average)

    @torch.no_grad()
    def _update(self, average: AveragedModel, module: torch.nn.Module) -> None:
        """Update the average as `AveragedModel.update_parameters` does, but without waiting for a GPU in each step."""
        steps = int(average.n_averaged)
        decay = min(self.decay, (1 + steps) / (10 + steps)) if steps else 0.0
        alike = defaultdict[torch.dtype, list[tuple[Tensor, Tensor]]](list)
        for pair in zip(*(chain(one.parameters(), one.buffers()) for one in (average.module, module)), strict=True):
            alike[pair[0].dtype].append(pair)
        for dtype, pairs in alike.items():
            if dtype.is_floating_point or dtype.is_complex:
                averages, weights = zip(*pairs, strict=True)
                get_ema_multi_avg_fn(decay)(averages, weights, steps)
            else:  # An average of integers, such as indices, would be rounded down.
                for own, new in pairs:
                    own.copy_(new)
        average.n_averaged += 1


class SWA(Average):
    """Mean of the weights at the end of each of the last epochs (Izmailov et al. 2018).

    Until the first averaged epoch ends, the current weights are used. An epoch ends with its last batch or at
    `max_steps`, before validation. Batch-norm statistics, except in frozen layers, are recomputed for the averaged
    weights on the epoch's training data. SWA does not change the learning rate, which should stay high.

    Lightning's `StochasticWeightAveraging` replaces the schedules, adds an epoch, and stores the average only in the
    last checkpoint. `WeightAveraging` runs validation on the initial weights until the first average exists.

    Args:
        start: index of the first epoch to average. A value below 1 is a fraction of the run.

    Raises:
        UserError: `start` is negative, the run ends before the first epoch to average, or the network has batch norm
            and the data module has no `loader` method.
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
                raise UserError("SWA: a start below 1 is a fraction of the run, so set trainer.max_epochs or max_steps")
            self.first_epoch = int(self.start * epochs)
        elif epochs and epochs <= self.start and not fast_dev_run(trainer):
            raise UserError(f"SWA would start in epoch {self.first_epoch}, but the run ends after {epochs} epochs")
        has_norms = any(isinstance(module, BatchNorm) for module in pl_module.modules())
        if has_norms and not hasattr(trainer.datamodule, "loader"):  # type: ignore[attr-defined]
            raise UserError("SWA recomputes batch-norm statistics, so the data module needs a method `loader(split)` "
                            "that returns a new dataloader, as in SplitData: implement it, or use EMA")  # fmt: skip

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        average = get_averaged_model(self)
        ends = trainer.is_last_batch or 0 < trainer.max_steps <= trainer.global_step
        if trainer.current_epoch <= self.first_epoch:
            average.n_averaged.zero_()  # if the count is 0, the update copies the current weights
        elif not ends:
            return
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if ends and trainer.current_epoch >= self.first_epoch:
            measure_batch_norm(average.module, pl_module, trainer)


@torch.no_grad()
def measure_batch_norm(average: Any, live: LightningModule, trainer: Trainer) -> None:
    """Set the batch-norm statistics of `average` to their means over the training batches of the current epoch.

    Layers that are frozen in `live`, the trained model, do not change. The data module must have a `loader` method that
    returns a new dataloader. Each process uses its share of the data, and the first process's statistics are saved.
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
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(trainer.current_epoch)
    limit = trainer.num_training_batches  # infinite if the length of the data is unknown
    for batch in islice(loader, None if limit == math.inf else int(limit)):
        batch = data.transfer_batch_to_device(batch, trainer.strategy.root_device, 0)
        with trainer.precision_plugin.forward_context():
            forward_batch(average, data.on_after_batch_transfer(batch, 0))
