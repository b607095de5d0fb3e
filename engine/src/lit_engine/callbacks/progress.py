"""Progress display: a Rich bar in a terminal, and a line per epoch elsewhere.

Both show exact means of the epoch, over the samples of the first process (bar) or of all processes (line).
"""

from time import perf_counter
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, RichProgressBar

from lit_engine._lightning import has_validated, logged_values
from lit_engine.callbacks.record import COUNTERS, RATE, in_short, monitored
from lit_engine.distributed.processes import print_once
from lit_engine.run.metric_names import is_detail, recorded_name, split_stage
from lit_engine.training.exact import Totals, totals_of


def progress_metrics(trainer: Trainer, pl_module: LightningModule, running: Totals | None) -> dict[str, float]:
    """Return the means of the totals `running`, and the newest headline and monitored validation metrics."""
    values = {f"train/{name}": value for name, value in running.means().items()} if running else {}
    known = trainer.callback_metrics
    for name in (*(f"val/{name}" for name in getattr(pl_module, "headline_metrics", ())), *monitored(trainer)):
        if name in known and split_stage(name)[0] != "train":
            values[name] = known[name].item()
    return values


SECONDS = 0.25  # interval between refreshes, each of which takes about as long as a small training step


class RichProgress(RichProgressBar):
    """Rich progress bar with the loss and the task's main metrics."""

    _next = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = perf_counter()
        if now >= self._next or trainer.is_last_batch:
            self._next = now + SECONDS
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        if not trainer.training:
            return {}
        values = progress_metrics(trainer, pl_module, totals_of(pl_module))
        values |= trainer.progress_bar_metrics  # logged with `prog_bar=True`
        return {name: in_short(value) for name, value in values.items()}


class ProgressLines(Callback):
    """Progress display with one line per epoch, for log files and pipes."""

    def __init__(self) -> None:
        self._start = 0.0
        self._validated: dict[str, float] = {}  # the metrics of the newest validation

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = perf_counter()  # a run that is resumed mid-epoch does not call on_train_epoch_start

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit":
            logged = {name: value.item() for name, value in logged_values(trainer).items() if not is_detail(name)}
            self._validated = {recorded_name(name, "val"): value for name, value in logged.items()}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        logged = {name: value.item() for name, value in logged_values(trainer).items() if not is_detail(name)}
        values = {n: value for n, value in logged.items() if n not in COUNTERS and not RATE.fullmatch(n)}
        running = totals_of(pl_module)  # reduced over all processes below
        values |= progress_metrics(trainer, pl_module, running.reduce(pl_module)) if running else self._validated
        validated = has_validated(trainer)
        found = "  ".join(f"{n} {in_short(v)}" for n, v in values.items() if validated or split_stage(n)[0] != "val")
        # counted from 0, as in Lightning's progress bar, checkpoint names and metrics.csv
        last = trainer.max_epochs - 1 if trainer.max_epochs and trainer.max_epochs > 0 else "?"
        print_once(f"epoch {trainer.current_epoch}/{last}  {found}  {perf_counter() - self._start:.1f} s")
