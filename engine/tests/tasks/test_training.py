"""Training matches plain PyTorch bit for bit, is repeatable, and stays exact with accumulation and after resuming."""

import copy
import math
import time
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn
from torch.nn import functional as F
from torchvision.transforms.v2 import RandomCrop, RandomHorizontalFlip

from helpers import NAMES, SaveAt, batches, classifier, linear, same_weights
from lit_engine.errors import UserError
from lit_engine.training.saver import Saver
from lit_engine.training.schedules import CosineAnnealingLR, Schedule
from lit_engine.training.task import Task
from toy.data import Images
from toy.tasks import ImageClassifier


def state(task):
    return {name: value.clone() for name, value in task.state_dict().items()}


def with_dropout():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4)
    )


def test_random_numbers_after_training_continue_from_before(trainer):
    task = classifier(with_dropout())
    state = torch.get_rng_state()
    trainer(max_epochs=1).fit(task, datamodule=Images())
    assert torch.equal(torch.get_rng_state(), state)


def test_repeated_evaluations_draw_new_random_numbers(trainer):
    class Sampling(ImageClassifier):
        def evaluation_step(self, batch, split):
            self.drawn = torch.rand(1)
            return super().evaluation_step(batch, split)

    task, drawn = Sampling(linear(), partial(torch.optim.SGD, lr=0.1), NAMES), []
    for _ in range(2):
        trainer(callbacks=[Saver()]).test(task, datamodule=Images())
        drawn.append(task.drawn)
    assert drawn[0] != drawn[1]


def test_a_training_step_that_does_not_call_step_causes_a_warning(trainer, capsys):
    class Ordinary(Task):
        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

    task = Ordinary(partial(torch.optim.SGD, lr=0.1))
    task.net = linear()
    run = trainer(max_epochs=1, limit_val_batches=0)
    run.fit(task, datamodule=Images())
    assert "Ordinary.training_step does not call self.step, so samples are not counted" in capsys.readouterr().err
    assert "train/samples" not in run.callback_metrics


def test_hooks_must_call_super():
    with pytest.raises(UserError, match=r"Mine\.on_train_epoch_start must call super\(\)"):

        class Mine(Task):
            def on_train_epoch_start(self):
                print(self.current_epoch)

    class Mixin:
        def on_before_optimizer_step(self, optimizer):
            print(self.current_epoch)

    with pytest.raises(UserError, match=r"Mixin\.on_before_optimizer_step must call super\(\)"):
        type("Mixed", (Mixin, Task), {})

    class Calls(Task):
        def on_train_epoch_start(self):
            super().on_train_epoch_start()

        def on_train_start(self):
            Task.on_train_start(self)

        @torch.no_grad()
        def on_train_epoch_end(self):
            super().on_train_epoch_end()


def test_training_matches_plain_pytorch_bit_for_bit(trainer):
    optimizer = partial(torch.optim.AdamW, lr=0.01)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    reference = copy.deepcopy(net)
    data = Images(batch_size=8, seed=3)
    trainer(max_epochs=3).fit(classifier(net, optimizer=optimizer), datamodule=data)

    plain = optimizer(reference.parameters())
    steps = 0
    for images, targets in batches(data, 3):
        loss = F.cross_entropy(reference((images - 0.4) / 0.3), targets)
        plain.zero_grad()
        loss.backward()
        plain.step()
        steps += 1
    assert steps == 12
    assert same_weights(state(net), state(reference))


def fit(trainer, seed_run, seed=1, noise=False, **kwargs):
    class Noise(Callback):
        """Draws from the global random state, as a logger or figure might."""

        def on_train_batch_end(self, *args):
            torch.rand(3)

    seed_run(seed)
    task = classifier(with_dropout())
    data = Images(batch_size=8, train_transforms=[RandomCrop(4, padding=1), RandomHorizontalFlip()])
    trainer(max_epochs=3, callbacks=[Noise()] if noise else [], **kwargs).fit(task, datamodule=data)
    return state(task)


def test_fits_with_the_same_seed_are_identical_including_dropout(trainer, seed_run):
    first = fit(trainer, seed_run)
    assert same_weights(fit(trainer, seed_run, noise=True), first)
    assert not same_weights(fit(trainer, seed_run, seed=2), first)


