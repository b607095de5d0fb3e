"""Tests that nets with torchvision's published weights compute the same features as torchvision."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision import models

from configs_of_images import publish
from lit_project.models.pretrained import TorchvisionNet

COLOUR, GREY = (3, 96, 96), (1, 96, 96)
CLASSIFIERS = {"resnet18": "fc", "googlenet": "fc"}


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Return a function that saves random weights where torchvision expects an architecture's official file."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def make(architecture, write=publish):
        torch.manual_seed(1)
        net = models.get_model(architecture, **({"init_weights": False} if architecture == "googlenet" else {}))
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
        file = tmp_path / "hub" / "checkpoints" / Path(models.get_model_weights(architecture)["DEFAULT"].url).name
        file.parent.mkdir(parents=True, exist_ok=True)
        write(net, file)
        return file

    return make


def features(architecture, images):
    """Return the features of torchvision's net, loaded by torchvision itself."""
    theirs = models.get_model(architecture, weights="DEFAULT").eval()
    setattr(theirs, CLASSIFIERS[architecture], nn.Identity())
    return theirs(images)


@pytest.mark.parametrize(("architecture", "kind"), [("resnet18", "file"), ("googlenet", "name")])
@torch.no_grad()
def test_features_with_official_weights_match_torchvision(cached, architecture, kind):
    file = cached(architecture)
    net = TorchvisionNet(COLOUR, 5, architecture, weights="DEFAULT" if kind == "name" else str(file)).eval()
    images = torch.randn(2, *COLOUR)
    assert torch.equal(net.backbone(images), features(architecture, images))
    assert "missing" not in net.pretrained
    assert "unexpected" not in net.pretrained
    # A checkpoint stores the weights and how inputs are converted.
    again = TorchvisionNet(COLOUR, 5, architecture).eval()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(images), net(images))


@torch.no_grad()
def test_backbone_accepts_grey_images_in_the_range_minus_one_to_one(cached):
    """The weights expect this range. torchvision's net first converts ImageNet-normalized inputs to this range."""
    architecture = "googlenet"
    cached(architecture)
    grey = torch.rand(2, *GREY) * 2 - 1
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = features(architecture, ((grey + 1) / 2 - mean) / std)
    for way in ("sum", "repeat"):
        net = TorchvisionNet(GREY, 5, architecture, weights="DEFAULT", grey=way).eval()
        got = net.backbone(grey.expand(-1, net.repeat, -1, -1))
        assert torch.allclose(got, expected, atol=1e-4 * expected.abs().max())
