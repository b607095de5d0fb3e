"""Non-finite gradients never reach the weights."""

import re

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from helpers import TINY, Witness
from lit_engine import Checkpoint
from lit_engine.callbacks.nan_guard import NaNGuard, NonFiniteError
from lit_engine.checkpoints.io import read
from lit_engine.data.images import ImageData
from lit_engine.errors import UserError
from lit_engine.training.saver import Saver
from toy.tasks import ImageClassifier


class Images(ImageData):
    """32 images of shape `(1, 2, 2)` in two classes. One image is white."""

    def __init__(self):
        super().__init__(batch_size=8, seed=0)
        self.class_names, self.input_shape, self.mean, self.std = ["a", "b"], (1, 2, 2), [0.0], [1.0]

    def load(self, split):
        images = torch.randint(0, 200, (32, 1, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images[13] = 255
        return images, torch.arange(32) % 2


class Burst(nn.Module):
    """Linear net with infinite logits for the white image, starting in the third epoch."""

    def __init__(self, bad=float("inf")):
        super().__init__()
        self.head, self.bad, self.calls = nn.Linear(4, 2), bad, 0

    def forward(self, x):
        self.calls += self.training
        white = (x.flatten(1) == 1).all(1, keepdim=True) & self.training & (self.calls > 8)
        return self.head(x.flatten(1)) * torch.where(white, self.bad, 1.0)


class Weights(Callback):
    """Records the weights after each step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, *args):
        self.seen.append(module.net.head.weight.detach().clone())


def task(bad=float("inf")):
    torch.manual_seed(0)
    return ImageClassifier(Burst(bad), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), ["a", "b"])


def test_the_guard_stops_the_run_and_reports_step_parameters_and_samples(trainer, tmp_path):
    weights, module = Weights(), task()
    with pytest.raises(NonFiniteError) as caught:
        trainer(max_epochs=4, callbacks=[weights, NaNGuard()]).fit(module, datamodule=Images())
    message = str(caught.value)
    step = len(weights.seen)
    assert 8 <= step < 12
    assert f"step {step} (epoch 2)" in message
    assert "the gradient of net.head.weight, net.head.bias is not finite" in message
    indices = message.partition("samples ")[2].partition(".")[0]
    assert "13" in indices.split(", ")
    assert len(indices.split(", ")) == 8
    saved = read(tmp_path / "checkpoints" / "before-nan.ckpt")["state_dict"]["net.head.weight"]
    assert torch.equal(saved, weights.seen[-1])
    assert torch.equal(module.net.head.weight, weights.seen[-1])  # would be NaN without the guard


def test_the_guard_does_not_affect_finite_training(trainer):
    trained = []
    for callbacks in ([], [NaNGuard()]):
        module = task(bad=1.0)
        trainer(max_epochs=4, callbacks=callbacks).fit(module, datamodule=Images())
        trained.append(module.net.head.weight)
    assert torch.equal(*trained)


def test_finite_gradients_whose_norm_overflows_are_clipped(trainer):
    module = task()
    module.training_step = lambda batch, batch_idx: 1e22 * module(batch[0]).sum()
    before = module.net.head.weight.detach().clone()
    trainer(max_steps=1, callbacks=[NaNGuard()], gradient_clip_val=1.0).fit(module, datamodule=Images())
    assert torch.equal(module.net.head.weight, before)  # torch's clip_grad_norm_ gives the same result
    assert module.net.head.weight.grad.isfinite().all()


def test_the_error_lists_the_samples_of_all_accumulated_batches(trainer):
    with pytest.raises(NonFiniteError) as caught:
        trainer(max_epochs=4, callbacks=[NaNGuard()], accumulate_grad_batches=2).fit(task(), datamodule=Images())
    assert len(str(caught.value).partition("samples ")[2].partition(".")[0].split(", ")) == 16


def test_the_error_lists_the_samples_of_all_processes(trainer):
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    runner = trainer(max_epochs=8, callbacks=[NaNGuard()], devices=2, strategy=strategy)
    with pytest.raises(Exception, match="is not finite; samples") as caught:
        runner.fit(task(), datamodule=Images())
    indices = str(caught.value).partition("samples ")[2].partition(".")[0].split(", ")
    assert len(indices) == 16
    assert "13" in indices


@pytest.mark.parametrize("validated", [True, False])
def test_without_the_guard_diverged_weights_cause_an_error_and_are_not_saved(lit, validated):
    blind = (
        "--trainer.limit_val_batches=0 --trainer.callbacks=null "
        "--trainer.callbacks+=lit_engine.checkpoints.callback.Checkpoint --trainer.callbacks.monitor=null"
    )
    result = lit(
        f"fit -c configs/quickstart.yaml {TINY} --model.optimizer.lr=1e30 --model.schedulers=null",
        "" if validated else blind,
    )
    assert result.status == 2
    assert re.search(rf"epoch 0: {'val' if validated else 'train'}/loss is (nan|inf)\. .*learning rate", result.err)
    assert "best checkpoint" not in result.out
    saved = {path.name: read(path) for path in result.run.glob("checkpoints/*")}
    assert {name: checkpoint["global_step"] for name, checkpoint in saved.items()} == {"last.ckpt": 0}


class Complex(Witness):
    """A module with a real weight, and a complex weight that becomes NaN in the second epoch."""

    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(2, dtype=torch.cfloat))

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.phase.data[0] = complex(0.0, float("nan"))


def test_without_the_guard_non_finite_complex_weights_are_not_saved(trainer, tmp_path):
    options = {"max_epochs": 3, "callbacks": [Saver(), Checkpoint(monitor=None)]}
    with pytest.raises(UserError, match="epoch 2, step 8: weights are not finite"):
        trainer(**options, enable_checkpointing=True).fit(Complex(), datamodule=Images())
    assert torch.equal(
        read(tmp_path / "checkpoints" / "last.ckpt")["state_dict"]["phase"], torch.zeros(2, dtype=torch.cfloat)
    )
