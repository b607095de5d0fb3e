"""Progress display with one line per epoch and, in a terminal, a live bar below the lines.

The lines show exact epoch means over all processes. Only the first process shows a bar, with its own means so far.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from lit_engine._lightning import has_validated, logged_values
from lit_engine.callbacks.record import RATE, best_checkpoint, join_metrics, monitored_metrics
from lit_engine.data.module import accumulation_steps
from lit_engine.data.sampler import Loader
from lit_engine.distributed.processes import print_once, replicas
from lit_engine.run.metric_names import COUNTERS, is_detail, recorded_name, split_stage
from lit_engine.training.exact import Totals, totals_of
from lit_engine.training.signals import Signals

if TYPE_CHECKING:
    from rich.console import RenderableType


def collect_progress_metrics(trainer: Trainer, pl_module: LightningModule, running: Totals | None) -> dict[str, float]:
    """Return the mean training metrics from `running`, and the latest headline and monitored validation metrics."""
    values = {f"train/{name}": value for name, value in running.means().items()} if running else {}
    known = trainer.callback_metrics
    for name in (*(f"val/{name}" for name in getattr(pl_module, "headline_metrics", ())), *monitored_metrics(trainer)):
        if name in known and split_stage(name)[0] != "train":
            values[name] = known[name].item()
    return values


class ProgressLines(Callback):
    """Progress display with one line per epoch. If the epoch is the best so far, its line ends with `best`."""

    def __init__(self) -> None:
        self._start = 0.0
        self._validated: dict[str, float] | None = None  # the metrics of the latest validation
        self._best: float | None = None  # best value of the monitored metric, negated if higher is better
        self._improved = False  # whether the metric improved in this epoch, which may have several validations

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callback = best_checkpoint(trainer)
        if callback is not None and callback.best_model_score is not None:  # the run was resumed
            self._best = float(callback.best_model_score) * (-1 if callback.mode == "max" else 1)
        self._start = perf_counter()  # on_train_epoch_start is not called when a run resumes mid-epoch
        if line := summary(trainer):
            print_once(line)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._validated = {recorded_name(name, "val"): value for name, value in _logged_metrics(trainer).items()}
            self._improved |= self._update_best(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        values = {
            n: value for n, value in _logged_metrics(trainer).items() if n not in COUNTERS and not RATE.fullmatch(n)
        }
        running = totals_of(pl_module)  # sums of this process only
        if running:
            values |= collect_progress_metrics(trainer, pl_module, running.reduce(pl_module))
        else:
            values |= self._validated or {}
        validated = has_validated(trainer)
        kept = {n: v for n, v in values.items() if validated or split_stage(n)[0] != "val"}
        seconds = perf_counter() - self._start
        if validated and self._validated is not None:  # a fork may start in an epoch that only its parent validated
            self._improved |= self._update_best(trainer)  # a training metric may be monitored
        mark, self._improved = "  best" if self._improved else "", False
        print_once(f"{epoch_of(trainer)}  {join_metrics(kept, pl_module)}  {seconds:.1f} s{mark}")

    def _update_best(self, trainer: Trainer) -> bool:
        """Update the best value of the monitored metric, and return whether it has improved."""
        callback = best_checkpoint(trainer)
        if callback is None:
            return False
        value = trainer.callback_metrics.get(str(callback.monitor))
        new = math.nan if value is None else value.item() * (-1 if callback.mode == "max" else 1)
        is_best = not math.isnan(new) and (self._best is None or new < self._best)
        is_best = trainer.strategy.reduce_boolean_decision(is_best)  # as in Lightning's ModelCheckpoint
        if is_best:
            self._best = new
        return is_best


def _logged_metrics(trainer: Trainer) -> dict[str, float]:
    """Return the metrics that the current stage has logged, without details such as per-class metrics."""
    return {name: value.item() for name, value in logged_values(trainer).items() if not is_detail(name)}


def epoch_of(trainer: Trainer) -> str:
    """Return the current epoch, counted from 0 as in checkpoint names and metrics.csv, and the number of epochs."""
    known = f" of {trainer.max_epochs}" if trainer.max_epochs and trainer.max_epochs > 0 else ""
    return f"epoch {trainer.current_epoch} ({trainer.current_epoch + 1}{known})"


def summary(trainer: Trainer) -> str:
    """Return a line with the number of classes and samples, the length of the run, the device and the precision."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    classes = getattr(data, "num_classes", None)
    sizes = [_count_samples(trainer.train_dataloader), _count_samples(trainer.val_dataloaders)]
    named = " + ".join(f"{size:,} {what}" for size, what in zip(sizes, ("train", "val"), strict=True) if size)
    about = [f"{named} samples" if named else "", f"{classes} classes" if isinstance(classes, int) else ""]
    parts = [", ".join(filter(None, about))]
    batches = trainer.num_training_batches
    if batches != float("inf"):
        steps = max(1, -(-int(batches) // accumulation_steps(trainer)))
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
        limit = f"at most {trainer.max_steps:,} steps" if trainer.max_steps > 0 else ""
        each = f"{steps:,} step{'s' * (steps != 1)}"
        parts += [
            f"{epochs} epoch{'s' * (epochs != 1)} × {each}" if epochs else f"{each} per epoch",
            limit,
        ]
    devices = f"{trainer.world_size} × " if trainer.world_size > 1 else ""
    parts += [f"{devices}{trainer.strategy.root_device.type}, {trainer.precision}"]
    return "; ".join(filter(None, parts))


def _count_samples(loaders: Any) -> int:
    """Return the number of samples in a single dataloader, or 0 if the number is unknown."""
    loader = loaders[0] if isinstance(loaders, list) and len(loaders) == 1 else loaders
    if isinstance(loader, Loader):
        return loader.sampler.size
    try:
        return len(loader.dataset)
    except (AttributeError, TypeError, NotImplementedError):
        return 0


SECONDS = 0.25  # minimum time between refreshes. A refresh takes about as long as a small training step.


class TerminalProgress(ProgressLines):
    """Progress display for terminals, with a bar and the current metrics below the lines of `ProgressLines`.

    The bar shows the remaining time of the whole fit, the training speed and the learning rate. It disappears when the
    command ends. If a signal is received, the bar is replaced by the message that `signals` prints.
    """

    def __init__(self, signals: Signals) -> None:
        super().__init__()
        self.signals = signals
        self._live: Any = None
        self._next = 0.0
        self._first = (0.0, 0.0)  # time and completed fraction of the fit at this process's first batch
        self._epoch = (0.0, 0)  # time and sample count at the first batch of the epoch in this process

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        now = perf_counter()
        if not self._first[0]:
            self._first = now, _progress(trainer, batch_idx)
        if not self._epoch[0]:
            running = totals_of(pl_module)
            self._epoch = now, int(running.count) if running else batch_idx

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = perf_counter()
        if now < self._next and not trainer.is_last_batch:
            return
        rates = (group.get("lr") for optimizer in trainer.optimizers for group in optimizer.param_groups)
        rate = next(rates, None)  # None if `configure_optimizers` returns None
        facts = [self._remaining(trainer, batch_idx + 1, now), self._speed(trainer, pl_module, batch_idx + 1, now)]
        facts += [] if rate is None else [f"lr {rate:.3g}"]
        values = collect_progress_metrics(trainer, pl_module, totals_of(pl_module)) | trainer.progress_bar_metrics
        metrics = join_metrics({name: float(value) for name, value in values.items()}, pl_module)
        self._show(epoch_of(trainer), batch_idx + 1, trainer.num_training_batches, facts, metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epoch = 0.0, 0
        super().on_train_epoch_end(trainer, pl_module)

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0
    ) -> None:  # fmt: skip
        if not trainer.sanity_checking and perf_counter() >= self._next:
            if trainer.testing:
                stage, batches = "test", trainer.num_test_batches
            elif trainer.predicting:
                stage, batches = "predict", trainer.num_predict_batches
            else:
                stage, batches = "validation", trainer.num_val_batches
            self._show(stage, batch_idx + 1, batches[dataloader_idx], [], "")

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def _remaining(self, trainer: Trainer, batches: int, now: float) -> str:
        """Return the estimated time until the end of the fit, extrapolated from this process's progress so far."""
        start, before = self._first
        done = _progress(trainer, batches)
        if done <= before:
            return ""
        seconds = round((now - start) / (done - before) * max(1 - done, 0))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"

    def _speed(self, trainer: Trainer, pl_module: LightningModule, batches: int, now: float) -> str:
        start, before = self._epoch
        running = totals_of(pl_module)
        count, unit = (int(running.count), getattr(pl_module, "unit", "")) if running else (batches, "batches")
        count -= before
        return f"{count * replicas(trainer).size / max(now - start, 1e-9):,.0f} {unit}/s"

    def _show(self, label: str, done: int, total: float, facts: list[str], metrics: str) -> None:
        self._next = perf_counter() + SECONDS
        if self._live is None:
            from rich.live import Live

            self._live = Live(auto_refresh=False, transient=True)
            self._live.start()
        self.signals.is_bar_shown = True
        self._live.update(display(label, done, total, facts, metrics), refresh=True)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live, self.signals.is_bar_shown = None, False

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._stop()


def _progress(trainer: Trainer, batches: int) -> float:
    """Return the completed fraction of the fit after `batches` batches of the epoch, or 0 if the fit is unlimited."""
    of_epoch = batches / trainer.num_training_batches if trainer.num_training_batches else 0
    shares = [0.0]
    if trainer.max_epochs and trainer.max_epochs > 0:
        shares.append((trainer.current_epoch + of_epoch) / trainer.max_epochs)
    if trainer.max_steps > 0:
        shares.append(trainer.global_step / trainer.max_steps)
    return max(shares)


def display(label: str, done: int, total: float, facts: list[str], metrics: str) -> RenderableType:
    """Return a bar that fits in 80 columns, followed by a line with the metrics."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    known = total != float("inf")
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    count = f"{done}/{int(total)}" if known else str(done)
    bar = ProgressBar(total=total if known else None, completed=done)
    grid.add_row(label, bar, " ".join([count, *filter(None, facts)]))
    return Group(grid, Text(metrics, no_wrap=True, overflow="ellipsis"))
