"""Tests dropout: the distribution of its masks, scaling, gradients and reproducibility."""

import pytest
import torch

from lit_project.models.dropout import Dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_zeroes_a_fraction_p_and_rescales_the_rest(p, dtype):
    torch.manual_seed(0)
    x = torch.ones(999, 1001, dtype=dtype, requires_grad=True)
    y = Dropout(p)(x)
    y.sum().backward()
    share = (y == 0).double().mean().item()
    assert share == pytest.approx(p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5)
    assert y[y > 0].unique().item() == pytest.approx(1 / (1 - p), rel=1e-2 if dtype == torch.bfloat16 else 1e-4)
    assert torch.equal(x.grad, y)  # the gradient of the sum is the mask


def test_masks_of_neighbouring_values_are_independent():
    torch.manual_seed(0)
    kept = (Dropout(0.3)(torch.ones(1_000_000)) != 0).double() - 0.7
    for distance in range(1, 9):  # four values share a random draw
        assert abs((kept[distance:] * kept[:-distance]).mean().item()) < 5 * 0.21 / 1000


def test_is_reproducible_with_a_seed_and_inactive_in_evaluation():
    net, x = Dropout(0.5), torch.randn(7, 5).T  # a view with different strides
    torch.manual_seed(1)
    first = net(x)
    torch.manual_seed(1)
    assert torch.equal(net(x), first)
    assert not torch.equal(net(x), first)
    assert torch.equal(net.eval()(x), x)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_p_0_keeps_everything_and_p_1_zeroes_everything(p):
    x = torch.randn(10)
    assert torch.equal(Dropout(p)(x), x * (1 - p))
    assert Dropout(p)(torch.empty(0, 3)).shape == (0, 3)
