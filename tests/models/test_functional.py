"""Autograd functions: each derivative against finite differences, and what a reversed gradient is for."""

import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from lit_project.models.autograd import exp, scale_gradient


def doubles(*shape):
    return torch.randn(*shape, dtype=torch.double, requires_grad=True)


def test_exp_has_the_right_derivatives():
    x = doubles(3, 4)
    assert torch.equal(exp(x), x.exp())
    assert gradcheck(exp, x)
    assert gradgradcheck(exp, x)


def test_scaled_gradient_is_the_factor_times_the_gradient():
    x = doubles(6)
    (plain,) = torch.autograd.grad(x.sin().sum(), x)
    for factor in (-2.5, 0.0, 0.1):
        assert torch.equal(scale_gradient(x, factor), x)
        (scaled,) = torch.autograd.grad(scale_gradient(x, factor).sin().sum(), x)
        assert torch.equal(scaled, factor * plain)
    assert gradcheck(lambda x: scale_gradient(x, 1.0).cos(), x)


def test_adversarial_training_makes_features_that_do_not_tell_the_domain():
    """Features (class, domain): the classifier keeps the class and loses the domain."""
    torch.manual_seed(0)
    label, domain = torch.randint(2, (2, 400))
    x = torch.stack([label * 2.0 - 1, domain * 2.0 - 1], dim=1) + 0.1 * torch.randn(400, 2)

    def domain_share(factor):
        torch.manual_seed(1)
        body, classifier = nn.Linear(2, 4), nn.Linear(4, 2)
        head = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        optimizer = torch.optim.SGD([*body.parameters(), *classifier.parameters(), *head.parameters()], lr=0.2)
        for _ in range(300):
            features = body(x)
            loss = nn.functional.cross_entropy(classifier(features), label)
            loss = loss + nn.functional.cross_entropy(head(scale_gradient(features, factor)), domain)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            assert (classifier(body(x)).argmax(1) == label).float().mean() > 0.99
        return (body.weight @ torch.tensor([0.0, 1.0])).norm() / (body.weight @ torch.tensor([1.0, 0.0])).norm()

    assert domain_share(-1.0) < 0.5 * domain_share(1.0)
