"""The exponential moving average of the `ema` overlay by its definition."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lit_project.callbacks import EMA, SWA
from lit_project.data import ClassicFunction
from lit_project.errors import UserError
from lit_project.models import FFNN
from lit_project.tasks import Regressor


class Weights(Callback):
    """The weights after each step, and those that validation sees."""

    def __init__(self):
        self.steps, self.validated = [], []

    def on_train_batch_end(self, trainer, module, *args):
        self.steps.append(nn.utils.parameters_to_vector(module.parameters()).detach().clone())

    def on_validation_batch_start(self, trainer, module, *args):
        self.validated.append(nn.utils.parameters_to_vector(module.parameters()).detach().clone())


def regression():
    """A task and data of six or seven steps an epoch."""
    data = ClassicFunction(size=100, batch_size=8, seed=0)
    torch.manual_seed(0)
    names = ("target_names", "feature_names", "feature_mean", "feature_std", "target_mean", "target_std")
    task = Regressor(
        FFNN(data.input_size, 1), partial(torch.optim.SGD, lr=0.1), **{name: getattr(data, name) for name in names}
    )
    return task, data


@pytest.mark.parametrize("decay", [0.2, 0.5, 0.999])
def test_average_by_its_definition_is_validated_and_kept(trainer, decay):
    """After step n + 1, a ← d a + (1 - d) w with d = min(decay, (1 + n) / (10 + n)); the first step begins it."""
    task, data = regression()
    seen = Weights()
    trainer(max_epochs=2, callbacks=[seen, EMA(decay)]).fit(task, datamodule=data)
    average, averages = seen.steps[0], [seen.steps[0]]
    for n, weights in enumerate(seen.steps[1:], 1):
        d = min(decay, (1 + n) / (10 + n))
        average = d * average + (1 - d) * weights
        averages.append(average)
    half = len(averages) // 2
    assert torch.allclose(seen.validated[0], averages[half - 1], atol=1e-6)
    assert torch.allclose(seen.validated[-1], averages[-1], atol=1e-6)
    assert torch.allclose(nn.utils.parameters_to_vector(task.parameters()), averages[-1], atol=1e-6)


@pytest.mark.parametrize("average", [EMA(0.9), SWA(0.5)], ids=["EMA", "SWA"])
def test_what_is_tested_is_the_average_also_by_the_trainer_that_trained(trainer, tmp_path, average):
    task, data = regression()
    used = trainer(max_epochs=2, callbacks=[average])
    used.fit(task, datamodule=data)
    used.save_checkpoint(tmp_path / "a.ckpt")
    kept = {name: value.clone() for name, value in task.state_dict().items()}
    for tester in (used, trainer()):
        with torch.no_grad():
            for parameter in task.parameters():
                parameter.zero_()
        tester.test(task, datamodule=data, ckpt_path=tmp_path / "a.ckpt", verbose=False)
        assert all(torch.equal(value, kept[name]) for name, value in task.state_dict().items())


def test_two_averages_are_refused(trainer):
    task, data = regression()
    with pytest.raises(UserError, match=r"only one average .*: EMA and SWA"):
        trainer(max_epochs=2, callbacks=[SWA(), EMA()]).fit(task, datamodule=data)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_weights_that_are_not_float32_are_refused(trainer, precision):
    task, data = regression()
    with pytest.raises(UserError, match=f"float32, not with precision {precision}"):
        trainer(max_epochs=2, precision=precision, callbacks=[EMA()]).fit(task, datamodule=data)


@pytest.mark.parametrize("decay", [1, -0.1])
def test_impossible_decay(decay):
    with pytest.raises(UserError, match=r"decay must be in \[0, 1\)"):
        EMA(decay)
