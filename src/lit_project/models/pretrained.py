"""Weights that others have trained: torchvision's by name, or a file."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor

from lit_project.errors import CheckpointError


def torchvision_weights(architecture: str, name: str) -> Any:
    """The entry `name` (`DEFAULT`, `IMAGENET1K_V1`…) of torchvision's weight enum of a model.

    Raises:
        CheckpointError: torchvision has no such weights of this model.
    """
    from torchvision.models import get_model_weights

    entries = get_model_weights(architecture)
    if name not in entries.__members__:
        known = [*entries.__members__, "DEFAULT"] if entries.__members__ else []
        if not known:
            raise CheckpointError(f"torchvision has no weights of {architecture}")
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise CheckpointError(
            f"torchvision has no weights {name!r} of {architecture}: there are {', '.join(known)}{hint}, and a file "
            f"of that name does not exist"
        )
    return entries[name]


def download(weights: Any) -> dict[str, Tensor]:
    """The state dict of an entry of torchvision's enums, from torch's cache or its public address.

    Raises:
        CheckpointError: it is not in the cache and cannot be downloaded, or what is in the cache is damaged.
    """
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    try:
        return weights.get_state_dict(progress=False, check_hash=True, map_location="cpu")
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise CheckpointError(
            f"the weights {weights} cannot be downloaded ({reason}). Without a network, put the file of {weights.url} "
            f"at {file}"
        ) from error
    except Exception as error:  # a truncated file: pickle, zip and hash errors, of many kinds
        raise CheckpointError(f"{file} is damaged ({error}): delete it, and it is downloaded anew") from error


def from_file(path: Path) -> dict[str, Tensor]:
    """The state dict in a file: one saved by `torch.save(net.state_dict(), path)`, or a checkpoint's `state_dict`.

    Tensors land on the CPU, whatever device saved them; nothing but plain data is unpickled.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"cannot read weights from {path}: {reason}") from error
    state = content.get("state_dict", content) if isinstance(content, Mapping) else None
    if not isinstance(state, Mapping) or not all(isinstance(value, Tensor) for value in state.values()) or not state:
        raise CheckpointError(f"{path} holds no state dict (a mapping of names to tensors)")
    return dict(state)


def state_of(architecture: str, source: str) -> tuple[dict[str, Tensor], bool]:
    """The state dict that `source` names, a file or an entry of torchvision's enums; and whether it is torchvision's.

    Raises:
        CheckpointError: see `from_file`, `torchvision_weights`, `download`.
    """
    path = Path(source)
    if path.suffix or path.exists():
        return from_file(path), False
    return download(torchvision_weights(architecture, source)), True
