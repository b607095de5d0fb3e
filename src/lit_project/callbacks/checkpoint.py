"""Best and last checkpoint of a run."""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_project.errors import UserError

LOWER = {"loss", "error", "mse", "rmse", "mae", "mape", "perplexity", "wer", "cer", "ter", "nll", "ece"}
HIGHER = {"accuracy", "acc", "bleu", "chrf", "rouge", "f1", "precision", "recall", "auc", "auroc", "ap", "map", "iou",
          "miou", "dice", "r2", "psnr", "ssim"}  # fmt: skip


class Checkpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint as a run wants it: `checkpoints/best-epochNNN.ckpt` by a metric, and `last.ckpt`.

    `last.ckpt` is written at the end of every epoch: with Lightning's `save_last` it is a copy of the newest *best*
    one, so that a run resumed from it repeats all epochs that brought no improvement.

    Args:
        monitor: the metric that decides, such as `val/accuracy`; null keeps only the last checkpoint.
        mode: whether the metric is better when it is higher (`max`) or lower (`min`); null tells it by its name.
        save_top_k: how many of the best are kept.
        every_n_epochs: how often to save both.
        keep_last: also keep the last so many saved epochs as `epochNNN.ckpt`; `--ckpt_path average` is their mean.

    Raises:
        UserError: no `mode` is given, and the name of the metric does not tell it.
    """

    def __init__(
        self,
        monitor: str | None = "val/accuracy",
        mode: Literal["min", "max"] | None = None,
        save_top_k: int = 1,
        every_n_epochs: int = 1,
        keep_last: int = 0,
    ) -> None:
        super().__init__(
            monitor=monitor,
            mode=mode or (better(monitor) if monitor else "min"),
            save_top_k=save_top_k if monitor else 0,
            save_last=False,
            every_n_epochs=every_n_epochs,
            # of several kept ones two may be of one epoch
            filename="best-epoch{epoch:03d}" + ("" if save_top_k in (0, 1) else "-step{step}"),
            auto_insert_metric_name=False,  # the slash of val/accuracy would make a folder
            enable_version_counter=False,
        )
        self.keep_last = keep_last
        self._cut_short = False  # whether the epoch ends before its last batch
        self._stop_later = False  # whether a stop was asked for within a window of accumulated gradients

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Puts the checkpoints into the run directory.

        Raises:
            UserError: the metric to watch is one of validation, and there will be none.
        """
        watches_validation = self.monitor is not None and self.monitor.startswith("val/")
        if stage == "fit" and watches_validation and trainer.limit_val_batches == 0 and not fast_dev_run(trainer):
            raise UserError(
                f"the checkpoint callback watches {self.monitor}, but trainer.limit_val_batches is 0: give it another "
                "monitor, or null for the last checkpoint only"
            )
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Names the metrics there are if the one to watch is not among them."""
        if not trainer.sanity_checking and self.monitor and self.monitor not in trainer.callback_metrics:
            known = ", ".join(sorted(n for n in trainer.callback_metrics if "class_accuracy" not in n))
            if not self.monitor.startswith("train/"):
                raise UserError(f"the checkpoint callback watches {self.monitor!r}; there are: {known}")
        super().on_validation_end(trainer, pl_module)
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._end_of_window(trainer, pl_module)
            self._save_if_cut_short(trainer)  # a validation within the epoch may have asked for it

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves the last checkpoint of a run that ends within an epoch: at its end the epoch would count as whole."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self._end_of_window(trainer, pl_module)
        self._save_if_cut_short(trainer)

    def _end_of_window(self, trainer: Trainer, module: LightningModule) -> None:
        """A stop waits for the step of the gradients that are being accumulated: no checkpoint holds them."""
        window = getattr(module, "accumulate", None) or trainer.accumulate_grad_batches
        within = trainer.fit_loop.epoch_loop.batch_progress.current.ready % window != 0 and not trainer.is_last_batch
        asked = self._stop_later or trainer.should_stop
        self._stop_later, trainer.should_stop = asked and within, asked and not within

    def _save_if_cut_short(self, trainer: Trainer) -> None:
        self._cut_short = ends(trainer) and not trainer.is_last_batch
        if self._cut_short and not fast_dev_run(trainer) and self.dirpath is not None:
            trainer.save_checkpoint(Path(self.dirpath) / "last.ckpt", weights_only=False)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Saves the last checkpoint."""
        super().on_train_epoch_end(trainer, pl_module)
        if self._cut_short:
            return
        done = trainer.current_epoch + 1
        due = done % self._every_n_epochs == 0 or done == trainer.max_epochs or trainer.should_stop
        due |= trainer.global_step == trainer.max_steps
        if due and not fast_dev_run(trainer) and self.dirpath is not None:
            trainer.save_checkpoint(Path(self.dirpath) / "last.ckpt", weights_only=False)
            self._keep_epoch(trainer, Path(self.dirpath))

    def _keep_epoch(self, trainer: Trainer, folder: Path) -> None:
        if self.keep_last and trainer.is_global_zero:
            kept = folder / f"epoch{trainer.current_epoch:03d}.ckpt"
            kept.unlink(missing_ok=True)
            try:
                os.link(folder / "last.ckpt", kept)  # the next last.ckpt is a new file, so that this one stays
            except OSError:  # a file system without links
                shutil.copyfile(folder / "last.ckpt", kept)
            numbered = {p.stem.removeprefix("epoch"): p for p in folder.glob("epoch*.ckpt")}
            for number in sorted(filter(str.isdecimal, numbered), key=int)[: -self.keep_last]:
                numbered[number].unlink()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A run that was moved keeps its best score: the folder is where the run is now."""
        best = state_dict.get("best_model_path")
        if self.dirpath is not None and best and Path(best).parent != Path(self.dirpath):
            moved = {key: _moved(value, str(self.dirpath)) for key, value in state_dict.items()}
            state_dict = {**moved, "dirpath": self.dirpath}
        super().load_state_dict(state_dict)


def better(metric: str) -> Literal["min", "max"]:
    """Whether a metric is better when it is lower or higher, as the end of its name says.

    Raises:
        UserError: it says nothing.
    """
    words = set(re.split(r"[^a-z0-9]+", metric.lower().rpartition("/")[2]))
    modes: dict[Literal["min", "max"], set[str]] = {"min": LOWER & words, "max": HIGHER & words}
    found = [mode for mode, known in modes.items() if known]
    if len(found) != 1:
        raise UserError(f"the checkpoint callback watches {metric!r}: give its mode, max (higher is better) or min")
    return found[0]


def ends(trainer: Trainer) -> bool:
    """Whether the training is to end here; a stop that comes before min_epochs or min_steps has to wait for them."""
    step = trainer.global_step
    may_stop = trainer.should_stop and trainer.current_epoch >= (trainer.min_epochs or 0)
    return (may_stop and step >= (trainer.min_steps or 0)) or step == trainer.max_steps


def fast_dev_run(trainer: Trainer) -> bool:
    """Whether this is Lightning's smoke test, which keeps nothing."""
    return bool(getattr(trainer, "fast_dev_run", False))


def _moved(value: Any, folder: str) -> Any:
    """Checkpoint paths in the callback's state, as they are in `folder`."""
    if isinstance(value, str) and value.endswith(".ckpt"):
        return str(Path(folder) / Path(value).name)
    if isinstance(value, dict):
        return {_moved(key, folder): _moved(item, folder) for key, item in value.items()}
    return value
