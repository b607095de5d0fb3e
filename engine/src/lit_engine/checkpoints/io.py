"""Writes checkpoints atomically, and reads them without running any code that they contain."""

import os
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning_utilities.core.apply_func import apply_to_collection
from torch.serialization import get_safe_globals, get_unsafe_globals_in_checkpoint, safe_globals

from lit_engine.classes.names import resolve_class_paths
from lit_engine.errors import CheckpointError, first_of
from lit_engine.run.directory import replacement

# Globals in pickled NumPy numbers and arrays. Loading them runs no code from the checkpoint.
NUMPY: list[Any] = [
    *(np.array(0).__reduce__()[0], np.float64(0).__reduce__()[0], np.ndarray, np.dtype),
    *{type(np.dtype(code)) for code in np.typecodes["All"]},
]


def _numpy_is_safe() -> safe_globals:
    """Return a context that allows NumPy arrays, and leaves the classes that the user has allowed unchanged."""
    return safe_globals([*set(NUMPY).difference(get_safe_globals())])


def is_intact(path: Path) -> bool:
    """Return whether a checkpoint file is complete, which means it is a zip archive with valid checksums."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
        return False


def read(path: str | Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Load a checkpoint with `weights_only=True`, so that no code in it runs.

    To allow a class that is safe to load, call `torch.serialization.add_safe_globals`.

    Raises:
        CheckpointError: if the file does not exist, is truncated, or contains objects other than tensors, NumPy arrays
            and plain data.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no such checkpoint: {path}")
    if not is_intact(path):
        raise CheckpointError(f"{path} is truncated or not a checkpoint")
    with _numpy_is_safe():
        try:
            content = torch.load(path, map_location=map_location, weights_only=True)
        except (RuntimeError, EOFError, KeyError) as error:
            raise CheckpointError(f"{path} cannot be loaded: {str(error).splitlines()[0]}") from error
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"{path} was not loaded, because it contains objects that could run code while being loaded "
                f"({first_of(get_unsafe_globals_in_checkpoint(path)) or str(error).splitlines()[0]})"
            ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} contains a {type(content).__name__}, not a checkpoint")
    if "hyper_parameters" in content:
        content["hyper_parameters"] = resolve_class_paths(content["hyper_parameters"])
    return content


def fill_linked(data: dict[str, Any], links: Mapping[str, str], content: Mapping[str, Any]) -> None:
    """Fill in data arguments that are None, such as class names, from the hyperparameters in a checkpoint.

    Args:
        data: arguments of the data module.
        links: maps arguments of the data module to arguments of the task, as in `Project.links`.
        content: content of the checkpoint.
    """
    for name, argument in links.items():
        if name in data and data[name] is None:
            found = content.get("hyper_parameters", {})
            for part in argument.split("."):
                found = (found or {}).get(part)
            data[name] = found


def sort_by_age(paths: Iterable[Path]) -> list[Path]:
    """Return the intact checkpoints, latest step first. `last.ckpt` precedes other checkpoints of the same step."""
    steps = {path: read(path).get("global_step", -1) for path in paths if is_intact(path)}
    return sorted(steps, key=lambda path: (steps[path], path.name.startswith("last")), reverse=True)


class SafeCheckpointIO(TorchCheckpointIO):
    """Checkpoint plugin that writes, syncs and renames a temporary file, so that a crash cannot damage a checkpoint.

    Lightning's own plugin copies a file from the system's temporary folder, so an interruption can truncate the copy.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Replace `path` with a complete new file, or raise CheckpointError and keep the old file unchanged."""
        path = Path(path)
        for name in ("optimizer_states", "lr_schedulers"):  # a schedule may compute rates with NumPy
            if name in checkpoint:
                checkpoint[name] = apply_to_collection(checkpoint[name], np.generic, lambda number: number.item())
        try:
            with replacement(path) as temporary:
                with temporary.open("wb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                with _numpy_is_safe():
                    found = get_unsafe_globals_in_checkpoint(temporary)
                if found:
                    raise CheckpointError(
                        f"cannot save {path}: it would contain {first_of(found)}, which cannot be loaded safely. Store "
                        "only tensors, arrays and plain data in on_save_checkpoint and state_dict, or allow these "
                        "classes with torch.serialization.add_safe_globals"
                    )
        except (OSError, RuntimeError) as error:
            if error.__context__ is not None and not isinstance(error.__context__, Exception):
                raise error.__context__ from None  # a signal arrived during torch.save
            kept = f"; the earlier {path.name} is intact" if path.exists() else ""
            raise CheckpointError(f"cannot save {path}: {_reason(error)}{kept}") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load a checkpoint to the CPU with `read`, which never executes code, regardless of `weights_only`."""
        return read(path)


def share_loaded(plugin: CheckpointIO, loaded: dict[Path, dict[str, Any]]) -> None:
    """Make a plugin return the contents in `loaded`, which `--fork` edits, instead of reading these files again."""
    load = plugin.load_checkpoint

    def load_checkpoint(path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return loaded.pop(Path(path), None) or load(path, *args, **kwargs)

    plugin.load_checkpoint = load_checkpoint  # type: ignore[method-assign]


def _reason(error: BaseException) -> str:
    """Return the operating system's error message, even if torch has wrapped the error."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror
        inner = inner.__cause__ or inner.__context__
    return str(error).splitlines()[0]
