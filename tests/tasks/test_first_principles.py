"""Tests that training reaches a known solution."""

from functools import partial

import torch

from lit_project.data.tables import Diabetes
from lit_project.models.mlp import FFNN
from lit_project.tasks.regression import Regressor


def regressor(net, data, optimizer):
    names = ("target_names", "feature_names", "feature_mean", "feature_std", "target_mean", "target_std")
    return Regressor(net, optimizer, **{name: getattr(data, name) for name in names})


def test_lbfgs_reaches_the_least_squares_solution_on_real_data(trainer):
    """A linear net with squared error has a unique solution, which the normal equations provide."""
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
        assert torch.allclose(task(features.float()).double(), expected, atol=0.5)  # targets range from 25 to 346
