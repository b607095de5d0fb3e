"""From the formulas up: training by hand, and a solution that is known."""

from functools import partial

import torch
from torch import nn

from lit_project.data.tables import ClassicFunction, Diabetes
from lit_project.models.mlp import FFNN
from lit_project.tasks.regression import Regressor


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
