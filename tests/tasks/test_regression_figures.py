"""Tests the figure of predicted and true values: a panel per target, all points, the diagonal, and R² in the title."""

import pytest
import torch

import lit_project.tasks.regression_figures as viz
from lit_engine.data.tables import TabularData
from lit_project.models.mlp import FFNN
from lit_project.tasks.regression import Regressor
from lit_project.tasks.regression_figures import PredictedAgainstTrue


@pytest.mark.parametrize("targets", [1, 3])
def test_figure_has_one_panel_per_target_with_points_and_diagonal(targets):
    true, predicted = torch.randn(2, targets, 20)
    panels = {f"t{k}": (true[k], predicted[k]) for k in range(targets)}
    figure = viz.predicted_against_true(panels, "test")
    assert [axes.get_title() for axes in figure.axes] == list(panels)
    for k, axes in enumerate(figure.axes):
        assert torch.allclose(
            torch.tensor(axes.collections[0].get_offsets().data).float(), torch.stack([true[k], predicted[k]], 1)
        )
        x, y = axes.get_lines()[0].get_data()
        assert list(x) == list(y) == list(axes.get_xlim()) == list(axes.get_ylim())
    for k, axes in enumerate(viz.predicted_against_true(panels, "test", residuals=True).axes):
        x, y = torch.tensor(axes.collections[0].get_offsets().data).float().T
        assert torch.allclose(x, predicted[k])
        assert torch.allclose(x + y, true[k], atol=1e-6)
        assert list(axes.get_lines()[0].get_ydata()) == [0, 0]


@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("count", [0, 2])
def test_infinite_predictions_are_not_drawn(count, residuals):
    true, predicted = torch.arange(5.0), torch.tensor([3.0, 1.0, torch.inf, -torch.inf, torch.nan])
    predicted[count:2] = torch.inf
    (axes,) = viz.predicted_against_true({"y": (true, predicted)}, "test", residuals).axes
    assert len(axes.collections[0].get_offsets()) == count


def test_callback_draws_all_samples_with_the_r2_of_the_task(trainer, monkeypatch):
    torch.manual_seed(0)
    drawn = []
    monkeypatch.setattr(viz, "predicted_against_true", lambda *args: drawn.append(args))
    monkeypatch.setattr(viz, "save_figure", lambda *args, **_: drawn.append(args[1]))
    data = TabularData(torch.randn(50, 2), torch.randn(50, 1), ["a", "b"], ["y"], eval_batch_size=3)
    task = Regressor(FFNN(2, 1), torch.optim.SGD, ["y"])
    runner = trainer(callbacks=[PredictedAgainstTrue()], max_epochs=1)
    runner.fit(task, datamodule=data)
    assert drawn == []
    runner.validate(task, datamodule=data, verbose=False)
    (metrics,) = runner.test(task, datamodule=data, verbose=False)
    assert drawn[1::2] == ["val_predicted", "val_residuals", "test_predicted", "test_residuals"]
    assert (drawn[6][0], drawn[4][2], drawn[6][2]) == (drawn[4][0], False, True)
    panels, title, _ = drawn[4]
    assert list(panels) == [f"y: R² {metrics['test/r2']:.4f}"]
    ((true, predicted),) = panels.values()
    features, targets = data.splits["test"]
    assert torch.equal(true, targets[:, 0])
    with torch.no_grad():
        assert torch.allclose(predicted, task(features)[:, 0], atol=1e-6)
    assert title == "test: 10 samples"
