"""Tests the formula, size and options of the MLP."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_project.models.mlp import MLP


def count(net):
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(("activation", "function"), [("relu", F.relu), ("silu", F.silu), ("leaky_relu", F.leaky_relu)])
def test_output_matches_the_formula(activation, function):
    torch.manual_seed(0)
    net = MLP((2, 3), 4, hidden_sizes=[5, 7], activation=activation)
    w1, b1, w2, b2, w3, b3 = net.parameters()
    x = torch.randn(9, 2, 3)
    expected = function(function(x.flatten(1) @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
    assert torch.allclose(net(x), expected, atol=1e-6)


def test_dropout_applies_only_during_training():
    torch.manual_seed(0)
    net = MLP((1, 8, 8), 10, hidden_sizes=[32], dropout=0.5)
    x = torch.rand(4, 1, 8, 8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


@pytest.mark.parametrize(("norm", "invariant"), [("none", False), ("batch", True), ("layer", True)])
def test_only_norms_make_logits_independent_of_the_input_scale(norm, invariant):
    torch.manual_seed(0)
    net = MLP((16,), 3, hidden_sizes=[8], norm=norm)
    with torch.no_grad():  # with layer norm, the scale matters if the linear layer has a bias
        for module in net.modules():
            if isinstance(module, nn.Linear) and module.out_features == 8 and module.bias is not None:
                module.bias.zero_()
    x = torch.randn(32, 16) * 10
    assert torch.allclose(net(x), net(7 * x), atol=1e-3) == invariant


def test_norm_adds_a_scale_and_shift_and_batch_norm_replaces_the_bias():
    plain = MLP((16,), 3, hidden_sizes=[8])
    assert count(MLP((16,), 3, hidden_sizes=[8], norm="layer")) == count(plain) + 16  # scale and shift
    assert count(MLP((16,), 3, hidden_sizes=[8], norm="batch")) == count(plain) + 16 - 8  # it replaces the bias
