"""Tests the derivatives of autograd functions against finite differences."""

import torch
from torch.autograd import gradcheck, gradgradcheck

from lit_project.models.autograd import exp, scale_gradient


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def test_exp_has_the_correct_derivatives():
    x = doubles(3, 4)
    assert torch.equal(exp(x), x.exp())
    assert gradcheck(exp, x)
    assert gradgradcheck(exp, x)
    assert gradcheck(exp, torch.randn(3, dtype=torch.cdouble, requires_grad=True))
    assert torch.equal(torch.func.grad(lambda x: exp(x).sum())(x), x.exp())


def test_scale_gradient_multiplies_the_gradient_by_the_factor():
    x = doubles(6)
    (plain,) = torch.autograd.grad(x.sin().sum(), x)
    for factor in (-2.5, 0.0, 0.1):
        assert torch.equal(scale_gradient(x, factor), x)
        (scaled,) = torch.autograd.grad(scale_gradient(x, factor).sin().sum(), x)
        assert torch.equal(scaled, factor * plain)
        assert torch.equal(torch.func.grad(lambda x: scale_gradient(x, factor).sin().sum())(x), scaled)  # noqa: B023
    assert gradcheck(lambda x: scale_gradient(x, 1.0).cos(), x)
