"""Autograd functions: each derivative against finite differences, and against what torch has."""

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from lit_project.models.functional import (
    DomainAdversarialHead,
    GradientReversal,
    Linear,
    LogLinear,
    exp,
    linear,
    scale_gradient,
)


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def test_exp_has_the_right_derivatives():
    x = doubles(3, 4)
    assert torch.equal(exp(x), x.exp())
    assert gradcheck(exp, x)
    assert gradgradcheck(exp, x)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 3), (2, 5, 3)], ids=["matrix", "batch"])
def test_linear_has_the_right_derivatives(shape, with_bias):
    x, weight = doubles(*shape), doubles(4, 3)
    bias = doubles(4) if with_bias else None
    assert torch.allclose(linear(x, weight, bias), nn.functional.linear(x, weight, bias), atol=1e-14)
    assert gradcheck(linear, (x, weight, bias))
    assert gradgradcheck(linear, (x, weight, bias))


@pytest.mark.parametrize("needed", [(True, False, False), (False, True, False), (False, False, True)])
def test_linear_gives_gradients_where_they_are_asked_for(needed):
    values = [torch.randn(5, 3), torch.randn(4, 3), torch.randn(4)]
    for value, needs in zip(values, needed, strict=True):
        value.requires_grad_(needs)
    linear(*values).square().sum().backward()
    assert [value.grad is not None for value in values] == list(needed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("inside", [True, False], ids=["backward inside", "backward outside"])
def test_linear_under_autocast_is_torchs(dtype, inside):
    torch.manual_seed(0)
    before, x = nn.Linear(4, 8), torch.randn(5, 4)
    found = []
    for layer in (Linear(8, 3), nn.Linear(8, 3)):
        nn.init.constant_(layer.weight, 0.3)
        nn.init.constant_(layer.bias, 0.1)
        with torch.autocast("cpu", dtype=dtype):
            y = layer(before(x))
            loss = y.float().square().sum()
            if inside:
                gradients = torch.autograd.grad(loss, [before.weight, *layer.parameters()])
        if not inside:
            gradients = torch.autograd.grad(loss, [before.weight, *layer.parameters()])
        assert [g.dtype for g in gradients] == [torch.float32] * 3
        found.append([y, *gradients])
    assert found[0][0].dtype == found[1][0].dtype == dtype
    for own, theirs in zip(*found, strict=True):
        assert torch.allclose(own.float(), theirs.float(), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("head", [DomainAdversarialHead(8), LogLinear(8)], ids=["adversarial", "log-linear"])
def test_the_modules_train_under_autocast(head):
    torch.manual_seed(0)
    before = nn.Linear(4, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(before(torch.randn(5, 4))).float().square().mean()
    loss.backward()
    for parameter in (*before.parameters(), *head.parameters()):
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_doubles_stay_doubles_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(doubles(2, 3), doubles(4, 3)).dtype == torch.double


def test_scaled_gradient_is_the_factor_times_the_gradient():
    x = doubles(6)
    (plain,) = torch.autograd.grad(x.sin().sum(), x)
    for factor in (-2.5, 0.0, 0.1):
        assert torch.equal(scale_gradient(x, factor), x)
        (scaled,) = torch.autograd.grad(scale_gradient(x, factor).sin().sum(), x)
        assert torch.equal(scaled, factor * plain)
    assert gradcheck(lambda x: scale_gradient(x, 1.0).cos(), x)


def test_linear_layer_is_torchs():
    torch.manual_seed(0)
    own = Linear(3, 2)
    torch.manual_seed(0)
    theirs = nn.Linear(3, 2)
    x = torch.randn(7, 3)
    assert torch.allclose(own(x), theirs(x))
    assert own.state_dict().keys() == theirs.state_dict().keys()


def test_reversal_reverses_what_comes_before_and_not_what_comes_after():
    torch.manual_seed(0)
    before, x = nn.Linear(3, 3), torch.randn(8, 3)
    head = DomainAdversarialHead(3, strength=0.5)
    targets = torch.randint(2, (8,))

    def gradients(strength):
        head.reversal = GradientReversal(strength)
        loss = nn.functional.cross_entropy(head(before(x)), targets)
        return torch.autograd.grad(loss, [before.weight, head.layers[0].weight])

    reversed_, plain = gradients(0.5), gradients(-1.0)  # a strength of -1 reverses nothing
    assert torch.allclose(reversed_[0], -0.5 * plain[0])
    assert torch.equal(reversed_[1], plain[1])


def test_adversarial_training_makes_features_that_do_not_tell_the_domain():
    """Features (class, domain): the classifier keeps the class and loses the domain."""
    torch.manual_seed(0)
    label, domain = torch.randint(2, (2, 400))
    x = torch.stack([label * 2.0 - 1, domain * 2.0 - 1], dim=1) + 0.1 * torch.randn(400, 2)

    def domain_share(strength):
        torch.manual_seed(1)
        body, classifier = nn.Linear(2, 4), nn.Linear(4, 2)
        head = DomainAdversarialHead(4, hidden_size=16, strength=strength)
        optimizer = torch.optim.SGD([*body.parameters(), *classifier.parameters(), *head.parameters()], lr=0.2)
        for _ in range(300):
            features = body(x)
            loss = nn.functional.cross_entropy(classifier(features), label)
            loss = loss + nn.functional.cross_entropy(head(features), domain)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            assert (classifier(body(x)).argmax(1) == label).float().mean() > 0.99
        return (body.weight @ torch.tensor([0.0, 1.0])).norm() / (body.weight @ torch.tensor([1.0, 0.0])).norm()

    assert domain_share(1.0) < 0.5 * domain_share(-1.0)


def test_log_linear_is_positive_and_begins_at_one():
    layer = LogLinear(3, 2)
    assert torch.equal(layer(torch.zeros(4, 3)), layer.linear.bias.exp().expand(4, 2))
    nn.init.normal_(layer.linear.weight, std=3)
    assert (layer(torch.randn(100, 3)) > 0).all()
