"""The callback that decides which checkpoints a run keeps."""

import math
import os
import shutil
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_engine._lightning import logged_values, save_after_validation
from lit_engine.errors import UserError
from lit_engine.run.metric_names import base_of


class Checkpoint(ModelCheckpoint):
    """Lightning's ModelCheckpoint as a run wants it: `checkpoints/best-epochNNN.ckpt` by a metric, and `last.ckpt`.

    `last.ckpt`, from which a run is resumed, is written by the engine (`Saver`) when the training begins, after each
    epoch, within long ones, and after a signal. With Lightning's `save_last` it would be a copy of the newest *best*
    one, so that a resumed run would repeat all epochs that brought no improvement.

    Args:
        monitor: the metric that decides, such as `val/accuracy`; null keeps only the last checkpoint.
        mode: whether the metric is better when it is higher (`max`) or lower (`min`).
        save_top_k: how many of the best are kept.
        every_n_epochs: how often to save both.
        keep_last: also keep the last so many saved epochs as `epochNNN.ckpt`; `--ckpt_path average` is their mean.
        every_minutes: also write `last.ckpt` after so many minutes, what a `kill -9` may lose; null for never.
        every_n_steps: also write `last.ckpt` after so many optimizer steps.

    Raises:
        UserError: a metric without a mode, or a number below 1 (of minutes: not above 0).
    """

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        save_top_k: int = 1,
        every_n_epochs: int = 1,
        keep_last: int = 0,
        every_minutes: float | None = 10.0,
        every_n_steps: int | None = None,
    ) -> None:
        if monitor and not mode:
            raise UserError(f"the checkpoint callback watches {monitor}: give its mode, max (higher is better) or min")
        if every_minutes is not None and not every_minutes > 0:
            raise UserError(f"Checkpoint: every_minutes must be above 0, got {every_minutes:g}; null is never")
        for name, number in (("every_n_epochs", every_n_epochs), ("every_n_steps", every_n_steps)):
            if number is not None and number < 1:
                raise UserError(f"Checkpoint: {name} must be at least 1, got {number}")
        super().__init__(
            monitor=monitor,
            mode=mode or "min",
            save_top_k=save_top_k if monitor else 0,
            save_last=False,
            every_n_epochs=every_n_epochs,
            # of several kept ones two may be of one epoch
            filename="best-epoch{epoch:03d}" + ("" if save_top_k in (0, 1) else "-step{step}"),
            auto_insert_metric_name=False,  # the slash of val/accuracy would make a folder
            enable_version_counter=False,
        )
        self.keep_last, self.every_n_steps = keep_last, every_n_steps
        self.seconds = math.inf if every_minutes is None else 60 * every_minutes

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Puts the checkpoints into the run directory."""
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")
        super().setup(trainer, pl_module, stage)

    def keep_epoch(self, trainer: Trainer) -> None:
        """Keeps `last.ckpt` as that of the epoch that has ended, if one has, as `keep_last` says."""
        last, epoch = Path(str(self.dirpath), "last.ckpt"), trainer.current_epoch - 1
        if not self.keep_last or not trainer.is_global_zero or epoch < 0 or not last.exists():
            return
        kept = last.with_name(f"epoch{epoch:03d}.ckpt")
        if not (kept.exists() and kept.samefile(last)):
            kept.unlink(missing_ok=True)
            try:
                os.link(last, kept)  # the next last.ckpt is a new file, so that this one stays
            except OSError:  # a file system without links
                shutil.copyfile(last, kept)
        numbered = {p.stem.removeprefix("epoch"): p for p in last.parent.glob("epoch*.ckpt")}
        for number in sorted(filter(str.isdecimal, numbered), key=int)[: -self.keep_last]:
            numbered[number].unlink()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """A run that was moved keeps its best score: the folder is where the run is now."""
        best = state_dict.get("best_model_path")
        if self.dirpath is not None and best and Path(best).parent != Path(self.dirpath):
            moved = {key: _moved(value, str(self.dirpath)) for key, value in state_dict.items()}
            state_dict = {**moved, "dirpath": self.dirpath}
        super().load_state_dict(state_dict)
        self.current_score = state_dict.get("current_score")  # which Lightning saves and leaves out


class LossCheckpoint(Checkpoint):
    """A Checkpoint for runs that configure none: chooses the best checkpoint by the loss of the validation.

    It is known after the first validation, such as `val_loss`. A run that logs none has only `last.ckpt`.
    """

    def __init__(self) -> None:
        super().__init__()
        save_after_validation(self)

    @property
    def state_key(self) -> str:
        return type(self).__name__  # the same before the metric is known

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.monitor is None and not trainer.sanity_checking:
            losses = (
                name for name in logged_values(trainer) if base_of(name.partition("/dataloader_idx")[0]) == "loss"
            )
            self._follow(next(losses, None))
        super().on_validation_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._follow(state_dict.get("monitor"))
        super().load_state_dict(state_dict)

    def _follow(self, metric: str | None) -> None:
        if metric is not None:
            self.monitor, self.save_top_k = metric, 1


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
