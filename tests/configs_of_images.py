"""Small replacements for the data and weights of the image configs, for `small_data` and test_configs.py."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import ResNet18_Weights, _api
from torchvision.models.resnet import BasicBlock, ResNet

SCORE, FIGURE, AS_WHILE_FITTING = "accuracy", "test_confusion_matrix.png", True
# Test options by config name prefix: small batches for convolutional nets, no workers because they are slow to start,
# and more epochs than in debug.yaml for a config that unfreezes layers in later epochs.
FEW = "--data.batch_size=8 --data.eval_batch_size=8"
OPTIONS = {
    "fashion_mnist_cnn": FEW,
    "fashion_mnist_resnet": FEW,
    "finetune_imagefolder": f"{FEW} --data.num_workers=0",
    "image_folder": "--data.num_workers=0",
    "mnist_resnet18_from_fashion": f"{FEW} --trainer.max_epochs=3",
}


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace MNIST and Fashion-MNIST with 300 + 100 + 100 random images, and ResNet-18 with a thin one."""
    from lit_project.data.mnist import FashionMNIST

    thin_resnet18(monkeypatch)

    def load(self: FashionMNIST, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        size = {"train": 300, "val": 100, "test": 100}[split]
        generator = torch.Generator().manual_seed(len(split))
        targets = torch.randint(0, 10, (size,), generator=generator)
        images = torch.randint(0, 100, (size, 1, 28, 28), generator=generator, dtype=torch.uint8)
        images += 15 * targets[:, None, None, None].to(torch.uint8)  # the brightness reveals the class
        return images, targets

    monkeypatch.setattr(FashionMNIST, "load", load)
    monkeypatch.setattr(FashionMNIST, "prepare_data", lambda self: None)


def check(rows: list[dict[str, str]], metrics: dict[str, float]) -> None:
    """Check that the predictions match the test accuracy."""
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    accuracy = sum(row["prediction"] == row["target"] for row in rows) / len(rows)
    assert float(f"{accuracy:.6g}") == metrics["test/accuracy"]


def publish(net: nn.Module, path: Path) -> None:
    """Save a net's weights without batch counts and version numbers."""
    state = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path)


class ThinResNet(ResNet):
    """ResNet-18 with an eighth of the channels and the same weight names."""

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
    """Replace torchvision's `resnet18` with `ThinResNet`, which trains in a tenth of the time."""

    def resnet18(*, weights: ResNet18_Weights | None = None, progress: bool = True, **kwargs: object) -> ThinResNet:
        net = ThinResNet(**kwargs)
        if weights is not None:
            net.load_state_dict(weights.get_state_dict(progress=progress))
        return net

    resnet18.__module__ = ResNet.__module__  # torchvision recognizes classifiers by this attribute
    monkeypatch.setitem(_api.BUILTIN_MODELS, "resnet18", resnet18)
