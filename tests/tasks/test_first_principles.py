"""From the formulas up: gradients by hand, parameters by hand, training by hand, and a function that is known."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lit_project.data.tables import ClassicFunction, Diabetes
from lit_project.models.mlp import FFNN
from lit_project.tasks.regression import Regressor


def numpy_gradients(x, y, w1, b1, w2, b2):
    """Of the mean squared error of `tanh(x w1ᵀ + b1) w2ᵀ + b2`, by the chain rule."""
    hidden = np.tanh(x @ w1.T + b1)
    out = hidden @ w2.T + b2
    d_out = 2 * (out - y) / y.size
    d_hidden = (d_out @ w2) * (1 - hidden**2)
    return d_hidden.T @ x, d_hidden.sum(0), d_out.T @ hidden, d_out.sum(0)


@pytest.mark.parametrize("outputs", [1, 3])
def test_gradients_by_hand_by_autograd_and_by_layers_agree(outputs):
    torch.manual_seed(0)
    net = FFNN(4, outputs, hidden_layers=1, hidden_size=6, activation="tanh").double()
    x, y = torch.randn(11, 4, dtype=torch.double), torch.randn(11, outputs, dtype=torch.double)
    nn.functional.mse_loss(net(x), y).backward()
    by_layers = [parameter.grad for parameter in net.parameters()]

    w1, b1, w2, b2 = weights = [parameter.detach().clone().requires_grad_() for parameter in net.parameters()]
    loss = ((torch.tanh(x @ w1.T + b1) @ w2.T + b2 - y) ** 2).mean()
    by_autograd = torch.autograd.grad(loss, weights)

    by_hand = numpy_gradients(x.numpy(), y.numpy(), *(parameter.detach().numpy() for parameter in net.parameters()))
    for hand, auto, layers in zip(by_hand, by_autograd, by_layers, strict=True):
        np.testing.assert_allclose(auto, hand, rtol=0, atol=1e-10)
        np.testing.assert_allclose(layers, hand, rtol=0, atol=1e-10)


def regressor(net, data, optimizer):
    names = ("target_names", "feature_names", "feature_mean", "feature_std", "target_mean", "target_std")
    return Regressor(net, optimizer, **{name: getattr(data, name) for name in names})


def test_training_equals_plain_pytorch_bit_for_bit(trainer):
    torch.manual_seed(0)
    net = FFNN(3, 1, hidden_size=16)
    plain = FFNN(3, 1, hidden_size=16)
    plain.load_state_dict(net.state_dict())
    data = ClassicFunction(size=100, seed=1)
    trainer(max_epochs=3).fit(regressor(net, data, partial(torch.optim.Adam, lr=0.01)), datamodule=data)

    loader, optimizer = (
        ClassicFunction(size=100, seed=1).train_dataloader(),
        torch.optim.Adam(plain.parameters(), lr=0.01),
    )
    mean, std, target_mean, target_std = (
        torch.tensor(getattr(data, f"{kind}_{name}")) for kind in ("feature", "target") for name in ("mean", "std")
    )
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        for features, targets, _ in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(plain((features - mean) / std), (targets - target_mean) / target_std)
            loss.backward()
            optimizer.step()
    for one, other in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_lbfgs_reaches_least_squares_on_real_data(trainer):
    """A linear net and the squared error: one answer, which the normal equations give, too."""
    data = Diabetes(batch_size=1000, seed=0)
    torch.manual_seed(0)
    lbfgs = partial(torch.optim.LBFGS, max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-10)
    net = FFNN(data.input_size, 1, hidden_layers=0)
    task = regressor(net, data, lbfgs)
    trainer(max_epochs=3).fit(task, datamodule=data)
    features, targets = (part.double() for part in data.splits["train"])
    x = (features - torch.tensor(data.feature_mean).double()) / torch.tensor(data.feature_std).double()
    best = torch.linalg.lstsq(torch.cat([x, torch.ones(len(x), 1)], dim=1), targets).solution
    expected = torch.cat([x, torch.ones(len(x), 1)], dim=1) @ best
    with torch.no_grad():
        assert torch.allclose(task(features.float()).double(), expected, atol=0.5)  # of 25 to 346
