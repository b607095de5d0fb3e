"""Progress: a rich bar on a terminal, a line per epoch elsewhere; both show exact means of the epoch.

The bar's are of the samples of the first process, the line's of all.
"""

from time import perf_counter
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, RichProgressBar

from lit_engine._lightning import has_validated
from lit_engine.callbacks.record import in_short, monitored
from lit_engine.distributed.processes import print_once


def progress_metrics(trainer: Trainer, pl_module: LightningModule, running: Any) -> dict[str, str]:
    """The means of the totals so far, and of the newest validation what the task says and what is monitored."""
    values = {f"train/{name}": value for name, value in running.means().items()} if running else {}
    for name in (*(f"val/{name}" for name in getattr(pl_module, "headline_metrics", ())), *monitored(trainer)):
        if name in trainer.callback_metrics and not name.startswith("train/"):  # the epoch before
            values[name] = trainer.callback_metrics[name].item()
    return {name: in_short(value) for name, value in values.items()}


SECONDS = 0.25  # between two refreshes, each of which costs about as much as a small training step


class RichProgress(RichProgressBar):
    """Rich's bar with loss and accuracy."""

    _next = 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = perf_counter()
        if now >= self._next or trainer.is_last_batch:
            self._next = now + SECONDS
            super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        return progress_metrics(trainer, pl_module, getattr(pl_module, "running", None)) if trainer.training else {}


class ProgressLines(Callback):
    """A line per epoch, for log files and pipes."""

    _start = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = perf_counter()  # a run that is resumed within an epoch does not begin one

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._start = perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        running = getattr(pl_module, "running", None)
        found = progress_metrics(trainer, pl_module, running and running.reduce(pl_module)).items()  # of all processes
        # from 0, as in Lightning's bar, the names of checkpoints and metrics.csv
        last = trainer.max_epochs - 1 if trainer.max_epochs and trainer.max_epochs > 0 else "?"
        values = "  ".join(f"{name} {value}" for name, value in found if has_validated(trainer) or name[:4] != "val/")
        seconds = perf_counter() - self._start
        print_once(f"epoch {trainer.current_epoch}/{last}  {values}  {seconds:.1f} s")