def test_training_is_unaffected_by_validation(trainer, seed_run):
    assert same_weights(fit(trainer, seed_run, limit_val_batches=0), fit(trainer, seed_run, num_sanity_val_steps=2))


def test_resumed_training_is_identical_including_dropout(trainer, seed_run, tmp_path):
    def make():
        seed_run(1)
        optimizer = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        task = classifier(with_dropout(), optimizer=optimizer, schedulers=[Schedule(CosineAnnealingLR, "step")])
        return task, Images(batch_size=8, train_transforms=[RandomCrop(4, padding=1)])

    whole, data = make()
    trainer(max_epochs=3, callbacks=[SaveAt(6, tmp_path / "saved.ckpt")]).fit(whole, datamodule=data)
    resumed, data = make()
    torch.rand(11)
    runner = trainer(max_epochs=3)
    runner.fit(resumed, datamodule=data, ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert runner.global_step == 12
    assert same_weights(state(resumed), state(whole))


class Lines(DummyLogger):
    """Logger that stores the logged values with their steps."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))


def test_rates_and_losses_are_logged_for_the_step_that_used_them(trainer):
    accumulate = 2
    lines, rates, losses = Lines(), [], []

    class Noted(Callback):
        def on_before_optimizer_step(self, trainer, task, optimizer):
            rates.append(optimizer.param_groups[0]["lr"])

        def on_train_batch_end(self, trainer, task, outputs, batch, batch_idx):
            with torch.no_grad():
                losses.append(F.cross_entropy(task(batch.images), batch.targets, reduction="none"))

    torch.manual_seed(0)
    task = classifier(schedulers=[Schedule(Ramp, "step")])  # weights do not change, so losses can be recomputed
    runner = trainer(
        max_epochs=2, callbacks=[Noted()], logger=lines, log_every_n_steps=2, accumulate_grad_batches=accumulate
    )
    runner.fit(task, datamodule=Images(batch_size=8))
    single = [(step, metrics) for step, metrics in lines.lines if "train/loss_step" in metrics]
    steps = 8 // accumulate
    assert [step for step, _ in single] == list(range(1, steps, 2))
    assert [metrics["lr"] for _, metrics in single] == [rates[step] for step, _ in single]
    windows = [losses[step * accumulate : (step + 1) * accumulate] for step, _ in single]
    means = [torch.cat(window).mean().item() for window in windows]  # the last micro-batch of an epoch is smaller
    assert [metrics["train/loss_step"] for _, metrics in single] == pytest.approx(means, rel=1e-6)
    epochs = [(step, metrics) for step, metrics in lines.lines if "train/loss" in metrics]
    assert [metrics["lr"] for _, metrics in epochs] == [rates[steps // 2 - 1], rates[-1]]


class Ramp(torch.optim.lr_scheduler.LRScheduler):
    """Scheduler with a tiny rate proportional to the step, so that rates differ without affecting the weights."""

    def get_lr(self):
        return [1e-20 * (self.last_epoch + 1)]


def test_a_resumed_epoch_logs_means_over_all_samples_and_each_step_once(trainer, tmp_path):
    data, file, lines = Images(batch_size=8, seed=1), tmp_path / "saved.ckpt", Lines()
    uncut = Lines()
    whole = trainer(max_epochs=2, callbacks=[SaveAt(6, file)], logger=uncut, log_every_n_steps=1)  # 4 steps per epoch
    whole.fit(classifier(linear()), datamodule=data)
    resumed = trainer(max_epochs=2, logger=lines, log_every_n_steps=1)
    resumed.fit(classifier(linear()), datamodule=data, ckpt_path=file, weights_only=True)
    for name in ("train/loss", "train/accuracy", "train/samples"):
        assert resumed.callback_metrics[name] == whole.callback_metrics[name]
    single = [(step, metrics["train/loss_step"]) for step, metrics in lines.lines if "train/loss_step" in metrics]
    assert [step for step, _ in single] == [6, 7]
    expected = {step: metrics["train/loss_step"] for step, metrics in uncut.lines if "train/loss_step" in metrics}
    assert dict(single) == {step: expected[step] for step in (6, 7)}  # values of single steps, not of the epoch so far


class StopAt(Callback):
    """Requests a stop after the given step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_end(self, trainer, *args):
        trainer.should_stop = trainer.global_step == self.step


def test_the_rate_logged_for_an_epoch_is_the_rate_of_its_last_step(trainer):
    """A stop request ends the second epoch after two of four steps."""
    lines = Lines()
    task = classifier(schedulers=[Schedule(Ramp, "step")])
    runner = trainer(max_epochs=2, logger=lines, log_every_n_steps=1000, callbacks=[StopAt(6)])
    runner.fit(task, datamodule=Images(batch_size=8))
    assert [metrics["lr"] for _, metrics in lines.lines if "train/loss" in metrics] == [4 * 1e-20, 6 * 1e-20]


@pytest.mark.parametrize("fused", [False, True])
def test_the_logged_gradient_norm_excludes_the_loss_scale(trainer, fused):
    """Lightning unscales 16-mixed gradients before computing the norm, but not with fused optimizers."""
    norms = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]):
        torch.manual_seed(0)
        logger, optimizer = Lines(), partial(torch.optim.AdamW, lr=0.1, fused=fused)
        options = {"max_steps": 1, "log_every_n_steps": 1, "logger": logger, "plugins": plugins}
        trainer(**options).fit(classifier(optimizer=optimizer), datamodule=Images(batch_size=29, seed=1))
        norms += [values["train/gradient_norm"] for _, values in logger.lines if "train/gradient_norm" in values]
    full, scaled = norms
    assert scaled == pytest.approx(full, rel=0.02)


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_are_clipped_like_unscaled_ones(trainer, fused):
    """Lightning rejects clipping with fused optimizers, which unscale gradients within their step."""
    weights = []
    for plugins in ([], [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]):
        torch.manual_seed(0)
        task = classifier(optimizer=partial(torch.optim.SGD, lr=10.0, fused=fused))
        options = {"max_steps": 3, "gradient_clip_val": 0.1, "plugins": plugins}
        trainer(**options).fit(task, datamodule=Images(batch_size=29, seed=1))
        weights.append(task.net[1].weight.detach())
    assert torch.allclose(*weights, atol=0.02)  # steps have size 1
    if fused:
        with pytest.raises(UserError, match="cannot clip by value: set fused: false"):
            trainer(**options, gradient_clip_algorithm="value").fit(task, datamodule=Images(batch_size=29, seed=1))


