"""Files like those that torchvision publishes, with random weights."""

import re
from pathlib import Path

import torch
from torch import nn

OLD_NAMES = {  # names of today → names in the files, which are older
    r"(denselayer\d+\.(?:norm|relu|conv))([12]\.)": r"\1.\2",
    r"(encoder_layer_\d+\.mlp\.)0\.": r"\1linear_1.",
    r"(encoder_layer_\d+\.mlp\.)3\.": r"\1linear_2.",
}


def publish(net: nn.Module, path: Path) -> None:
    """Writes a net's weights by the names of old versions, without the counts of batches and without their versions."""
    state = {}
    for name, value in net.state_dict().items():
        for new, old in OLD_NAMES.items():
            name = re.sub(new, old, name)
        if not name.endswith("num_batches_tracked"):
            state[name] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)
