"""The callback that decides which checkpoints a run keeps."""

import math
import os
import re
import shutil
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch import LightningModule, Trainer

from lit_engine._lightning import CheckpointInRootDir, logged_values, save_after_validation
from lit_engine.distributed.processes import print_once
from lit_engine.errors import UserError
from lit_engine.run.metric_names import is_loss


class Checkpoint(CheckpointInRootDir):
    """ModelCheckpoint that writes `last.ckpt` and the best checkpoint, `best-epochNNN.ckpt`, to `checkpoints/`.

    If there are several of these callbacks, the first one selects the checkpoint that is tested. The others write
    `best-METRIC-epochNNN.ckpt`, and their `keep_last`, `every_minutes` and `every_n_steps` are ignored.

    A run resumes from `last.ckpt`. The engine (`Saver`) writes this file when training starts, after each epoch, during
    long epochs, and after a signal. With Lightning's `save_last`, `last.ckpt` would be a copy of the newest *best*
    checkpoint, and a resumed run would repeat all epochs since then. In your own `Trainer`, use
    `callbacks=[Saver(), Checkpoint(…)]`, with `Saver` from `lit_engine.training.saver`.

    Args:
        monitor: metric that selects the best checkpoint, such as `val/accuracy`; null keeps only the last checkpoint.
        mode: whether higher (`max`) or lower (`min`) values of the metric are better.
        save_top_k: number of best checkpoints to keep.
        every_n_epochs: interval in epochs at which the best checkpoint and `last.ckpt` are saved.
        keep_last: number of recent epochs to keep as `epochNNN.ckpt`. `--ckpt_path average` averages these files.
        every_minutes: also write `last.ckpt` after this many minutes, in case of a `kill -9`. null disables this.
        every_n_steps: also write `last.ckpt` after this many optimizer steps.

    Raises:
        UserError: if a metric has no mode, a number is below 1, or `every_minutes` is not positive.
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
            raise UserError(f"Checkpoint: monitor {monitor} needs a mode: set mode to max (higher is better) or min")
        if every_minutes is not None and not every_minutes > 0:
            raise UserError(f"Checkpoint: every_minutes must be above 0, got {every_minutes:g}; null disables it")
        for name, number in (("every_n_epochs", every_n_epochs), ("every_n_steps", every_n_steps)):
            if number is not None and number < 1:
                raise UserError(f"Checkpoint: {name} must be at least 1, got {number}")
        # The step distinguishes several best checkpoints of the same epoch.
        self._ending = "epoch{epoch:03d}" + ("" if save_top_k in (0, 1) else "-step{step}")
        super().__init__(
            monitor=monitor,
            mode=mode or "min",
            save_top_k=save_top_k if monitor else 0,
            save_last=False,
            every_n_epochs=every_n_epochs,
            filename=f"best-{self._ending}",
            auto_insert_metric_name=False,  # the slash in val/accuracy would create a folder
            enable_version_counter=False,
        )
        self.keep_last, self.every_n_steps = keep_last, every_n_steps
        self.seconds = math.inf if every_minutes is None else 60 * every_minutes

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Save to the run directory. All callbacks but the first include their metric in the file names."""
        first = next((one for one in trainer.callbacks if isinstance(one, Checkpoint)), self)  # type: ignore[attr-defined]
        if self is not first and self.monitor:  # two callbacks must not write the same file
            metric = re.sub(r"\W+", "-", self.monitor)
            self.filename = f"best-{metric}-{self._ending}"
        super().setup(trainer, pl_module, stage)

    @cached_property
    def state_key(self) -> str:
        """Lightning's key without `every_n_epochs`, so that this option may change in a resumed run."""
        return re.sub(r"(?<='every_n_epochs': )\d+", "1", super().state_key)

    def keep_epoch(self, trainer: Trainer) -> None:
        """Keep `last.ckpt` as `epochNNN.ckpt` for the epoch that just ended, and delete files beyond `keep_last`."""
        last, epoch = Path(str(self.dirpath), "last.ckpt"), trainer.current_epoch - 1
        if not self.keep_last or not trainer.is_global_zero or epoch < 0 or not last.exists():
            return
        kept = last.with_name(f"epoch{epoch:03d}.ckpt")
        kept.unlink(missing_ok=True)
        try:
            os.link(last, kept)  # the next last.ckpt is a new file and does not overwrite this one
        except OSError:  # the file system does not support links
            shutil.copyfile(last, kept)
        numbered = {p.stem.removeprefix("epoch"): p for p in last.parent.glob("epoch*.ckpt")}
        for number in sorted(filter(str.isdecimal, numbered), key=int)[: -self.keep_last]:
            numbered[number].unlink()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the best score. If the run was moved, update the checkpoint paths to the new folder."""
        if self.dirpath is not None:
            state_dict = {key: _move_paths(value, str(self.dirpath)) for key, value in state_dict.items()}
            state_dict["dirpath"] = self.dirpath
        super().load_state_dict(state_dict)
        self.current_score = state_dict.get("current_score")  # Lightning saves this score but never restores it


class LossCheckpoint(Checkpoint):
    """Default checkpoint callback, which selects the best checkpoint by the validation loss.

    The metric, such as `val_loss`, is chosen during the first validation. Without such a loss, only `last.ckpt` exists.
    The callback selects no checkpoint if the module's `configure_callbacks` returns another checkpoint callback.
    """

    def __init__(self) -> None:
        super().__init__()
        self._noted = False  # whether the note about the missing best checkpoint was printed
        save_after_validation(self)

    @property
    def state_key(self) -> str:
        # The key must not depend on the metric, which is unknown before the first validation.
        return type(self).__name__

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        is_only = len(trainer.checkpoint_callbacks) == 1
        if self.monitor is None and is_only and not trainer.sanity_checking:
            loss = next(filter(is_loss, logged_values(trainer)), None)
            if trainer.strategy.reduce_boolean_decision(loss is not None):  # some modules log only on rank 0
                self._follow(loss)
            if self.monitor is None and trainer.current_epoch == 0 and trainer.state.fn == "fit" and not self._noted:
                self._noted = True
                print_once(
                    "no best checkpoint is kept, because no validation loss is logged: "
                    "add the Checkpoint callback with a monitor and a mode"
                )
        super().on_validation_end(trainer, pl_module)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._follow(state_dict.get("monitor"))
        super().load_state_dict(state_dict)

    def _follow(self, metric: str | None) -> None:
        if metric is not None:
            self.monitor, self.save_top_k = metric, 1


def fast_dev_run(trainer: Trainer) -> bool:
    """Return whether `fast_dev_run` is set. In this mode, the trainer saves nothing."""
    return bool(trainer.fast_dev_run)  # type: ignore[attr-defined]


def _move_paths(value: Any, folder: str) -> Any:
    """Replace the folder of each checkpoint path in the callback's state."""
    if isinstance(value, str) and value.endswith(".ckpt"):
        return str(Path(folder) / Path(value).name)
    if isinstance(value, dict):
        return {_move_paths(key, folder): _move_paths(item, folder) for key, item in value.items()}
    return value