def test_resuming_with_a_different_memory_format_gives_the_same_weights(trainer, tmp_path):
    """Devices may differ in memory format, and fused steps pair weights and momenta by their positions in memory."""
    file, weights = tmp_path / "first.ckpt", []
    for before, after in ((False, False), (False, True), (True, False)):
        for last, epochs in ((before, 1), (after, 2)):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 2), nn.Flatten(), nn.Linear(8, 4))
            momentum = partial(torch.optim.SGD, lr=0.1, momentum=0.9, fused=True)
            task, fit = classifier(net, optimizer=momentum, channels_last=last), trainer(max_epochs=epochs)
            fit.fit(task, datamodule=Images(batch_size=8, seed=1), ckpt_path=file if epochs > 1 else None)
            fit.save_checkpoint(file)
        weights.append(net[2].weight.detach())
    for other in weights[1:]:
        assert torch.allclose(weights[0], other, atol=1e-5)


def test_the_last_rate_is_logged_if_max_steps_ends_the_run_mid_epoch(trainer):
    logger, schedules = Lines(), [Schedule(CosineAnnealingLR, "step")]
    trainer(max_steps=4, log_every_n_steps=100, logger=logger).fit(
        classifier(schedulers=schedules), datamodule=Images(batch_size=1, seed=1)
    )
    (rate,) = [values["lr"] for _, values in logger.lines if "lr" in values]
    assert rate == pytest.approx(0.1 * (1 + math.cos(math.pi * 3 / 4)) / 2)


class Slow(Callback):
    """Callback that makes validation slow."""

    def on_validation_batch_start(self, *args):
        time.sleep(0.3)


def test_mid_epoch_validation_does_not_count_as_training_time(trainer):
    often = {"val_check_interval": 1, "limit_val_batches": 1, "num_sanity_val_steps": 0}
    runner = trainer(max_epochs=1, callbacks=[Slow()], **often)
    runner.fit(classifier(), datamodule=Images(batch_size=16))  # two batches, each followed by a validation
    metrics = runner.callback_metrics
    assert metrics["train/samples"] / metrics["train/samples_per_second"] < 0.3  # seconds
