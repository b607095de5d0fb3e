"""When `last.ckpt` is saved and how a signal ends a run: always at a moment from which training continues exactly."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.utilities.combined_loader import CombinedLoader

from lit_engine._lightning import (
    add_to_logged,
    batch_index,
    disable_requeue,
    finish_restart,
    is_between_epochs,
    log_again,
    log_step,
    logged_so_far,
    logged_steps,
    loop_state,
    metric_states,
    process_loaders,
    ready_batches,
    restore_metric_states,
    set_batch_counters,
    set_loop_counters,
    set_should_stop,
    skip_sanity_check,
    start_as_new,
    swap_average,
    will_validate,
)
from lit_engine.checkpoints.callback import Checkpoint, fast_dev_run
from lit_engine.data.module import accumulation_steps
from lit_engine.data.resumable import make_resumable, seed_everywhere
from lit_engine.data.sampler import global_seed
from lit_engine.distributed.processes import SIGNALS, all_gathered, all_reduced, is_first, print_once
from lit_engine.distributed.sharding import total_norm
from lit_engine.errors import CheckpointError, UserError
from lit_engine.training.task import Task

OUT_OF_MEMORY = (
    "out of memory: half the data.batch_size and twice the trainer.accumulate_grad_batches (the latter alone with "
    "data.global_batch_size) train the same in half of it; trainer.precision=bf16-mixed takes less, too"
)
ONE_SAMPLE = "batch norm cannot train on a batch of one sample: --data.drop_last=true, or another data.batch_size"
LAST_HOOKS = ("on_train_batch_end", "on_validation_end")  # of the task: after them `Saver` looks


class Interrupted(BaseException):
    """A signal ended the command; `status` is the exit status that a shell would give it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


class Signals:
    """Receives the signals that end a run: Ctrl-C, SIGTERM, SIGUSR1, SIGHUP.

    Outside of a training they raise Interrupted at once. Within it they are `deferred` until the next moment at which
    it can be saved; a second Ctrl-C does not wait. What was ignored when the process began (`nohup`) stays so.

    Attributes:
        number: the first signal; 0 before any.
        deferred: whether the training asks by itself.
    """

    def __init__(self) -> None:
        self.number, self.deferred = 0, False
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Replaces the handlers; again after Lightning has put its own in front."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN and handler != self.receive:
                self._before.setdefault(number, handler)
                signal.signal(number, self.receive)

    def remove(self) -> None:
        """Puts the earlier handlers back."""
        while self._before:
            signal.signal(*self._before.popitem())

    def receive(self, number: int, frame: FrameType | None) -> None:
        again = number == self.number == signal.SIGINT
        self.number = self.number or number
        if again or not self.deferred:
            raise Interrupted(number)
        if number == signal.SIGINT and is_first():  # print may be at work right now
            os.write(2, b"\nfinishing this step and saving; Ctrl-C again stops at once\n")


