"""The exponential moving average of the `ema` overlay by its definition."""

from functools import partial

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EMAWeightAveraging
from torch import nn

from lit_project.data import ClassicFunction
from lit_project.models import FFNN
from lit_project.tasks import Regressor

DECAY = 0.9


class Weights(Callback):
    """The weights after each step, and those that validation sees."""

    def __init__(self):
        self.steps, self.validated = [], []

    def on_train_batch_end(self, trainer, module, *args):
        self.steps.append(nn.utils.parameters_to_vector(module.parameters()).detach().clone())

    def on_validation_batch_start(self, trainer, module, *args):
        self.validated.append(nn.utils.parameters_to_vector(module.parameters()).detach().clone())


def test_average_by_its_definition_is_validated_and_kept(trainer):
    """After each step a ← 0.9 a + 0.1 w; the first step begins it."""
    data = ClassicFunction(size=100, batch_size=16, seed=0)
    torch.manual_seed(0)
    names = ("target_names", "feature_names", "feature_mean", "feature_std", "target_mean", "target_std")
    task = Regressor(
        FFNN(data.input_size, 1), partial(torch.optim.SGD, lr=0.1), **{name: getattr(data, name) for name in names}
    )
    seen = Weights()
    trainer(max_epochs=2, callbacks=[seen, EMAWeightAveraging(decay=DECAY)]).fit(task, datamodule=data)
    average, averages = None, []
    for weights in seen.steps:
        average = weights if average is None else DECAY * average + (1 - DECAY) * weights
        averages.append(average)
    half = len(averages) // 2
    assert torch.allclose(seen.validated[0], averages[half - 1], atol=1e-6)
    assert torch.allclose(seen.validated[-1], averages[-1], atol=1e-6)
    assert torch.allclose(nn.utils.parameters_to_vector(task.parameters()), averages[-1], atol=1e-6)
