"""Weights for drawing training samples, for the `sampling` option of `SplitData`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset

from lit_engine.errors import DataError, did_you_mean, first_of


def labels_of(dataset: Any) -> Tensor | None:
    """Return a dataset's `targets` `(N, …)`, or None if they are missing, not numeric or not one per sample.

    The dataset's `target_transform`, an attribute of torchvision datasets, is applied to each target.
    """
    if isinstance(dataset, Subset) and not hasattr(dataset, "targets"):
        labels = labels_of(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices, dtype=torch.int64)]
    targets = getattr(dataset, "targets", None)
    if targets is None or len(targets) != len(dataset):
        return None
    with suppress(AttributeError, TypeError, ValueError):  # for example, if the targets are file names of masks
        if transform := getattr(dataset, "target_transform", None):
            targets = [transform(target) for target in np.asarray(targets).tolist()]
        return _as_int64(torch.as_tensor(np.asarray(targets)))
    return None


def _as_int64(labels: Tensor) -> Tensor:
    """Convert bools and integers to int64. torch treats a uint8 index as a mask, and barely supports uint16."""
    return labels if labels.is_floating_point() else labels.long()


def classes_of(data: Any) -> Tensor | None:
    """Return each sample's class `(N,)` in a stored split, or None if not all samples have exactly one class."""
    labels = _as_int64(data[-1].cpu()) if isinstance(data, tuple) else labels_of(data)
    single = labels is not None and labels.ndim == 1 and not labels.is_floating_point() and not (labels < 0).any()
    return labels if single else None


def weights_for(sampling: str | Mapping[str, float], data: Any, size: int, class_names: Sequence[str] | None) -> Tensor:
    """Return the float64 weight of each training sample `(size,)`.

    Args:
        sampling: `balanced`, a dict from class names to weights (1 if omitted), or a file with one weight per line.
        data: training split, as a tuple of tensors that ends with the classes, or as a dataset with `targets`.
        size: number of training samples.
        class_names: names of the classes. Default: the class indices.

    Raises:
        DataError: if a weight is invalid, a class does not exist, or classes are required but the samples have none.
    """
    if isinstance(sampling, str) and sampling != "balanced":
        weights = _read(sampling, size)
    else:
        labels = classes_of(data)
        if labels is None:
            raise DataError(
                "data.sampling: weighting by class needs one integer target per sample; "
                "set data.sampling to a file with one weight per sample"
            )
        counts = labels.bincount(minlength=len(class_names or ()))
        if isinstance(sampling, str):
            weights = (1 / counts.double())[labels]
        else:
            names = class_names or [str(number) for number in range(len(counts))]
            weights = torch.tensor(weights_by_class("data.sampling", sampling, names), dtype=torch.double)[labels]
    if not (weights.isfinite() & (weights >= 0)).all() or not weights.any():
        raise DataError("data.sampling: weights must be finite and not negative, and at least one must be above 0")
    return weights


def weights_by_class(option: str, given: Mapping[str, float], class_names: Sequence[str]) -> list[float]:
    """Return the weight of each class (1 if omitted). Raise DataError if the option contains an unknown class."""
    weights = {str(name): weight for name, weight in given.items()}  # YAML reads a class named 3 as a number
    if unknown := next((name for name in weights if name not in class_names), None):
        hint = did_you_mean(unknown, class_names, f"; the classes are {first_of(class_names)}")
        if unknown in ("True", "False"):
            hint = "; put yes, no, on and off in quotes, because YAML reads them as booleans"
        raise DataError(f"{option}: there is no class {unknown!r}{hint}")
    return [weights.get(name, 1.0) for name in class_names]


def _read(file: str, size: int) -> Tensor:
    path = Path(file).expanduser()
    if not path.is_file():
        raise DataError(f"data.sampling: there is no file {file}{did_you_mean(file, ['balanced'])}")
    try:
        lines = path.read_text(encoding="utf-8").split()
        weights = torch.tensor([float(line) for line in lines], dtype=torch.double)
    except ValueError as error:
        raise DataError(f"data.sampling: {file} must contain one number per line ({error})") from error
    if len(weights) != size:
        raise DataError(f"data.sampling: {file} has {len(weights)} weights, but there are {size} training samples")
    return weights
