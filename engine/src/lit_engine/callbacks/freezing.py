"""Callback that freezes parts of a model permanently or for the first epochs."""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.nn import Parameter

from lit_engine._lightning import BatchNorm, wrap_again
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.errors import UserError, did_you_mean
from lit_engine.training.plain import call_after_setup
from lit_engine.training.task import Task


class Unfreezing(Callback):
    """Callback that freezes each listed part of a task, including its batch-norm statistics, until a given epoch.

    The frozen parts depend only on the epoch, so resuming a run does not change them. Temporarily frozen parameters are
    in the optimizer's groups from the first step, but have no gradients or optimizer state. Parameters that never train
    are not in the optimizer. If several paths match a parameter, the longest one applies. The first example below uses
    the backbone as a feature extractor, and the second unfreezes it gradually (Howard & Ruder 2018).

        schedule: {net.backbone: null}
        schedule: {net.backbone: 4, net.backbone.layer4: 2}

    Args:
        schedule: maps the path of each module in the task to the first epoch (counted from 0) in which it trains. null
            freezes a module permanently. Modules that are not listed train from the start.

    Raises:
        UserError: a path does not exist in the task, an epoch is outside the run, or nothing is trained in epoch 0.
    """

    def __init__(self, schedule: dict[str, int | None]) -> None:
        self.schedule = schedule
        self._starts = False  # whether the first batch in this process is still to come

    def _list_rules(self, name: str) -> list[str]:
        return [path for path in self.schedule if name == path or name.startswith(path + ".")]

    def first_epoch_of(self, name: str) -> int | None:
        """Return the first epoch in which a parameter or module trains, or None if it never does."""
        covering = self._list_rules(name)
        return self.schedule[max(covering, key=len)] if covering else 0

    def is_frozen(self, name: str, epoch: int) -> bool:
        """Return whether a parameter or module is frozen in an epoch."""
        begins = self.first_epoch_of(name)
        return begins is None or epoch < begins

    def _frozen(self, pl_module: LightningModule, epoch: int) -> set[Parameter]:
        """Return the parameters that are frozen in an epoch. A tied parameter is frozen if one of its names is."""
        named = pl_module.named_parameters(remove_duplicate=False)
        return {parameter for name, parameter in named if self.is_frozen(name, epoch)}

    def of_first_epoch(self) -> "Unfreezing":
        """Return a callback for the learning rate search that never unfreezes the parts frozen in epoch 0."""
        return Unfreezing({path: None if epoch != 0 else 0 for path, epoch in self.schedule.items()})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Check the schedule, and freeze parameters that never train, which excludes them from the optimizer."""
        if stage != "fit":
            return
        call_after_setup(pl_module, lambda: self._freeze(pl_module))  # `setup` may create layers

    def _freeze(self, pl_module: LightningModule) -> None:
        modules = dict(pl_module.named_modules())
        for path in self.schedule:
            if (epoch := self.schedule[path]) is not None and epoch < 0:
                raise UserError(f"Unfreezing: the epoch of {path} must be at least 0 or null (never), got {epoch}")
            if path not in modules or not path:
                hint = did_you_mean(path, filter(None, modules))
                raise UserError(f"Unfreezing: the model has no module {path!r}{hint}")
        if {*pl_module.parameters()} <= self._frozen(pl_module, 0):
            raise UserError("Unfreezing: nothing is left to train in epoch 0")
        for name, parameter in pl_module.named_parameters(remove_duplicate=False):
            if self.first_epoch_of(name) is None:
                parameter.requires_grad_(False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = pl_module.length("epoch") if isinstance(pl_module, Task) else None
        for path, epoch in self.schedule.items():
            if epochs is not None and epoch is not None and epoch >= epochs and not fast_dev_run(trainer):
                raise UserError(
                    f"Unfreezing: {path} would start to train in epoch {epoch}, but the run ends after {epochs} epochs "
                    f"(0 to {epochs - 1}); use null to never train it"
                )
        self._starts = True
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Apply a changed schedule to a resumed run, which initially freezes the same layers as when it was stopped."""
        if self._starts:
            self._starts = False
            self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch
        frozen = self._frozen(pl_module, epoch)
        for name, parameter in pl_module.named_parameters(remove_duplicate=False):
            # Do not change unlisted parameters, which the model itself may freeze.
            if self.first_epoch_of(name) is None or not self._list_rules(name):
                continue
            trains = parameter not in frozen
            parameter.requires_grad_(trains)
            if not trains:
                parameter.grad = None
        for name, module in pl_module.named_modules():
            if isinstance(module, BatchNorm) and self._list_rules(name):
                module.train(not self.is_frozen(name, epoch))
        wrap_again(trainer.strategy, pl_module)
