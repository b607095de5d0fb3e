"""Tests R-Drop's penalty against torch's distributions, and its derivatives against finite differences."""

import torch
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from lit_project.tasks.translation.task import divergence


def test_the_divergence_is_exact():
    logits = torch.randn(6, 9, 5, dtype=torch.double, requires_grad=True)
    p, q = (Categorical(logits=half) for half in logits.detach().chunk(2))
    torch.testing.assert_close(divergence(logits), kl_divergence(p, q) + kl_divergence(q, p), rtol=0, atol=1e-12)
    assert gradcheck(divergence, logits)


def test_the_divergence_of_half_precision_logits_is_computed_in_float32():
    logits = torch.randn(4, 3, 50).bfloat16().requires_grad_()
    found, expected = divergence(logits), divergence(logits.detach().float())
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)
    found.sum().backward()
    assert logits.grad.dtype == torch.bfloat16
    assert logits.grad.abs().max() > 0
