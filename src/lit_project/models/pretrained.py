"""Weights that others have trained: torchvision's by name, or a file."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.error import URLError

import torch
from torch import Tensor

from lit_project.errors import CheckpointError, did_you_mean

AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}  # further heads, for training only
# names in files that torchvision publishes → those of its modules today
OLD_NAMES = {
    re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)"): r"\1\2",
    re.compile(r"(encoder_layer_\d+\.mlp\.)linear_1\."): r"\g<1>0.",
    re.compile(r"(encoder_layer_\d+\.mlp\.)linear_2\."): r"\g<1>3.",
}


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
        raise CheckpointError(
            f"torchvision has no weights {name!r} of {architecture}: there are {', '.join(known)}, and a file of that "
            f"name does not exist{did_you_mean(name, known)}"
        )
    return entries[name]


def download(architecture: str, weights: Any) -> dict[str, Tensor]:
    """The state dict of an entry of torchvision's enums, from torch's cache or its public address.

    Torchvision loads it into its own model: names and formats of old files are its business.

    Raises:
        CheckpointError: it is not in the cache and cannot be downloaded, or what is in the cache is damaged.
    """
    from torchvision.models import get_model

    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
    try:
        with torch.random.fork_rng(devices=[]):  # its initial values are not to change ours
            return get_model(architecture, weights=weights, progress=False).state_dict()
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise CheckpointError(
            f"the weights {weights} cannot be downloaded ({reason}). Without a network, put the file of {weights.url} "
            f"at {file}"
        ) from error
    except Exception as error:  # a truncated file: pickle, zip and hash errors, of many kinds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{file} is damaged ({reason}): delete it, and it is downloaded anew") from error


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


def up_to_date(architecture: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names that torchvision's modules have now, without heads that only its own training uses."""
    found = {}
    for name, value in state.items():
        if not name.startswith(AUXILIARY.get(architecture, ())):
            for old, new in OLD_NAMES.items():
                name = old.sub(new, name)
            found[name] = value
    return found


def state_of(architecture: str, source: str) -> tuple[dict[str, Tensor], bool]:
    """The state dict that `source` names, a file or an entry of torchvision's enums; and whether it is torchvision's.

    Raises:
        CheckpointError: see `from_file`, `torchvision_weights`, `download`.
    """
    path = Path(source)
    if path.suffix or path.exists():
        return up_to_date(architecture, from_file(path)), False
    return up_to_date(architecture, download(architecture, torchvision_weights(architecture, source))), True
