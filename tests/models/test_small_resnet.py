"""Tests the residual net for small images from He et al. 2016."""

import pytest
import torch
from torch.nn import functional as F

from lit_project.models.resnet import ResidualBlock, SmallResNet


def count(net):
    return sum(parameter.numel() for parameter in net.parameters())


def test_resnet_20_has_0_27_million_parameters():
    """See table 6 of the paper, for 3×32×32 images and without shortcut convolutions."""
    size = count(SmallResNet((1, 28, 28), 10, depth=20, width=16))
    assert size < 500_000
    assert round(size / 1e6, 2) == 0.27
    assert round(count(SmallResNet((3, 32, 32), 10, depth=56, width=16)) / 1e6, 2) == pytest.approx(0.85, abs=0.011)


def test_depth_counts_the_layers_with_weights():
    net = SmallResNet((2, 13, 9), 7, depth=14, width=2)
    shortcuts = 2
    assert sum(parameter.ndim > 1 for parameter in net.parameters()) == 14 + shortcuts
    assert net(torch.rand(3, 2, 13, 9)).shape == (3, 7)


@pytest.mark.parametrize(("out_channels", "stride"), [(4, 1), (8, 2)])
def test_block_matches_its_formula(out_channels, stride):
    torch.manual_seed(0)
    block = ResidualBlock(4, out_channels, stride)
    x = torch.randn(3, 4, 8, 8)
    inner = F.relu(block.norm1(F.conv2d(x, block.conv1.weight, stride=stride, padding=1)))
    inner = block.norm2(F.conv2d(inner, block.conv2.weight, padding=1))
    shortcut = x
    if (out_channels, stride) != (4, 1):
        convolution, norm = block.shortcut
        shortcut = norm(F.conv2d(x, convolution.weight, stride=stride))
    assert torch.allclose(block(x), F.relu(inner + shortcut), atol=1e-6)


def test_invalid_depths_are_rejected():
    with pytest.raises(ValueError, match=r"depth must be 6n \+ 2 .* got 18"):
        SmallResNet((1, 28, 28), 10, depth=18)
