"""Checkpoints: which a run keeps (`Checkpoint`); files written whole or not at all, read without running code."""

import contextlib
import math
import os
import pickle
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_engine.classes.names import here
from lit_engine.errors import CheckpointError, UserError
from lit_engine.project import current


def is_intact(path: Path) -> bool:
    """Whether a file is a complete checkpoint: a zip archive whose checksums hold."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
        return False


def read(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Loads a checkpoint with `weights_only=True`, so that no code in it runs.

    Raises:
        CheckpointError: no such file, truncated, or it holds more than tensors and plain data.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no such checkpoint: {path}")
    if not is_intact(path):
        raise CheckpointError(f"{path} is truncated or not a checkpoint")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except (RuntimeError, EOFError, KeyError) as error:
        raise CheckpointError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain data and was not loaded: it could run code "
            f"({str(error).splitlines()[0]})"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    if "hyper_parameters" in content:
        content["hyper_parameters"] = here(content["hyper_parameters"])
    return content


def known(path: Path, name: str) -> Any:
    """What the data gave the model of a checkpoint, by its name there; None if nothing."""
    found = read(path).get("hyper_parameters", {})
    for part in current().links[name].split("."):
        found = (found or {}).get(part)
    return found


def by_age(paths: Iterable[Path]) -> list[Path]:
    """Intact checkpoints, that of the latest training step first; of one step, `last` is first."""
    steps = {path: read(path).get("global_step", -1) for path in paths if is_intact(path)}
    return sorted(steps, key=lambda path: (steps[path], path.name.startswith("last")), reverse=True)


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes a temporary file in the same folder, syncs and renames it: a crash or a full disk harms nothing.

    Lightning's own save copies from the system's temporary folder, which leaves a truncated file when it is cut short.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Replaces `path` by a complete new file, or raises CheckpointError and leaves the old one as it was."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except (OSError, RuntimeError) as error:
            if error.__context__ is not None and not isinstance(error.__context__, Exception):
                raise error.__context__ from None  # a signal within torch.save
            kept = f"; the earlier {path.name} is intact" if path.exists() else ""
            raise CheckpointError(f"cannot save {path}: {_reason(error)}{kept}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """As `read`; never executes code, whatever `weights_only`."""
        return read(path, map_location if map_location is not None else "cpu")


def _reason(error: BaseException) -> str:
    """The system's own words, also where torch has wrapped them."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error).splitlines()[0]


NAME = "average.ckpt"


def average(checkpoints: Sequence[Path], target: Path) -> Path:
    """Writes the mean of the weights of `checkpoints` to `target`, which it returns.

    Averaging the last epochs often gains what several nets together would (Vaswani et al. 2017; Izmailov et al. 2018).
    Floating-point weights are averaged in double; counts, such as batch norm's, are those of the first checkpoint, and
    so is everything but the optimizer's state, which is left out.

    Raises:
        CheckpointError: their weights differ in names or shapes.
    """
    content: dict[str, Any] = read(checkpoints[0])
    weights = content["state_dict"]
    sums = {name: value.double() for name, value in weights.items() if value.is_floating_point()}
    for path in checkpoints[1:]:
        others = read(path)["state_dict"]
        if {name: value.shape for name, value in others.items()} != {n: value.shape for n, value in weights.items()}:
            raise CheckpointError(f"{path} is of another model than {checkpoints[0]}")
        for name in sums:
            sums[name] += others[name]
    means = {name: (total / len(checkpoints)).to(weights[name].dtype) for name, total in sums.items()}
    kept = {key: value for key, value in content.items() if key not in ("optimizer_states", "lr_schedulers")}
    averaged = {**kept, "state_dict": {**weights, **means}, "averaged": [path.name for path in checkpoints]}
    SafeCheckpointIO().save_checkpoint(averaged, target)
    return target


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