class Saver(Callback):
    """Saves `last.ckpt` as the run's `Checkpoint` says, and ends the training after a signal.

    There are three moments from which a resumed training is the same to the bit, and `last.ckpt` is of no other:

    - between epochs: before the first one, after each, and after the last;
    - after an optimizer step that no validation follows;
    - before and within a validation, which is then repeated from its start.

    A training that ends within an epoch (`max_steps`, `max_time`, early stopping) is saved as it was after that step.

    It comes before other callbacks, which have not begun an epoch when it saves the one before, and looks at a step
    after the last of its hooks, which is the task's. Several processes agree on each decision.

    The command line has one; your own `Trainer` takes `callbacks=[Saver(), Checkpoint(…)]`.

    Args:
        signals: what may end the run.
    """

    def __init__(self, signals: Signals | None = None) -> None:
        self.signals = signals or Signals()
        self.checkpoint: Checkpoint | None = None
        self._moment = ""  # of the checkpoint that is being saved: epoch, step, validation
        self._saved_at, self._saved = monotonic(), (-1, "")  # optimizer step and moment
        self._trained = False  # a run that has ended is left as it is
        self._stops_later = False  # a stop that was asked for within a window of accumulated gradients
        self._cut_short = False  # whether the training ends within an epoch
        self._counters: dict[str, Any] | None = None  # of Lightning's loops, where it does
        self._within_epoch = False  # whether a run that is resumed had ended so
        self._failed = False  # whether it was said that a save failed
        self._metrics: dict[str, Any] = {}
        self._processes_loaders = False
        self._logged: list[dict[str, Any]] = []  # before a resume, until the first batch has been logged
        self._batches: int | None = None  # in the epoch in which the run was stopped
        self._states: dict[str, Any] | None = None  # of torchmetrics at the start of a validation, which is repeated

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        disable_requeue(trainer)  # its checkpoint would be one that no resume looks for
        if not self._processes_loaders:
            process_loaders(trainer.strategy, lambda loader: make_resumable(loader, trainer))
            self._processes_loaders = True
        found = [one for one in trainer.checkpoint_callbacks if isinstance(one, Checkpoint)]
        if stage == "fit" and found and not fast_dev_run(trainer):
            self.checkpoint = found[0]

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._defer()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Lets a run continue between two epochs as a new one would begin them, with the newest metrics known."""
        self._defer()
        self._saved_at = monotonic()
        trainer.callback_metrics.update(self._metrics)
        if is_between_epochs(trainer):
            start_as_new(trainer)
        if getattr(trainer.train_dataloader, "recut", False):
            set_batch_counters(trainer)
        if ready_batches(trainer) and not is_between_epochs(trainer):
            self._check_loader(trainer)
            finish_restart(trainer)
            log_again(trainer, self._logged)
        for name, look in zip(LAST_HOOKS, (self.after_step, self.after_validation), strict=True):
            setattr(pl_module, name, _call_after(getattr(pl_module, name), look, trainer))

    def _check_loader(self, trainer: Trainer) -> None:
        """Raises UserError if a run cannot continue within an epoch of an ordinary DataLoader."""
        now = trainer.num_training_batches
        if self._batches not in (None, now):
            raise UserError(
                f"the run was stopped within an epoch of {self._batches} batches, and would continue in one of {now}: "
                "resume it with the batch size, the data and the number of devices that it had"
            )
        if not all(hasattr(loader, "state_dict") for loader in CombinedLoader(trainer.train_dataloader).flattened):
            print_once(
                "warning: the training data cannot continue within an epoch: they start over, from their first batch"
            )

    def _defer(self) -> None:
        self.signals.install()
        self.signals.deferred = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._trained, self._logged = True, []
        self._seed(trainer, "epoch")
        number, due = self._agreed(trainer)
        every = self.checkpoint and self.checkpoint.every_n_epochs
        if number or due or (every and trainer.current_epoch % every == 0):
            self._save_epoch(trainer)
        if number:
            raise Interrupted(number)

    def after_step(self, trainer: Trainer) -> None:
        """Saves if it is due, and leaves if a signal asks for it; both wait for the gradients being accumulated."""
        if self._logged:
            add_to_logged(trainer, self._logged)
            self._logged = []
        if self._postpone_stop(trainer):
            return
        number, due = self._agreed(trainer)
        self._counters = None
        if not (number or due or self._cut_short):
            return
        validates = will_validate(trainer)
        log_step(trainer)
        if trainer.is_last_batch and not validates:
            return  # the epoch ends at once
        moment = "validation" if validates else "step"
        if self._cut_short:
            self._keep_counters(trainer, moment)
        else:
            self._save(trainer, moment, may_fail=due and not number)
            if number:
                raise Interrupted(number)

    def after_validation(self, trainer: Trainer) -> None:
        if not self._postpone_stop(trainer) and self._cut_short and self._counters is None:
            self._keep_counters(trainer, "validated")

    def _keep_counters(self, trainer: Trainer, moment: str) -> None:
        """Keeps the counters of a training that ends within an epoch, which Lightning then counts as whole."""
        self._counters = loop_state(trainer)
        set_loop_counters(self._counters, moment)

    def _postpone_stop(self, trainer: Trainer) -> bool:
        """Delays a stop until the accumulation window ends: checkpoints hold no gradients. Whether one is open."""
        last = trainer.is_last_batch
        self._trained = True
        within = ready_batches(trainer) % accumulation_steps(trainer) != 0 and not last
        stops = self._stops_later or trainer.should_stop
        self._stops_later = stops and within
        if stops:
            set_should_stop(trainer, not within)
        self._cut_short = will_end(trainer) and not last
        return within

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            self._states = metric_states(pl_module)
            self._seed(trainer, "validation")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._states = None

    def _seed(self, trainer: Trainer, moment: str) -> None:
        """Lets random draws in hooks depend on the seed and the step; a task seeds each step by itself."""
        if not isinstance(trainer.lightning_module, Task):
            seed_everywhere(global_seed(), moment, trainer.global_step, trainer.global_rank)

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if trainer.state.fn != "fit":
            return
        number, due = self._agreed(trainer)
        if (number or due) and not trainer.sanity_checking:
            self._save_within_validation(trainer, pl_module, may_fail=not number)
        if number:
            raise Interrupted(number)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        _unwrap_hooks(pl_module)
        self.signals.number, _ = self._agreed(trainer)
        if self._trained and self._counters is not None:
            self._save(trainer, "cut short")
        elif self._trained:
            self._save_epoch(trainer)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        ended = not self._trained and not self._within_epoch
        if ended and self.checkpoint is not None:  # it may have been killed before it was kept
            self.checkpoint.keep_epoch(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Says where it happened, and for two common errors what helps."""
        _unwrap_hooks(pl_module)
        if isinstance(exception, Interrupted | KeyboardInterrupt) or not self.signals.deferred:
            return
        self.signals.deferred = False
        batch = batch_index(trainer)
        where = f"batch {batch}" if batch >= 0 else "before the first batch"
        exception.add_note(f"in epoch {trainer.current_epoch}, step {trainer.global_step}, {where}")
        if isinstance(exception, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(exception):
            exception.add_note(OUT_OF_MEMORY)
        elif "more than 1 value per channel" in str(exception):
            exception.add_note(ONE_SAMPLE)

    def _agreed(self, trainer: Trainer) -> tuple[int, bool]:
        """The signal that any process got, and whether a save is due by the clock of the first or by the steps."""
        number, due = self.signals.number, False
        if self.checkpoint is not None:
            due = monotonic() - self._saved_at >= self.checkpoint.seconds
            every = self.checkpoint.every_n_steps
            due |= every is not None and trainer.global_step % every == 0 and trainer.global_step != self._saved[0]
        if trainer.world_size > 1:
            flags = torch.tensor([number, due and trainer.is_global_zero], device=trainer.strategy.root_device)
            number, due = all_reduced(flags, "MAX").tolist()
        return int(number), bool(due)

    def _save(self, trainer: Trainer, moment: str, may_fail: bool = False) -> None:
        """Writes `last.ckpt`; if it `may_fail`, training continues without, and the earlier file stays."""
        if self.checkpoint is None or self._saved == (trainer.global_step, moment):
            return
        if not _finite(trainer.lightning_module):
            raise UserError(
                f"epoch {trainer.current_epoch}, step {trainer.global_step}: weights are not finite; last.ckpt stays "
                "as it was. Lower the learning rate, add a warm-up or trainer.gradient_clip_val; the callback NaNGuard "
                "names the step and the samples"
            )
        self._moment = moment
        try:
            trainer.save_checkpoint(Path(str(self.checkpoint.dirpath)) / "last.ckpt", weights_only=False)
            self._saved = trainer.global_step, moment
        except (CheckpointError, OSError) as error:
            if not may_fail:
                raise
            trainer.strategy.barrier()  # that which the others wait at
            if not self._failed:
                print(f"warning: {error}; training continues", file=sys.stderr, flush=True)
            self._failed = True
        finally:
            self._moment = ""
            self._saved_at = monotonic()

    def _save_epoch(self, trainer: Trainer) -> None:
        self._save(trainer, "epoch")
        if self.checkpoint is not None:
            self.checkpoint.keep_epoch(trainer)

    def _save_within_validation(self, trainer: Trainer, pl_module: LightningModule, may_fail: bool) -> None:
        averages = [one for one in trainer.callbacks if isinstance(one, WeightAveraging)]  # type: ignore[attr-defined]
        for one in averages:  # which are in the net's place while it is validated
            swap_average(one, pl_module)
        self._save(trainer, "validation", may_fail)
        for one in averages:
            swap_average(one, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Sets Lightning's counters to the moment; unchanged, some would resume elsewhere or not at all."""
        checkpoint["metrics"] = {name: value.cpu() for name, value in trainer.callback_metrics.items()}
        if not isinstance(pl_module, Task):
            states = metric_states(pl_module) if self._states is None else self._states
            own = {"logged": logged_so_far(trainer), "states": states}
            checkpoint["logged_so_far"] = all_gathered([own], trainer)
            checkpoint["batches"] = trainer.num_training_batches
        if self._moment == "cut short":
            checkpoint["loops"]["fit_loop"] = self._counters
            checkpoint["ended"] = {"steps": logged_steps(trainer), "epochs": trainer.current_epoch}
        elif self._moment:
            set_loop_counters(checkpoint["loops"]["fit_loop"], self._moment)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._metrics, self._within_epoch = checkpoint.get("metrics", {}), "ended" in checkpoint
        skip_sanity_check(trainer)
        shares, rank = checkpoint.get("logged_so_far", []), trainer.global_rank
        if trainer.state.fn == "fit" and len(shares) == trainer.world_size:
            self._logged = shares[rank]["logged"]
            restore_metric_states(pl_module, shares[rank]["states"])
        self._batches = checkpoint.get("batches")


def _unwrap_hooks(pl_module: LightningModule) -> None:
    for name in LAST_HOOKS:
        vars(pl_module).pop(name, None)


def _call_after(hook: Callable[..., Any], look: Callable[[Trainer], None], trainer: Trainer) -> Callable[..., Any]:
    def hook_and_look(*args: Any) -> Any:
        found = hook(*args)
        look(trainer)
        return found

    return hook_and_look


def _finite(module: LightningModule) -> bool:
    """Whether all weights are numbers."""
    weights = [weight.data for weight in module.parameters() if weight.is_floating_point()]
    return not weights or bool(total_norm(weights).isfinite())


def will_end(trainer: Trainer) -> bool:
    """Whether the training is to end here; a stop that comes before min_epochs or min_steps has to wait for them."""
    step = trainer.global_step
    may_stop = trainer.should_stop and trainer.current_epoch >= (trainer.min_epochs or 0)
    return (may_stop and step >= (trainer.min_steps or 0)) or step == trainer.max_steps
