"""Checkpoint files: written whole or not at all, read without running code, and told apart from damaged ones."""

import contextlib
import os
import pickle
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from .classes import here
from .errors import CheckpointError


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
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError) as error:
        raise CheckpointError(
            f"{path} holds more than tensors and plain data and was not loaded: it could run code "
            f"({str(error).splitlines()[0]})"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, not a checkpoint")
    if "hyper_parameters" in content:
        content["hyper_parameters"] = here(content["hyper_parameters"])
    return content


def by_age(paths: Iterable[Path]) -> list[Path]:
    """Intact checkpoints, that of the latest training step first."""
    steps = [
        (read(path).get("global_step", -1), path.name.startswith("last"), path) for path in paths if is_intact(path)
    ]
    return [path for _, _, path in sorted(steps, reverse=True)]


class SafeCheckpointIO(TorchCheckpointIO):
    """Writes a temporary file in the same folder, syncs and renames it: a crash or a full disk harms nothing.

    Lightning's own save copies from the system's temporary folder, which leaves a truncated file when it is cut short.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Replaces `path` by a complete new file, or raises CheckpointError and leaves the old one as it was."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except (OSError, RuntimeError) as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            kept = f"; {path} of before is intact" if path.exists() else ""
            raise CheckpointError(f"cannot save {path}: {_reason(error)}{kept}") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """As `read`; never executes code, whatever `weights_only`."""
        return read(path, map_location if map_location is not None else "cpu")


def resume_step(checkpoint: Path) -> int:
    """The optimizer step that a checkpoint was saved at."""
    return int(read(checkpoint).get("global_step", 0))


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
        CheckpointError: no checkpoint, or their weights differ in names or shapes.
    """
    if not checkpoints:
        raise CheckpointError("there is no checkpoint to average")
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
