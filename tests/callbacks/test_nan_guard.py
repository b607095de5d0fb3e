"""Gradients that are not finite never reach the weights."""

import re
from itertools import pairwise

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import Precision
from lightning.pytorch.strategies import DDPStrategy
from torch import nn

from lit_project.callbacks import NaNGuard
from lit_project.callbacks.nan_guard import NonFiniteError
from lit_project.checkpoints import read
from lit_project.data import InMemoryImages
from lit_project.tasks import ImageClassifier
from tiny import TINY


class Images(InMemoryImages):
    """32 images `(1, 2, 2)` of two classes; one of them is white."""

    def __init__(self):
        super().__init__(batch_size=8, seed=0)
        self.class_names, self.input_shape, self.mean, self.std = ["a", "b"], (1, 2, 2), [0.0], [1.0]

    def load(self, split):
        images = torch.randint(0, 200, (32, 1, 2, 2), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        images[13] = 255
        return images, torch.arange(32) % 2


class Burst(nn.Module):
    """A linear net whose logits are infinite for the white image, from the third epoch on."""

    def __init__(self, bad=float("inf")):
        super().__init__()
        self.head, self.bad, self.calls = nn.Linear(4, 2), bad, 0

    def forward(self, x):
        self.calls += self.training
        white = (x.flatten(1) == 1).all(1, keepdim=True) & self.training & (self.calls > 8)
        return self.head(x.flatten(1)) * torch.where(white, self.bad, 1.0)


class Weights(Callback):
    """The weights after each step."""

    def __init__(self):
        self.seen = []

    def on_train_batch_end(self, trainer, module, *args):
        self.seen.append(module.net.head.weight.detach().clone())


def task(bad=float("inf")):
    torch.manual_seed(0)
    return ImageClassifier(Burst(bad), lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), ["a", "b"])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_it_ends_the_run_and_says_where(trainer, tmp_path, bad):
    weights, module = Weights(), task(bad)
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
    assert torch.equal(module.net.head.weight, weights.seen[-1])


def test_a_loss_that_is_not_finite_with_gradients_that_are(trainer):
    """Such as that of a penalty which overflows."""

    class Overflow(nn.Module):
        def forward(self, logits, targets):
            return nn.functional.cross_entropy(logits, targets) + torch.tensor(float("inf"))

    module = ImageClassifier(Burst(1.0), lambda p: torch.optim.SGD(p, 0.1), ["a", "b"], loss=Overflow())
    with pytest.raises(NonFiniteError, match=r"step 0 \(epoch 0\): the loss is not finite"):
        trainer(max_epochs=1, limit_val_batches=0, callbacks=[NaNGuard()]).fit(module, datamodule=Images())


def test_bad_steps_are_left_out_and_counted(trainer):
    weights, module = Weights(), task()
    runner = trainer(max_epochs=4, callbacks=[weights, NaNGuard(skip=2)])
    runner.fit(module, datamodule=Images())
    same = [bool(torch.equal(one, other)) for one, other in zip(weights.seen, weights.seen[1:], strict=False)]
    assert sum(same) == 2  # in the third and the fourth epoch
    assert module.net.head.weight.isfinite().all()
    assert runner.callback_metrics["train/skipped_steps"] == 2
    with pytest.raises(NonFiniteError, match="after 1 skipped steps"):
        trainer(max_epochs=4, callbacks=[NaNGuard(skip=1)]).fit(task(), datamodule=Images())


class Normed(nn.Module):
    """With batch norm, whose statistics the white image spoils before any gradient is known."""

    def __init__(self):
        super().__init__()
        self.burst, self.norm = Burst(), nn.BatchNorm1d(2)
        self.head = self.burst.head

    def forward(self, x):
        return self.norm(self.burst(x))


def test_a_step_that_is_left_out_leaves_no_trace_in_statistics_and_means(trainer, tmp_path):
    def module():
        torch.manual_seed(0)
        return ImageClassifier(Normed(), lambda p: torch.optim.SGD(p, 0.1), ["a", "b"])

    runner, trained = trainer(max_epochs=4, callbacks=[NaNGuard(skip=2)]), module()
    runner.fit(trained, datamodule=Images())
    assert runner.callback_metrics["train/skipped_steps"] == 2
    assert trained.net.norm.running_mean.isfinite().all()
    assert runner.callback_metrics["train/loss"].isfinite()
    assert runner.callback_metrics["train/samples"] == 24  # without the batch of the white image
    assert runner.callback_metrics["val/loss"].isfinite()
    with pytest.raises(NonFiniteError):
        trainer(max_epochs=4, callbacks=[NaNGuard()]).fit(module(), datamodule=Images())
    saved = read(tmp_path / "checkpoints" / "before-nan.ckpt")["state_dict"]
    assert all(value.isfinite().all() for value in saved.values())


