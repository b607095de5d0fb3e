"""Callback that saves `last.ckpt` and stops runs after signals, at points where resuming is exact."""

import copyreg
import math
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    ModelPruning,
    OnExceptionCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lit_engine import _lightning
from lit_engine.checkpoints.callback import Checkpoint, fast_dev_run
from lit_engine.data.module import accumulation_steps
from lit_engine.data.resumable import ResumableLoader, make_resumable, seed_everywhere
from lit_engine.data.sampler import Loader, global_seed
from lit_engine.distributed.processes import Maximum, all_gathered, replicas, warn_once
from lit_engine.distributed.sharding import total_norm
from lit_engine.errors import UserError
from lit_engine.training.changes import Snapshot, has_changed, take_snapshot
from lit_engine.training.extra_state import ExtraState
from lit_engine.training.out_of_memory import HINT, StepRepetition, is_out_of_memory
from lit_engine.training.plain import reduce_without_trainer, replace
from lit_engine.training.signals import Interrupted, Signals
from lit_engine.training.task import Task

ONE_SAMPLE = "batch norm cannot train on a batch of one sample: set --data.drop_last=true or change data.batch_size"
TRANSFER_HOOKS = ("on_before_batch_transfer", "on_after_batch_transfer")
# Hooks of the module, which are wrapped so that `Saver` runs after them.
LAST_HOOKS = ("on_train_start", "on_train_epoch_start", "on_train_batch_end", "on_validation_end")


