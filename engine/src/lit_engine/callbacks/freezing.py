"""Freezing parts of a model, for good or for the first epochs."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from lit_engine._lightning import BatchNorm, wrap_again
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.errors import UserError, did_you_mean
from lit_engine.training.task import Task


class Unfreezing(Callback):
    """Trains each part of the task from its epoch on; until then it is frozen, with its batch-norm statistics.

    What is frozen is a function of the epoch alone, so that a resumed run continues as if it had not been stopped.
    Parameters that are frozen for a while are in the optimizer's groups from the first step, but have no gradient and
    no state there; those that never train are left out. The longest of several paths counts.

        schedule: {net.backbone: null}                                    feature extraction
        schedule: {net.backbone: 4, net.backbone.layer4: 2}               gradual (Howard & Ruder 2018)

    Args:
        schedule: path of a module of the task → the epoch, from 0, in which it begins to train; null for never. What
            no path covers trains from the start.

    Raises:
        UserError: a path that the task does not have, an epoch outside of the run, or nothing to train in epoch 0.
    """

    def __init__(self, schedule: dict[str, int | None]) -> None:
        self.schedule = schedule

    def _covering(self, name: str) -> list[str]:
        return [path for path in self.schedule if name == path or name.startswith(path + ".")]

    def begins(self, name: str) -> int | None:
        """The epoch in which a parameter or module begins to train; None for never."""
        covering = self._covering(name)
        return self.schedule[max(covering, key=len)] if covering else 0

    def frozen(self, name: str, epoch: int) -> bool:
        """Whether a parameter or module is frozen in an epoch."""
        begins = self.begins(name)
        return begins is None or epoch < begins

    def of_first_epoch(self) -> "Unfreezing":
        """For a search: what is frozen in epoch 0 stays frozen."""
        return Unfreezing({path: None if epoch != 0 else 0 for path, epoch in self.schedule.items()})

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Checks the schedule, and takes out of the optimizer what never trains."""
        if stage != "fit":
            return
        modules = dict(pl_module.named_modules())
        for path in self.schedule:
            if (epoch := self.schedule[path]) is not None and epoch < 0:
                raise UserError(f"Unfreezing: {path}: {epoch} is not an epoch: use 0 or more, or null for never")
            if path not in modules or not path:
                hint = did_you_mean(path, filter(None, modules))
                raise UserError(f"Unfreezing: the model has no part {path!r}{hint}")
        if all(self.frozen(name, 0) for name, _ in pl_module.named_parameters()):
            raise UserError("Unfreezing: nothing is left to train in epoch 0")
        for name, parameter in pl_module.named_parameters():
            if self.begins(name) is None:
                parameter.requires_grad_(False)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epochs = pl_module.length("epoch") if isinstance(pl_module, Task) else None
        for path, epoch in self.schedule.items():
            if epochs is not None and epoch is not None and epoch >= epochs and not fast_dev_run(trainer):
                raise UserError(
                    f"Unfreezing: {path} would begin to train in epoch {epoch}, but the run ends after {epochs} epochs "
                    f"(0 to {epochs - 1}); null is never"
                )
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        epoch = trainer.current_epoch
        changed = False
        for name, parameter in pl_module.named_parameters():
            if self.begins(name) is None or not self._covering(name):  # what the net has frozen by itself stays so
                continue
            trains = not self.frozen(name, epoch)
            changed |= parameter.requires_grad != trains
            parameter.requires_grad_(trains)
            if not trains:
                parameter.grad = None
        for name, module in pl_module.named_modules():
            if isinstance(module, BatchNorm) and self._covering(name):
                module.train(not self.frozen(name, epoch))
        if changed and isinstance(trainer.strategy, DDPStrategy):
            wrap_again(trainer.strategy, pl_module)
