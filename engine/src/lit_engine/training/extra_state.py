"""State that is needed to resume a run exactly, but that Lightning's checkpoints do not contain."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor

from lit_engine import _lightning
from lit_engine.data.module import accumulation_schedule
from lit_engine.distributed.processes import all_gathered, print_once, replicas
from lit_engine.distributed.sharding import as_sharded, gather_full_tensors
from lit_engine.errors import UserError
from lit_engine.training.fork import describe_optimization, has_same_parameters
from lit_engine.training.schedules import check_lengths
from lit_engine.training.task import Task

# Entries of a checkpoint that are needed when training starts.
KEYS = ("metrics", "trainable", "precedes_plateau", "batches", "accumulation", "gradients")


class ExtraState:
    """Saves and restores state that Lightning omits: logged values, metrics, frozen parameters, gradients and counters.

    `Saver` calls the methods in this order: `prepare`, `load` (if the run is resumed), `start`, `finish_start`, and
    then `save` for each checkpoint.

    Attributes:
        schedules: states of the schedules in the checkpoint to resume from, if the module is not a task.
        optimizers: states of the optimizers in the checkpoint to resume from.
        end: the loop's counters and other state at the end of training, if training ends mid-epoch.
    """

    def __init__(self) -> None:
        self.schedules: Sequence[Any] = ()
        self.optimizers: Sequence[Any] = ()
        self.end: dict[str, Any] | None = None
        self._loaded: dict[str, Any] = {}  # entries of the checkpoint to resume from
        self._share: dict[str, Any] = {}  # the part of the checkpoint that belongs to this process
        self._optimization: str | None = None  # hash of the initial options of a plain module's optimizers
        # Whether each parameter is trainable, and whether each submodule is in train mode, when training starts.
        # Parameters and submodules cannot have the same name.
        self._at_start: dict[str, bool] = {}
        # Metric states and this process's batch norm statistics from before the current validation.
        self._metrics: dict[str, Any] | None = None
        self._buffers: dict[str, Tensor] = {}

    def prepare(self, trainer: Trainer) -> None:
        """Check the schedules and optimizers of a resumed run before Lightning restores their states."""
        check_lengths(trainer, self.schedules)
        for optimizer, saved in zip(trainer.optimizers, self.optimizers, strict=False):
            # callbacks such as BackboneFinetuning may still add groups, and a wrapper may have its own format
            is_final = "param_groups" in saved and len(optimizer.param_groups) == len(saved["param_groups"])
            if is_final and not has_same_parameters(optimizer, saved):
                raise UserError(
                    "the saved optimizer trains different parameters: restore the options that freeze parameters, such "
                    "as Unfreezing, or continue as a new run with --fork"
                )
        self._optimization = describe_optimization(trainer)

    def load(self, trainer: Trainer, checkpoint: dict[str, Any]) -> None:
        """Store the checkpoint entries that `start` needs, and restore the metric states."""
        if trainer.state.fn != "fit":
            return
        self._loaded = {key: checkpoint[key] for key in KEYS if key in checkpoint}
        shares, (size, rank, _) = checkpoint.get("logged_so_far", []), replicas(trainer)
        if len(shares) != size:
            return
        module = trainer.lightning_module
        self._share = shares[rank]
        if loaders := self._share.get("combined_loader"):  # all processes would use the states of rank 0
            checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = loaders
        # a MetricTracker must contain all its metrics before it can load a state dict
        _lightning.restore_metric_states(module, self._share["states"])
        if ended := self._share.get("ended"):
            for name in ended:
                module.get_submodule(name).reset()  # type: ignore[operator]
            self._share = {**self._share, "states": _lightning.metric_states(module)}

    def start(self, trainer: Trainer) -> None:
        """Restore the counters, logged values and gradients before the module's first training hook.

        Raises:
            UserError: if the run was stopped mid-epoch, and the number of batches per epoch or step has changed.
        """
        module = trainer.lightning_module
        trainer.callback_metrics.update(self._loaded.get("metrics", {}))
        for name, gradient in self._loaded.get("gradients", {}).items():
            weight = module.get_parameter(name)
            weight.grad = as_sharded(gradient.to(weight.device), like=weight)
        if getattr(trainer.train_dataloader, "recut", False) or _lightning.is_trained_with_other_length(trainer):
            _lightning.set_batch_counters(trainer)
        if _lightning.is_between_epochs(trainer):
            _lightning.start_as_new(trainer)
        elif _lightning.ready_batches(trainer):
            self._check_batches(trainer)
            _lightning.finish_restart(trainer)
            _lightning.skip_validation_if_not_due(trainer)
            _lightning.log_again(trainer, self._share.get("logged", []))

    def _check_batches(self, trainer: Trainer) -> None:
        """Raise UserError if the batch count per epoch or step changed. Warn if a loader cannot resume mid-epoch."""
        now, done = trainer.num_training_batches, _lightning.ready_batches(trainer)
        before, accumulation = self._loaded.get("accumulation"), trainer.accumulate_grad_batches
        is_scheduled = accumulation_schedule(trainer) is not None
        within = not trainer.is_last_batch and not is_scheduled  # the last batch of an epoch always completes a step
        if within and before not in (None, accumulation) and (done % before or done % accumulation):
            raise UserError(
                f"the run was stopped mid-epoch with trainer.accumulate_grad_batches={before}: resume with this value"
            )
        if (batches := self._loaded.get("batches")) not in (None, now):
            raise UserError(
                f"the run was stopped mid-epoch. An epoch had {batches} batches, but now has {now}. "
                "Resume the run with its original data, batch size and number of devices"
            )
        loaders = [] if trainer.is_last_batch else CombinedLoader(trainer.train_dataloader).flattened
        if not all(hasattr(loader, "state_dict") for loader in loaders):
            print_once("warning: the dataloader cannot resume mid-epoch, so it returns its first batches again")

    def finish_start(self, trainer: Trainer) -> None:
        """Restore the state that the module's own hooks may have changed at the start of training.

        Freeze the same parameters as when the run was stopped, unless the options now freeze different ones. The train
        and eval modes of submodules are restored in the same way. If the run was stopped before Lightning stepped
        ReduceLROnPlateau, step it now.
        """
        module, trainable = trainer.lightning_module, self._loaded.get("trainable", {})
        self._at_start = _training_state(module)  # after all hooks, because callbacks may freeze parameters
        restored = {name: now for name, (start, now) in trainable.items() if start == self._at_start.get(name)}
        for name, part in module.named_modules():
            part.training = restored.get(name, part.training)
            if isinstance(part, _lightning.BatchNorm):
                part.track_running_stats = restored.get(f"{name}.track_running_stats", part.track_running_stats)
        for name, weight in module.named_parameters():
            weight.requires_grad_(restored.get(name, weight.requires_grad))
        _lightning.wrap_again(trainer.strategy, module)
        _lightning.restore_metric_states(module, self._share.get("states", {}))
        if buffers := self._share.get("buffers"):
            _lightning.restore_buffers(trainer.strategy, module, buffers)
        if (changing := accumulation_schedule(trainer)) is not None:
            changing.on_train_epoch_start(trainer)  # Lightning does not call this hook when resuming mid-epoch
        if self._loaded.get("precedes_plateau", False):
            _lightning.step_plateau_schedules(trainer)
        self._loaded, self._share = {}, {}  # a later fit starts without a checkpoint

    def start_validation(self, trainer: Trainer) -> None:
        """Store the metric states, and load rank 0's buffers, so that validation matches the checkpoint."""
        module = trainer.lightning_module
        self._metrics = _lightning.metric_states(module)
        if _has_own_buffers(trainer):
            self._buffers = _batch_norm_buffers(module)
            _lightning.restore_buffers(trainer.strategy, module, trainer.strategy.broadcast(self._buffers))

    def end_validation(self, trainer: Trainer) -> None:
        """Restore this process's buffers, and discard the stored metric states."""
        self._metrics = None
        if _has_own_buffers(trainer):
            _lightning.restore_buffers(trainer.strategy, trainer.lightning_module, self._buffers)
            self._buffers = {}

    def keep_end(self, trainer: Trainer, moment: str) -> None:
        """Store the loop counters, because Lightning counts an epoch as complete even if it ends early.

        Also store logged values and metrics, because Lightning and the module reset them at the end of the epoch.
        """
        counters = _lightning.loop_state(trainer)
        _lightning.set_loop_counters(counters, moment)
        states = _lightning.metric_states(trainer.lightning_module)
        self.end = {"counters": counters, "logged": _lightning.logged_so_far(trainer), "states": states}

    def save(self, trainer: Trainer, checkpoint: dict[str, Any], moment: str) -> None:
        """Add this state to a checkpoint, and correct Lightning's loop counters.

        Args:
            trainer: the trainer.
            checkpoint: the checkpoint that Lightning is going to save.
            moment: when it is saved. `end` saves the state from `keep_end`. For other values, see `set_loop_counters`.
        """
        module = trainer.lightning_module
        checkpoint["metrics"] = {name: value.cpu() for name, value in trainer.callback_metrics.items()}
        if moment == "end" and self.end is not None:
            share = {name: self.end[name] for name in ("logged", "states")}
            checkpoint["loops"]["fit_loop"] = self.end["counters"]
            checkpoint["ended"] = {"steps": _lightning.logged_steps(trainer), "epochs": trainer.current_epoch}
        else:
            states = _lightning.metric_states(module) if self._metrics is None else self._metrics
            share = {"logged": _lightning.logged_so_far(trainer), "states": states}
            if not moment and (trainer.validating or _lightning.is_between_epochs(trainer)):
                share["ended"] = _lightning.logged_metrics(trainer)  # Lightning resets these metrics after saving
            _lightning.set_loop_counters(checkpoint["loops"]["fit_loop"], moment)
        share["combined_loader"] = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
        if _has_own_buffers(trainer):
            share["buffers"] = self._buffers or _batch_norm_buffers(module)
        checkpoint["logged_so_far"] = all_gathered([share], trainer)
        checkpoint["precedes_plateau"] = moment == "step"
        trainable = _training_state(module) | (_lightning.modes_in_training(trainer) if trainer.validating else {})
        checkpoint["trainable"] = {name: [self._at_start.get(name, now), now] for name, now in trainable.items()}
        if not isinstance(module, Task):
            checkpoint["optimization"] = self._optimization
            checkpoint["batches"] = trainer.num_training_batches
            checkpoint["accumulation"] = trainer.accumulate_grad_batches
        if not module.automatic_optimization:  # each optimizer may be accumulating gradients
            found = {name: weight.grad for name, weight in module.named_parameters() if weight.grad is not None}
            checkpoint["gradients"] = gather_full_tensors(found, trainer.is_global_zero)


def _training_state(module: LightningModule) -> dict[str, bool]:
    """Return which parameters are trainable, submodules are in train mode, and batch norms update their statistics."""
    parameters = {name: weight.requires_grad for name, weight in module.named_parameters()}
    modes = {name: part.training for name, part in module.named_modules()}
    # Lightning's fine-tuning callbacks change this flag when they freeze and unfreeze layers.
    updated = {
        f"{name}.track_running_stats": part.track_running_stats
        for name, part in module.named_modules()
        if isinstance(part, _lightning.BatchNorm)
    }
    return parameters | modes | updated


def _has_own_buffers(trainer: Trainer) -> bool:
    """Return whether each process keeps its own batch norm statistics. Otherwise, DDP synchronizes them."""
    return trainer.world_size > 1 and not trainer.lightning_module.automatic_optimization


def _batch_norm_buffers(module: LightningModule) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": buffer.cpu().clone()
        for name, part in module.named_modules()
        if isinstance(part, _lightning.BatchNorm)
        for key, buffer in part.named_buffers()
    }