class Saver(Callback):
    """Callback that saves `last.ckpt` when the run's `Checkpoint` requests it, and ends training after a signal.

    A resumed run is bit-identical to an uninterrupted one, because `last.ckpt` is only saved in these situations.

    - The run is between epochs, before the first epoch, or after the last epoch.
    - The run has finished an optimizer step that is not followed by a validation.
    - Validation is about to start or is running. A resumed run repeats this validation from its start. If validation
      has changed weights, buffers, or the state of another callback or of the data module, this callback waits until
      validation ends. It also waits if the module saves its own state in `on_save_checkpoint`.

    If a step of `global_batch_size` samples runs out of memory, a resumed run repeats it with smaller micro-batches.

    If training ends mid-epoch (`max_steps`, `max_time`, early stopping), the state after the last step is saved.

    At the start of an epoch, the callback runs before all others, so that it can save the previous epoch. At the end of
    a step, the callback runs after all other hooks, including the task's hook. All processes agree on each decision.

    The command line adds this callback.

    Args:
        signals: handlers of the signals that may end the run.
    """

    def __init__(self, signals: Signals | None = None) -> None:
        self.signals, self._owns_signals = signals or Signals(), signals is None
        self.checkpoint: Checkpoint | None = None
        self.state = ExtraState()
        self._moment = ""  # kind of the current save, such as `epoch` or `validation`
        self._saved_at, self._saved = monotonic(), (-1, -1, "")  # optimizer step, batch and kind of the last save
        self._trained = False  # False for a finished run, which is not saved again
        self._stops_later = False  # whether a stop was requested within an accumulation window
        self._seeds_batches = False  # whether random numbers in a step are seeded here, not by the task or the loader
        self._seeds_transfer = False  # whether the hooks that transfer a batch to the device are seeded here
        self._before_validation: Snapshot | None = None  # the state when the current validation started
        self._unequal = False  # whether processes have different numbers of validation batches
        self.repetition = StepRepetition()
        self._flags: Maximum | None = None  # whether any process requested a stop or a save in the last step

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._restore_random_states = _lightning.keep_random_states()
        _lightning.skip_batches_of_evaluation(trainer)
        _lightning.disable_requeue(trainer)  # Lightning would requeue the SLURM job with a checkpoint of its own
        _lightning.process_loaders(trainer.strategy, lambda loader: make_resumable(loader, trainer))
        if trainer.datamodule is not None:  # type: ignore[attr-defined]
            copyreg.pickle(type(trainer.datamodule), reduce_without_trainer)  # type: ignore[attr-defined]
        if stage != "fit":
            return
        if self._owns_signals:
            self.signals.number = 0  # a signal may have ended an earlier fit
        _lightning.reload_in_same_epochs(trainer)
        _lightning.note_trainable(trainer.strategy, pl_module)
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        if any(isinstance(one, StochasticWeightAveraging) for one in callbacks):
            raise UserError(
                "StochasticWeightAveraging omits the averaged weights from last.ckpt and cannot resume exactly: "
                "use the overlay configs/overlays/swa.yaml instead"
            )
        if any(isinstance(one, OnExceptionCheckpoint) for one in callbacks):
            raise UserError(
                "OnExceptionCheckpoint makes Lightning start new runs from the file of a failed run: "
                "remove it, because failed runs continue from last.ckpt"
            )
        if any(isinstance(one, ModelPruning) for one in callbacks):
            warn_once("warning: ModelPruning omits its masks from last.ckpt, so a resumed run differs")
        if not fast_dev_run(trainer):
            self.checkpoint = next((one for one in callbacks if isinstance(one, Checkpoint)), None)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.state.prepare(trainer)

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._defer()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._defer()
        _lightning.skip_sigterm_broadcast(trainer)
        _lightning.shorten_steps(trainer)
        self._saved_at, self._saved, self._flags = monotonic(), (trainer.global_step, -1, ""), None
        self.repetition.start(trainer, pl_module, can_save=self.checkpoint is not None)
        loaders = CombinedLoader(trainer.train_dataloader).flattened
        seeded = isinstance(pl_module, Task) or all(isinstance(one, ResumableLoader) for one in loaders)
        self._seeds_batches = not seeded
        owners = pl_module, trainer.datamodule  # type: ignore[attr-defined]
        hooks = [getattr(type(one), hook, None) for one in owners for hook in TRANSFER_HOOKS]
        own = any(one and not one.__module__.startswith(("lightning.", "lit_engine.")) for one in hooks)
        self._seeds_transfer = own and not all(isinstance(one, ResumableLoader) for one in loaders)
        self.state.start(trainer)
        looks = self.after_start, self.after_epoch_start, self.after_step, self.after_validation
        for name, look in zip(LAST_HOOKS, looks, strict=True):
            replace(pl_module, name, _call_after(getattr(pl_module, name), look, trainer))

    def after_start(self, trainer: Trainer) -> None:
        self.state.finish_start(trainer)
        self._seed_transfer(trainer)

    def after_epoch_start(self, trainer: Trainer) -> None:
        """Make DDP average the gradients of parameters that a callback such as BackboneFinetuning has just unfrozen."""
        _lightning.wrap_again(trainer.strategy, trainer.lightning_module)

    def _defer(self) -> None:
        self.signals.install()
        self.signals.deferred = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained = True
        self._seed(trainer, "epoch")
        number, due = self._agree(trainer)
        every: int = getattr(self.checkpoint, "every_n_epochs", 0)
        is_scheduled = every > 0 and trainer.current_epoch % every == 0
        if number or due or is_scheduled:
            self._save_epoch(trainer, keep=is_scheduled)
        if number:
            raise Interrupted(number)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._seeds_batches:
            seed_everywhere(global_seed(), "batch", trainer.current_epoch, batch_idx, replicas(trainer).rank)
        self.repetition.start_batch(trainer, pl_module, batch_idx)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self.repetition.start_update()

    def after_step(self, trainer: Trainer) -> None:
        """Save if a save is due, and stop after a signal. Both wait until gradient accumulation is complete."""
        self._seed_transfer(trainer)
        if trainer.is_last_batch and isinstance(trainer.train_dataloader, Loader):
            trainer.train_dataloader.position = 0  # even if `limit_train_batches` ended the epoch
        if self._postpone_stop(trainer):
            return
        number, due = self._agree(trainer, late=True)
        self.state.end, cut_short = None, ends_mid_epoch(trainer)
        if not (number or due or cut_short):
            return
        validates = _lightning.will_validate(trainer)
        _lightning.log_step(trainer)
        # `last.ckpt` is saved at the end of the epoch instead, or after the run's last validation.
        if trainer.is_last_batch and (not validates or is_stopped(trainer)):
            return
        moment = "validation" if validates else "step"
        if cut_short:
            self.state.keep_end(trainer, moment)
        else:
            self._save(trainer, moment)
            if number:
                raise Interrupted(number)

    def after_validation(self, trainer: Trainer) -> None:
        self._seed_transfer(trainer)
        if not self._postpone_stop(trainer) and ends_mid_epoch(trainer) and self.state.end is None:
            self.state.keep_end(trainer, "validated")

    def _postpone_stop(self, trainer: Trainer) -> bool:
        """Return whether Lightning is accumulating gradients, which are not saved. If so, postpone stopping."""
        self._trained, within = True, is_within_step(trainer)
        stops = self._stops_later or trainer.should_stop
        self._stops_later = stops and within
        if stops:
            trainer.should_stop = not within
        return within

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.state.start_validation(trainer)
            if self.checkpoint is not None and not trainer.sanity_checking:
                self._before_validation = take_snapshot(trainer, pl_module)
            counts = all_gathered([trainer.num_val_batches], trainer)
            self._unequal = math.inf in counts[0] or any(one != counts[0] for one in counts)
            self._seed(trainer, "validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self.state.end_validation(trainer)

    def _seed_transfer(self, trainer: Trainer) -> None:
        """Seed the hooks that may augment the next batch on the device. A `ResumableLoader` does this itself."""
        if self._seeds_transfer:
            place = trainer.current_epoch, _lightning.ready_batches(trainer), replicas(trainer).rank
            seed_everywhere(global_seed(), "transfer", *place)

    def _seed(self, trainer: Trainer, moment: str) -> None:
        """Make random numbers in hooks and in validation depend only on the seed, the step and the replica."""
        seed_everywhere(global_seed(), moment, trainer.global_step, replicas(trainer).rank)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        # Processes with different numbers of batches would wait for each other forever.
        unequal = trainer.world_size > 1 and self._unequal
        if trainer.state.fn != "fit" or unequal or is_within_step(trainer):
            return
        number, due = self._agree(trainer)
        if is_stopped(trainer):  # This is the last validation. A resumed run would not repeat it.
            return
        can_stop = (number or due) and (trainer.sanity_checking or self._save_within_validation(trainer, pl_module))
        if number and can_stop:
            raise Interrupted(number)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _unwrap_hooks(pl_module)
        self.signals.number, _ = self._agree(trainer)
        if self._trained and self.state.end is not None:
            self._save(trainer, "end")
        elif self._trained:
            self._save_epoch(trainer)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._restore_random_states()  # see `Task.teardown`

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Add notes that say where the error occurred and how to fix two common errors."""
        _unwrap_hooks(pl_module)
        if isinstance(exception, Interrupted | KeyboardInterrupt) or not self.signals.deferred:
            return
        self.signals.deferred = False
        if is_out_of_memory(exception) and (moment := self.repetition.rewind(trainer, pl_module)):
            self._save(trainer, moment)
            self.repetition.accumulation = 2 * trainer.accumulate_grad_batches  # not if saving failed
        started = _lightning.ready_batches(trainer)
        where = f"batch {started - 1}" if started else "before the first batch"
        exception.add_note(f"in epoch {trainer.current_epoch}, step {trainer.global_step}, {where}")
        if is_out_of_memory(exception):
            exception.add_note(HINT)
        elif "more than 1 value per channel" in str(exception):
            exception.add_note(ONE_SAMPLE)

    def _agree(self, trainer: Trainer, late: bool = False) -> tuple[int, bool]:
        """Return the highest signal number of any rank, and whether rank 0's clock or the step count requires a save.

        With `late` and several processes, the result is from the previous step, so that no step waits for the device.
        Signals and required saves are not lost, because they stay pending until they are handled.
        """
        number, due, every = self.signals.number, False, None
        if self.checkpoint is not None:
            due, every = monotonic() - self._saved_at >= self.checkpoint.seconds, self.checkpoint.every_n_steps
        if trainer.world_size > 1:
            now = Maximum(2 * number + (due and trainer.is_global_zero), trainer.strategy.root_device)
            flags = self._flags if late else now
            number, asked = divmod(flags.read() if flags else 0, 2)
            due = bool(asked)
            self._flags = None if number or due else now
        # With several optimizers, the number of steps may skip a multiple of `every`.
        due = due or (every is not None and trainer.global_step // every > self._saved[0] // every)
        return number, bool(due)

    def _save(self, trainer: Trainer, moment: str) -> None:
        """Write `last.ckpt`. If writing fails, the previous file remains intact."""
        now = trainer.global_step, _lightning.ready_batches(trainer), moment
        if self.checkpoint is None or self._saved == now:
            return
        if not _has_finite_weights(trainer.lightning_module):
            raise UserError(
                f"epoch {trainer.current_epoch}, step {trainer.global_step}: weights are not finite. "
                "last.ckpt was not replaced. Lower the learning rate, or add a warm-up or trainer.gradient_clip_val. "
                "The NaNGuard callback reports the step and the samples"
            )
        self._moment = moment
        trainer.save_checkpoint(Path(str(self.checkpoint.dirpath)) / "last.ckpt", weights_only=False)
        self._moment = ""
        self._saved_at, self._saved = monotonic(), now

    def _save_epoch(self, trainer: Trainer, keep: bool = True) -> None:
        self._save(trainer, "epoch")
        if self.checkpoint is not None and keep:
            self.checkpoint.keep_epoch(trainer)

    def _save_within_validation(self, trainer: Trainer, pl_module: LightningModule) -> bool:
        """Save unless validation has changed state that would be saved. Return whether the state is unchanged."""
        averages = [one for one in trainer.callbacks if isinstance(one, WeightAveraging)]  # type: ignore[attr-defined]
        for one in averages:  # averaged weights replace the trained weights during validation
            _lightning.swap_average(one, pl_module)
        changed = has_changed(self._before_validation, trainer, pl_module)
        if not changed:
            self._save(trainer, "validation")
        for one in averages:
            _lightning.swap_average(one, pl_module)
        return not changed

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.state.save(trainer, checkpoint, self._moment)
        for logger in trainer.loggers:
            if hasattr(logger, "rows_to_restore"):
                checkpoint["metrics_csv"] = logger.rows_to_restore()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        _lightning.reconfigure(trainer, num_sanity_val_steps=0)  # the original run already passed the sanity check
        self.state.load(trainer, checkpoint)
        for logger in trainer.loggers:
            if hasattr(logger, "restore_rows") and trainer.state.fn == "fit" and trainer.is_global_zero:
                logger.restore_rows(checkpoint.get("metrics_csv"))


def _unwrap_hooks(pl_module: LightningModule) -> None:
    for name in LAST_HOOKS:
        vars(pl_module).pop(name, None)


def _call_after(hook: Callable[..., Any], look: Callable[[Trainer], None], trainer: Trainer) -> Callable[..., Any]:
    def hook_and_look(*args: Any) -> Any:
        found = hook(*args)
        look(trainer)
        return found

    return hook_and_look


def _has_finite_weights(module: LightningModule) -> bool:
    """Return whether all trainable weights are finite. Frozen weights may be masks that contain infinity."""
    return bool(total_norm(weight.data for weight in module.parameters() if weight.requires_grad).isfinite())


def is_stopped(trainer: Trainer) -> bool:
    """Return whether a requested stop ends training now. A stop takes effect only after min_epochs and min_steps."""
    may_stop = trainer.should_stop and trainer.current_epoch >= (trainer.min_epochs or 0)
    return may_stop and trainer.global_step >= (trainer.min_steps or 0)


def ends_mid_epoch(trainer: Trainer) -> bool:
    """Return whether training ends after this step, although the epoch has more batches."""
    return not trainer.is_last_batch and (is_stopped(trainer) or 0 < trainer.max_steps <= trainer.global_step)


def is_within_step(trainer: Trainer) -> bool:
    """Return whether gradients are being accumulated for a later optimizer step."""
    return not trainer.is_last_batch and _lightning.ready_batches(trainer) % accumulation_steps(trainer) != 0
