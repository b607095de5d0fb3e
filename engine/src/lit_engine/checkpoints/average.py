"""Averages the weights of several checkpoints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_engine.checkpoints.io import SafeCheckpointIO, read
from lit_engine.errors import CheckpointError

NAME = "average.ckpt"


def average(checkpoints: Sequence[Path], target: Path) -> Path:
    """Write the mean of the weights in `checkpoints` to `target`, and return `target`.

    Averaging the weights of the last epochs often helps as much as an ensemble (Vaswani et al. 2017; Izmailov et al.
    2018). Real and complex weights are averaged in double precision. Integers, such as batch-norm counters, and all
    other content are copied from the first checkpoint. The states of optimizers and schedules are omitted.

    Raises:
        CheckpointError: if the names or shapes of the weights differ.
    """
    content: dict[str, Any] = read(checkpoints[0])
    weights = content["state_dict"]
    sums = {
        name: value.to(torch.promote_types(value.dtype, torch.double))
        for name, value in weights.items()
        if isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())
    }
    for path in checkpoints[1:]:
        others = read(path)["state_dict"]
        shapes = [{name: getattr(value, "shape", None) for name, value in one.items()} for one in (others, weights)]
        if shapes[0] != shapes[1]:
            raise CheckpointError(f"{path} belongs to a different model than {checkpoints[0]}")
        for name in sums:
            sums[name] += others[name]
    means = {name: (total / len(checkpoints)).to(weights[name].dtype) for name, total in sums.items()}
    weights.update(means)  # in place, which keeps the versions of the layers
    kept = {key: value for key, value in content.items() if key not in ("optimizer_states", "lr_schedulers")}
    averaged = {**kept, "averaged": [path.name for path in checkpoints]}
    SafeCheckpointIO().save_checkpoint(averaged, target)
    return target
