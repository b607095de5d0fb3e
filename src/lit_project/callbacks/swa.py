"""Stochastic weight averaging."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lit_project.callbacks.checkpoint import fast_dev_run
from lit_project.callbacks.ema import LiveAverage
from lit_project.errors import UserError
from lit_project.processes import print_once


class SWA(LiveAverage):
    """The mean of the weights at the ends of the last epochs (Izmailov et al. 2018), validated, saved and tested.

    Until the first of these ends the weights are those of the training. An epoch that `max_steps` cuts short counts
    with the weights it ended with; one that is stopped before its end (`max_time`) does not, so that a run that goes on
    from there ends as if it had not been stopped.

    Batch-norm statistics are not averaged but measured anew for the averaged weights, over the training data of the
    epoch, at each end that counts; those that `Unfreezing` keeps frozen stay as they are. Rates stay those of the
    schedules of the config: one that stays high to the end (constant, cosine with restarts) is what averaging is good
    for.

    Lightning's `StochasticWeightAveraging` replaces the schedules of the run, adds an epoch to it, and writes the
    average into no checkpoint but the last; this is its `WeightAveraging` with another moment and the statistics.

    Args:
        start: the first epoch, from 0, whose weights count; a share of the run if it is below 1.

    Raises:
        UserError: it lies beyond the run, or there are batch norms and no `loader` of the data to measure them on.
    """

    def __init__(self, start: float = 0.75) -> None:
        super().__init__(use_buffers=False)
        if start < 0:
            raise UserError(f"SWA: start must be at least 0, got {start}")
        self.start = start
        self.first_epoch = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes the average, and finds its first epoch."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        if 0 < self.start < 1:
            if epochs is None:
                raise UserError("SWA: a start as a share of the run needs trainer.max_epochs")
            self.first_epoch = min(int(self.start * epochs), epochs - 1)
        else:
            self.first_epoch = int(self.start)
        has_norms = any(isinstance(module, _BatchNorm) for module in pl_module.modules())
        if has_norms and not hasattr(trainer.datamodule, "loader"):  # type: ignore[attr-defined]
            raise UserError("SWA: batch norms are measured over the data, whose module has no method loader(split)")
        if epochs is not None and self.first_epoch >= epochs and not fast_dev_run(trainer):
            raise UserError(f"SWA: would start in epoch {self.first_epoch}, but the run ends after {epochs} epochs")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After the last batch of an epoch or of the run, before its validation."""
        if batch_idx + 1 >= trainer.num_training_batches or 0 < trainer.max_steps <= trainer.global_step:
            self._count(trainer, pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The average becomes the model; says so if there is none."""
        self._follow(pl_module)
        super().on_train_end(trainer, pl_module)
        if not self._begun:
            print_once(f"SWA: the run ended before the end of epoch {self.first_epoch}: its weights are no average")

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validation sees the average."""
        self._follow(pl_module)
        super().on_validation_epoch_start(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """The checkpoint holds the average and, to resume from, the weights of the training."""
        self._follow(pl_module)
        super().on_save_checkpoint(trainer, pl_module, checkpoint)

    @property
    def _begun(self) -> bool:
        """Whether an end of an epoch has been counted."""
        return self._average_model is not None and int(self._average_model.n_averaged) > 0

    def _follow(self, pl_module: LightningModule) -> None:
        """Until something was averaged, the average is the weights as they are."""
        if self._average_model is not None and not self._begun:
            self._average_model.module.load_state_dict(pl_module.state_dict())

    def _count(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the weights into the average, once a step."""
        assert self._average_model is not None
        if trainer.current_epoch < self.first_epoch or trainer.global_step <= self._latest_update_step:
            return
        self._average_model.update_parameters(pl_module)
        self._latest_update_step = trainer.global_step
        measure_batch_norm(self._average_model.module, pl_module, trainer)


@torch.no_grad()
def measure_batch_norm(module: nn.Module, live: nn.Module, trainer: Trainer) -> None:
    """Sets the statistics of `module`'s batch norms to the means over the training batches of the current epoch.

    Only those that train in `live`, the model of the same architecture that is being trained. The data module must be
    one of `lit_project.data.ImageData`, which makes loaders apart from that of the training. Each process measures its
    own share; the statistics of the first process are those that are saved.
    """
    pairs = zip(module.modules(), live.modules(), strict=True)
    norms = {m: m.momentum for m, other in pairs if isinstance(m, _BatchNorm) and other.training}
    if not norms:
        return
    modes = {m: m.training for m in module.modules()}
    module.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average instead of an exponential one
        norm.train()
    data = trainer.datamodule  # type: ignore[attr-defined]
    loader = data.loader("train")  # another one than that of the training, whose position is kept
    loader.sampler.set_epoch(trainer.current_epoch)
    device = trainer.strategy.root_device
    for number, batch in enumerate(loader):
        if number >= trainer.num_training_batches:
            break
        batch = data.transfer_batch_to_device(batch, device, 0)
        with trainer.precision_plugin.forward_context():
            module(data.on_after_batch_transfer(batch, 0)[0])
    for norm, momentum in norms.items():
        norm.momentum = momentum
    for child, training in modes.items():
        child.training = training
