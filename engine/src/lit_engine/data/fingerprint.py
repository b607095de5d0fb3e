"""Fingerprints of a run's splits, which reveal later changes to the data."""

import hashlib
import os
from collections.abc import Container, Mapping, Sequence, Set
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from torch.utils.data import Dataset

# Above these limits, only evenly spaced parts are read, so that a fingerprint takes at most about a second.
MAX_BYTES, MAX_ITEMS, MAX_FILES = 2**28, 50_000, 1000
HEAD = 2**16  # number of bytes to read from each file
PLAIN = (str, os.PathLike, bool, int, float, complex, bytes, type(None))
SKIPPED = (torch.nn.Module, LightningDataModule, Trainer, FunctionType, ModuleType, type)  # types without samples
NOTHING = hashlib.sha256(b"0\n").hexdigest()  # fingerprint of an object without public attributes


def fingerprints(trainer: Trainer, known: Container[str] = ()) -> dict[str, str]:
    """Return the fingerprints of the loaded splits and sampling weights by name. Names in `known` are skipped.

    If a data module has no `splits`, the datasets of its loaders are used instead. A dataset whose attributes are all
    private has no fingerprint.
    """
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    loaders = {"train": trainer.train_dataloader, "val": trainer.val_dataloaders, "test": trainer.test_dataloaders}
    splits = getattr(data, "splits", None)
    parts = {**(splits if isinstance(splits, Mapping) else loaders), "sampling": getattr(data, "sample_weights", None)}
    found = {}
    for name, part in parts.items():
        if part is not None and name not in known:
            with suppress(Exception):  # a dataset that cannot be hashed must not stop training
                found[name] = fingerprint(part)
    return {name: value for name, value in found.items() if value != NOTHING}


def fingerprint(data: Any) -> str:
    """Return a SHA-256 hash of all arrays, plain values and files in `data`, its containers and its public attributes.

    If a string is the path of a file, the file's name, size and first bytes are hashed. Folder names are ignored, so
    that data can be moved. File contents are read last.
    """
    found, files, seen = hashlib.sha256(), list[str](), dict[int, Any]()
    for part in _parts(data, files, seen):
        found.update(part)
    for file in files[:: 1 + len(files) // MAX_FILES]:
        with open(file, "rb") as content:
            found.update(content.read(HEAD))
    return found.hexdigest()


def _parts(value: Any, files: list[str], seen: dict[int, Any]) -> Any:
    """Yield the bytes of a value, and add the file paths that it contains to `files`. `seen` maps ids to objects."""
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if "/" in path and os.path.isfile(path):
            files.append(path)
            path = f"{os.path.basename(path)} {os.path.getsize(path)}"
        yield b"" if "/" in path and os.path.isdir(path) else f"{path}\n".encode(errors="replace")
    elif isinstance(value, PLAIN):
        yield f"{value!r}\n".encode()
    elif isinstance(value, np.ndarray | np.generic | torch.Tensor) and not getattr(value.dtype, "hasobject", False):
        yield f"{value.dtype} {tuple(value.shape)}\n".encode()
        rows: Any = value
        if value.ndim:
            rows = rows[:: 1 + value.nbytes // MAX_BYTES]
        if isinstance(rows, torch.Tensor):
            rows = rows.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    elif id(value) not in seen and not isinstance(value, SKIPPED):
        # Read tuples of plain values each time they occur, because Python may store equal tuples as one object.
        if not isinstance(value, tuple) or not all(isinstance(one, PLAIN) for one in value):
            seen[id(value)] = value  # keeps the object alive, so that no other object gets its id
        inner = getattr(value, "dataset", value)
        if inner is not value and not isinstance(value, Dataset):  # a loader
            value = inner
        if isinstance(value, Mapping):
            value = list(value.items())
        elif isinstance(value, Set):
            value = sorted(value)
        elif hasattr(value, "to_numpy"):  # a pandas or Polars table
            value = [value.to_numpy()]
        elif not isinstance(value, Sequence | np.ndarray) or isinstance(value, Dataset):
            slots = {name: getattr(value, name, None) for name in getattr(type(value), "__slots__", ())}
            value = [item for item in (getattr(value, "__dict__", {}) | slots).items() if item[0][0] != "_"]
        yield f"{len(value)}\n".encode()
        for one in value[:: 1 + len(value) // MAX_ITEMS]:
            yield from _parts(one, files, seen)