def test_without_it_weights_are_lost(trainer):
    """What it is for."""
    module = task()
    trainer(max_epochs=4).fit(module, datamodule=Images())
    assert module.net.head.weight.isnan().any()


class OverflowOfOne(nn.Module):
    """Infinite at first in the second process alone, with gradients that are finite."""

    calls = 0

    def forward(self, logits, targets):
        self.calls += 1
        first = self.calls == 1 and torch.distributed.get_rank() == 1
        return nn.functional.cross_entropy(logits, targets) + torch.tensor(float("inf") if first else 0.0)


class Compared(Callback):
    """Writes the weights of all processes."""

    def __init__(self, file):
        self.file = file

    def on_train_end(self, trainer, module):
        weights = module.all_gather(module.net.head.weight.detach())
        if trainer.is_global_zero:
            torch.save(weights, self.file)


def test_all_processes_leave_the_same_steps_out(trainer, tmp_path):
    module = ImageClassifier(Burst(1.0), lambda p: torch.optim.SGD(p, 0.1), ["a", "b"], loss=OverflowOfOne())
    parts = [NaNGuard(skip=1), Compared(tmp_path / "weights.pt")]
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    trainer(max_epochs=1, devices=2, strategy=strategy, callbacks=parts).fit(module, datamodule=Images())
    here, there = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert torch.equal(here, there)


def test_it_changes_nothing_else(trainer):
    trained = []
    for callbacks in ([], [NaNGuard(skip=1)]):
        module = task(bad=1.0)
        trainer(max_epochs=4, callbacks=callbacks).fit(module, datamodule=Images())
        trained.append(module.net.head.weight)
    assert torch.equal(*trained)
    with pytest.raises(ValueError, match="at least 0"):
        NaNGuard(skip=-1)


def test_accumulated_batches_are_all_named(trainer):
    with pytest.raises(NonFiniteError) as caught:
        trainer(max_epochs=4, callbacks=[NaNGuard()], accumulate_grad_batches=2).fit(task(), datamodule=Images())
    assert len(str(caught.value).partition("samples ")[2].partition(".")[0].split(", ")) == 16


def test_a_window_of_accumulated_batches_is_left_out_as_a_whole(trainer):
    weights, module = Weights(), task()
    runner = trainer(max_epochs=4, callbacks=[weights, NaNGuard(skip=2)], accumulate_grad_batches=2)
    runner.fit(module, datamodule=Images())
    after_steps = weights.seen[1::2]
    same = [bool(torch.equal(one, other)) for one, other in pairwise(after_steps)]
    assert sum(same) == runner.callback_metrics["train/skipped_steps"] == 2
    assert module.net.head.weight.isfinite().all()


def test_the_scale_of_losses_is_looked_for_in_peace(trainer):
    """A gradient scaler begins with a scale that is too great, and leaves steps out until it fits."""

    class Scaling(Precision):
        scaler = object()

    module = task()
    trainer(max_epochs=4, callbacks=[NaNGuard()], plugins=[Scaling()]).fit(module, datamodule=Images())
    assert module.net.head.weight.isnan().any()  # this scaler leaves out none


@pytest.mark.parametrize("validated", [True, False])
def test_without_the_guard_a_run_that_diverges_ends_with_an_error_and_no_checkpoint(lit, validated):
    blind = (
        "--trainer.limit_val_batches=0 --trainer.callbacks=null "
        "--trainer.callbacks+=lit_project.callbacks.Checkpoint --trainer.callbacks.monitor=null"
    )
    result = lit(
        f"fit -c configs/quickstart.yaml {TINY} --model.optimizer.lr=1e30 --model.schedulers=null",
        "" if validated else blind,
    )
    assert result.status == 2
    assert re.search(rf"epoch 0: {'val' if validated else 'train'}/loss is (nan|inf)\. .*learning rate", result.err)
    assert "best checkpoint" not in result.out
    assert not list(result.run.glob("checkpoints/*"))
