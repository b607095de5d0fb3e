"""Files like those that torchvision publishes, with random weights, and a quick net to load them into."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import ResNet18_Weights, _api
from torchvision.models.resnet import BasicBlock, ResNet


def publish(net: nn.Module, path: Path) -> None:
    """Writes a net's weights without the counts of batches and without their versions."""
    state = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


class ThinResNet(ResNet):
    """ResNet-18 with an eighth of the channels; the names of its weights are the same."""

    def __init__(self, **kwargs: object) -> None:
        super().__init__(BasicBlock, [2, 2, 2, 2], **kwargs)  # type: ignore[arg-type]
        self.fc = nn.Linear(64, self.fc.out_features)

    def _make_layer(self, block: type[BasicBlock], planes: int, *args: object, **kwargs: object) -> nn.Sequential:
        if planes == 64:  # the first stage, after the stem
            self.inplanes = 8
            self.conv1 = nn.Conv2d(3, 8, kernel_size=7, stride=2, padding=3, bias=False)
            self.bn1 = nn.BatchNorm2d(8)
        return super()._make_layer(block, planes // 8, *args, **kwargs)  # type: ignore[arg-type]


def thin_resnet18(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `resnet18` of torchvision a `ThinResNet`, which trains in a tenth of the time."""

    def resnet18(*, weights: ResNet18_Weights | None = None, progress: bool = True, **kwargs: object) -> ThinResNet:
        net = ThinResNet(**kwargs)
        if weights is not None:
            net.load_state_dict(weights.get_state_dict(progress=progress))
        return net

    resnet18.__module__ = ResNet.__module__  # by which torchvision knows a net that classifies
    monkeypatch.setitem(_api.BUILTIN_MODELS, "resnet18", resnet18)
