"""Tests that the feed-forward network matches its formula."""

import pytest
import torch
from torch.nn import functional as F

from lit_project.models.mlp import FFNN


@pytest.mark.parametrize(("activation", "function"), [("relu", F.relu), ("tanh", torch.tanh)])
def test_output_matches_the_formula(activation, function):
    torch.manual_seed(0)
    net = FFNN(3, 2, hidden_layers=2, hidden_size=5, activation=activation)
    w1, b1, w2, b2, w3, b3 = net.parameters()
    x = torch.randn(9, 3)
    expected = function(function(x @ w1.T + b1) @ w2.T + b2) @ w3.T + b3
    assert torch.allclose(net(x), expected, atol=1e-6)


def test_network_without_hidden_layers_is_a_linear_map():
    torch.manual_seed(0)
    net = FFNN(3, 2, hidden_layers=0, dropout=0.5)
    weight, bias = net.parameters()
    x = torch.randn(9, 3)
    assert torch.equal(net(x), F.linear(x, weight, bias))
