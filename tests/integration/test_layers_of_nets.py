"""Tests how networks are divided into layers, each of which gets its own learning rate with `layer_decay`."""

import pytest
from torch import nn

from lit_engine.training.parameter_groups import layers
from lit_project.models.pretrained import TorchvisionNet
from lit_project.models.resnet import SmallResNet
from lit_project.models.timm_net import TimmNet


@pytest.mark.parametrize(
    ("module", "count"),
    [(SmallResNet((1, 28, 28), 10), 12), (TorchvisionNet((3, 32, 32), 10), 11)],
    ids=["resnet20", "resnet18"],
)
def test_layers_of_residual_nets_are_their_blocks(module, count):
    assert len(layers(module)) == count


def test_blocks_of_third_party_nets_are_found():
    """Test timm nets and MNASNet, whose blocks have their own `layers`."""
    found = layers(nn.ModuleDict({"net": TimmNet("convnext_atto", (3, 32, 32), 10)}))
    for stage, blocks in enumerate((2, 2, 6, 2)):
        path = f"net.backbone.stages.{stage}.blocks"
        assert [one for one in found if one.startswith(path)] == [f"{path}.{block}" for block in range(blocks)]
    assert found[0].startswith("net.backbone.stem")
    assert found[-1].startswith("net.head")
    mobile = layers(TorchvisionNet((3, 32, 32), 10, "mnasnet0_5"))
    assert [path for path in mobile if ".layers.8" in path] == [f"backbone.layers.8.{block}" for block in range(3)]
