"""Tests R-Drop's penalty against torch's distributions, and its derivatives against finite differences."""

import torch
from torch.autograd import gradcheck
from torch.distributions import Categorical, kl_divergence

from lit_project.tasks.translation.task import divergence


def test_the_divergence_is_exact():
    logits = torch.randn(6, 9, 5, dtype=torch.double, requires_grad=True)
    p, q = (Categorical(logits=half) for half in logits.detach().chunk(2))
    expected = kl_divergence(p, q) + kl_divergence(q, p)
    torch.testing.assert_close(divergence(logits.log_softmax(dim=-1)), expected, rtol=0, atol=1e-12)
    assert gradcheck(lambda logits: divergence(logits.log_softmax(dim=-1)), logits)
