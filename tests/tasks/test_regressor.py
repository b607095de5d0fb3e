"""Tests that the regressor's outputs and metrics use the targets' units and cover all samples for any batch size."""

import csv
import re
from functools import partial

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score
from torch import nn

from lit_engine.data.tables import TabularData
from lit_engine.errors import UserError
from lit_project.data.tables import CSV
from lit_project.models.mlp import FFNN
from lit_project.tasks.regression import Regressor

STATISTICS = ("feature_mean", "feature_std", "target_mean", "target_std")


def table(offset=0.0, targets=2, **kwargs):
    """Return 29 training, 17 validation and 17 test rows, with features and targets in very different units."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(63, 3, generator=generator) * torch.tensor([1.0, 100.0, 0.01]) + torch.tensor(
        [0.0, 5e3, 1.0]
    )
    values = torch.randn(63, targets, generator=generator) * torch.tensor([1.0, 300.0])[:targets] + offset
    names = ["u", "v"][:targets]
    return TabularData(features, values, ["a", "b", "c"], names, test_size=17, val_size=17, **kwargs)


def regressor(data, net=None, lr=0.1, **kwargs):
    torch.manual_seed(0)
    net = net or FFNN(data.input_size, data.output_size, hidden_size=8)
    optimizer = kwargs.pop("optimizer", partial(torch.optim.SGD, lr=lr))
    statistics = {name: getattr(data, name) for name in STATISTICS}
    return Regressor(net, optimizer, data.target_names, data.feature_names, **statistics, **kwargs)


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_rejects_precision_that_would_round_unscaled_targets(trainer, precision):
    data = table()
    with pytest.raises(UserError, match=f"precision {precision} rounds .*: use {precision[:-5]}-mixed"):
        trainer(max_epochs=1, precision=precision).fit(regressor(data), datamodule=data)


def predictions(task, data, split):
    features, targets = data.splits[split]
    with torch.no_grad():
        return task.eval()(features).double(), targets.double()


def test_forward_standardizes_features_and_returns_target_units():
    data = table()
    task = regressor(data)
    x = data.splits["test"][0]
    mean, std, target_mean, target_std = (torch.tensor(getattr(data, name), dtype=torch.double) for name in STATISTICS)
    assert torch.allclose(task(x), task.net(((x - mean) / std).float()) * target_std + target_mean)
    blind = regressor(data, nn.Sequential(nn.Linear(3, 2)))
    nn.init.zeros_(blind.net[0].weight)
    nn.init.zeros_(blind.net[0].bias)
    assert blind(x[:1])[0].tolist() == pytest.approx(data.target_mean)  # an output of 0 becomes the mean


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_large_offsets_do_not_lose_precision(trainer, precision):
    """Features are Unix timestamps that span 17 minutes. In float32, there would be only nine distinct values."""
    seconds = 1_700_000_000 + torch.arange(1000, dtype=torch.double)[:, None]
    data = TabularData(seconds, seconds * 2, ["time"], ["twice"], batch_size=64)
    task, runner = regressor(data, nn.Linear(1, 1), lr=0.05), trainer(max_epochs=5, precision=precision)
    runner.fit(task, datamodule=data)
    runner.test(task, datamodule=data)
    assert runner.callback_metrics["test/r2"] > 0.999
    predicted, _ = predictions(task, data, "test")
    assert len(predicted.unique()) > 150
    assert (predicted - data.splits["test"][1]).abs().max() < 100  # in seconds; the targets span 2,000


@pytest.mark.parametrize(
    ("batch_size", "loss", "precision", "rel"),
    [(7, None, "32-true", 1e-5), (100, nn.L1Loss(), "32-true", 1e-5), (7, None, "64-true", 1e-12)],
)
def test_epoch_loss_is_the_mean_over_all_samples(trainer, batch_size, loss, precision, rel):
    data = table(batch_size=batch_size)
    task, runner = regressor(data, lr=0.0, loss=loss), trainer(max_epochs=1, precision=precision)
    runner.fit(task, datamodule=data)
    for split in ("train", "val"):
        predicted, targets = predictions(task, data, split)
        error = (predicted - targets) / torch.tensor(data.target_std, dtype=torch.double)
        expected = (error**2 if loss is None else error.abs()).mean().item()
        assert runner.callback_metrics[f"{split}/loss"].item() == pytest.approx(expected, rel=rel)


@pytest.mark.parametrize(
    ("split", "targets", "batch_size", "offset"), [("val", 1, 3, 0.0), ("test", 2, 100, 0.0), ("test", 2, 7, 1e5)]
)
def test_metrics_match_scikit_learn_over_all_samples(trainer, split, batch_size, targets, offset):
    data = table(offset, targets, eval_batch_size=batch_size)
    task, runner = regressor(data), trainer()
    evaluate = {"val": runner.validate, "test": runner.test}[split]
    (metrics,) = evaluate(task, datamodule=data, verbose=False)
    predicted, true = predictions(task, data, split)
    errors = {}
    for name, function, power in (("mse", mean_squared_error, 2), ("mae", mean_absolute_error, 1)):
        each = function(true, predicted, multioutput="raw_values")
        if targets == 1:
            errors[name] = each[0]
        else:
            errors |= {f"{name}/u": each[0], f"{name}/v": each[1]}
            errors[f"{name}_standardized"] = (each / torch.tensor(data.target_std).double().numpy() ** power).mean()
    for name, value in errors.items():
        assert metrics[f"{split}/{name}"] == pytest.approx(value, rel=1e-6)
    each = r2_score(true, predicted, multioutput="raw_values")
    assert list(task.r2.values()) == pytest.approx(each.tolist(), rel=1e-9, abs=1e-7)  # predictions are float32
    assert metrics[f"{split}/r2"] == pytest.approx(each.mean(), rel=1e-6)
    assert metrics[f"{split}/samples"] == 17
    assert set(metrics) == {f"{split}/{name}" for name in ("loss", *errors, "r2", "samples")}


class CountsThePositive(Regressor):
    def evaluation_step(self, batch, split):
        outputs = super().evaluation_step(batch, split)
        self.add_sums(positive=(outputs["targets"] > 0).sum())
        return outputs


def test_sums_of_a_subclass_are_logged(trainer):
    data = table(targets=1)
    task = CountsThePositive(FFNN(3, 1), torch.optim.SGD, ["u"])
    (metrics,) = trainer().test(task, datamodule=data, verbose=False)
    assert metrics["test/positive"] == pytest.approx((data.splits["test"][1] > 0).double().mean().item())


@pytest.mark.parametrize("targets", [1, 2])
def test_prediction_returns_one_row_per_sample(targets):
    data = table(targets=targets)
    task = regressor(data).eval()
    features, true = data.splits["test"]
    indices = torch.arange(100, 117)
    with torch.no_grad():
        rows = task.predict_step((features, true, indices), 0)
        unknown = task.predict_step((features, torch.full_like(true, float("nan")), indices), 0)
        predicted = task(features)
    names = [""] if targets == 1 else ["/u", "/v"]
    assert list(rows) == ["index", *(f"prediction{n}" for n in names), *(f"target{n}" for n in names)]
    assert list(unknown) == ["index", *(f"prediction{n}" for n in names)]
    assert rows["index"] == list(range(100, 117))
    for column, name in enumerate(names):
        assert rows[f"prediction{name}"] == unknown[f"prediction{name}"] == predicted[:, column].tolist()
        assert rows[f"target{name}"] == true[:, column].tolist()
    assert task.predict_step((features[:0], true[:0], indices[:0]), 0) == {}


def test_statistics_are_not_part_of_the_state_dict():
    one, two = regressor(table()), regressor(table(offset=50.0))
    assert not torch.equal(one.target_mean, two.target_mean)
    mean = two.target_mean.clone()
    two.load_state_dict(one.state_dict())
    assert torch.equal(two.target_mean, mean)


def test_checkpoint_predicts_with_its_own_statistics_after_the_table_changes(lit, workspace):
    lines = [f"{n % 13},{n % 7},{3 * (n % 13) - n % 7}" for n in range(60)]
    file = workspace / "mine.csv"
    file.write_text("\n".join(["a,b,y", *lines]))
    data = f"--data=CSV --data.file={file} --data.target_names=y --data.batch_size=16"
    fit = lit(f"fit -c configs/regression_quickstart.yaml {data} --trainer.max_epochs=2 --run_name=mine")
    assert fit.status == 0, fit.err
    assert re.search(r"^epoch 1 \(2 of 2\) .* val/r2 \S+", fit.out, re.MULTILINE)
    checkpoint = fit.run / "checkpoints" / "last.ckpt"
    hyper_parameters = torch.load(checkpoint, weights_only=True)["hyper_parameters"]
    task = Regressor.load_from_checkpoint(checkpoint, weights_only=True)
    assert (task.feature_names, task.target_names) == (["a", "b"], ["y"])
    assert task(torch.tensor([[1.0, 2.0]])).shape == (1, 1)
    for name in STATISTICS:
        assert getattr(task, name).tolist() == pytest.approx(hyper_parameters[name])
    grown = [f"{a},5,{rest}" for a, rest in (line.split(",", 1) for line in lines)]
    # The new table has a different mean and an additional column.
    file.write_text("\n".join(["a,new,b,y", *grown, *["900,1,5,2695"] * 20]))
    predict = lit(f"predict --run {fit.run}")
    assert predict.status == 0, predict.err
    table = csv.DictReader((fit.run / "predictions" / "test.csv").open())
    features, _ = CSV(file, "y", ["a", "b"]).splits["test"]
    with torch.no_grad():
        expected = task.eval()(features)[:, 0].tolist()
    assert [float(row["prediction"]) for row in table] == pytest.approx(expected, rel=1e-5)


def test_two_processes_report_the_same_metrics_as_one(trainer):
    data = table(eval_batch_size=5)
    one = trainer().test(regressor(data), datamodule=data, verbose=False)[0]
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    both = trainer(devices=2, strategy=strategy)
    two = both.test(regressor(table()), datamodule=table(eval_batch_size=5), verbose=False)[0]
    assert two == pytest.approx(one, rel=1e-5)
    assert two["test/samples"] == 17
