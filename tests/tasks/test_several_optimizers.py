"""Tests that two optimizers, for encoder and decoder, can step, accumulate, clip and resume just like a single one."""

from functools import partial

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from translation_data import few, net

from lit_engine.callbacks.nan_guard import NaNGuard, NonFiniteError
from lit_engine.callbacks.record import format_metrics
from lit_engine.errors import UserError
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.run.directory import RunDir
from lit_engine.training.parameter_groups import Group, ParameterGroups
from lit_engine.training.schedules import CosineAnnealingLR, Schedule, learning_rates
from lit_project.tasks.several_optimizers import Part, TranslatorOfParts
from lit_project.tasks.translation.task import Translator
from saving import SaveAt

SGD = partial(torch.optim.SGD, lr=0.5)
SLOW = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ENCODER, DECODER = ["net.encoder"], ["net.target_embedding", "net.bridge", "net.decoder", "net.output"]


def parts(encoder=SLOW, decoder=SGD, schedules=None):
    schedules = schedules or {}
    return [
        Part("encoder", ENCODER, encoder, schedules.get("encoder", [])),
        Part("decoder", DECODER, decoder, schedules.get("decoder", [])),
    ]


def trained(trainer, task, data, epochs=2, **kwargs):
    runner = trainer(max_epochs=epochs, **kwargs)
    runner.fit(task, datamodule=data)
    return task.state_dict(), runner


def of_parts(data, **kwargs):
    return TranslatorOfParts(**{"parts": parts(), **kwargs}, net=net(data).double(), vocabularies=data.vocabularies)


def usual(data, optimizer, **kwargs):
    return Translator(net(data).double(), optimizer, data.vocabularies, **kwargs)


def difference(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


def test_two_optimizers_match_one_optimizer_with_two_parameter_groups(trainer):
    data = few(batch_size=4, seed=1)
    two, runner = trained(trainer, of_parts(data, parts=parts(SGD, partial(SGD, lr=0.1))), data)
    groups = ParameterGroups([Group("decoder", DECODER, lr_factor=0.2)])
    one, other = trained(trainer, usual(data, SGD, parameter_groups=groups), data)
    assert difference(one, two) < 1e-12
    assert runner.global_step == other.global_step == 10


def test_accumulation_and_clipping_match_the_trainer(trainer):
    clip = 0.05
    data = few(batch_size=3, seed=1)  # seven batches: windows of three, three and one
    mine, runner = trained(trainer, of_parts(data, parts=parts(SGD, SGD), accumulate=3, clip_norm=clip), data)
    theirs, other = trained(trainer, usual(data, SGD), data, accumulate_grad_batches=3, gradient_clip_val=clip)
    assert difference(mine, theirs) < 1e-12
    assert runner.global_step == other.global_step == 6


def test_all_metrics_are_logged_at_the_optimizer_step(trainer, tmp_path):
    data = few(batch_size=3, seed=1)  # seven batches: three steps per epoch
    task = of_parts(data, accumulate=3)
    options = {"logger": [MetricsCSV(tmp_path)], "log_every_n_steps": 1, "limit_test_batches": 1}
    _, runner = trained(trainer, task, data, **options)
    runner.test(task, datamodule=data, verbose=False)
    rows = RunDir(tmp_path).history()[1]
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4", "5", "6"]
    assert [row["step"] for row in rows if row["val/loss"]] == ["2", "5"]
    assert [row["epoch"] for row in rows] == ["0", "0", "0", "1", "1", "1", "2"]
    assert not {"epoch", "step"} & set(format_metrics(runner.callback_metrics, None).split())


def test_steps_stay_correct_if_a_resumed_run_accumulates_fewer_batches(trainer, tmp_path):
    data, file = few(batch_size=3, seed=1), tmp_path / "saved.ckpt"
    _, runner = trained(trainer, of_parts(data, accumulate=3), data, epochs=1)
    runner.save_checkpoint(file)
    resumed = trainer(max_epochs=2, logger=[MetricsCSV(tmp_path)], log_every_n_steps=1)
    resumed.fit(of_parts(data, accumulate=1), datamodule=data, ckpt_path=file, weights_only=True)
    assert resumed.global_step == 3 + 7
    assert [row["step"] for row in RunDir(tmp_path).history()[1] if row["val/loss"]] == ["9"]


def test_each_optimizer_follows_its_own_schedule_until_the_run_ends(trainer):
    data = few(batch_size=3, seed=1)
    schedules = {"encoder": [Schedule(CosineAnnealingLR, "step")], "decoder": [Schedule(CosineAnnealingLR, "epoch")]}
    seen = []

    class Watched(TranslatorOfParts):
        def _step_optimizers(self):
            seen.append(learning_rates(self.trainer.optimizers))
            super()._step_optimizers()

        def on_before_optimizer_step(self, optimizer):
            super().on_before_optimizer_step(optimizer)

    task = Watched(
        parts=parts(schedules=schedules), accumulate=3, net=net(data).double(), vocabularies=data.vocabularies
    )  # fmt: skip
    trained(trainer, task, data)
    assert list(seen[0]) == ["lr/encoder", "lr/decoder"]
    cosine = [0.05 * (1 + torch.tensor(torch.pi * step / 6).cos().item()) / 2 for step in range(6)]
    assert [rates["lr/encoder"] for rates in seen] == pytest.approx(cosine)
    assert [rates["lr/decoder"] for rates in seen] == pytest.approx([0.5] * 3 + [0.25] * 3)
    assert learning_rates(task.trainer.optimizers) == pytest.approx({"lr/encoder": 0, "lr/decoder": 0}, abs=1e-9)


def test_checkpoint_restores_both_optimizer_states(trainer, tmp_path):
    data, file = few(batch_size=4, seed=1), tmp_path / "saved.ckpt"
    adam = partial(torch.optim.Adam, lr=0.01)
    schedules = {"encoder": [Schedule(CosineAnnealingLR, "step")]}
    make = partial(of_parts, data, parts=parts(SLOW, adam, schedules))
    whole, _ = trained(trainer, make(), data, callbacks=[SaveAt(3, file)])
    assert len(torch.load(file, weights_only=True)["optimizer_states"]) == 2
    resumed = make()
    trainer(max_epochs=2).fit(resumed, datamodule=few(batch_size=4, seed=1), ckpt_path=file, weights_only=True)
    assert difference(whole, resumed.state_dict()) == 0


def test_unsupported_options_are_rejected(trainer):
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    data = few(batch_size=4, seed=1)
    with pytest.raises(UserError, match="bf16-mixed"):
        trained(trainer, of_parts(data), data, plugins=[plugin])
    with pytest.raises(ValueError, match="accumulate must be at least 1, got -2"):
        of_parts(data, accumulate=-2)
    with pytest.raises(ValueError, match="clip_norm must be above 0, got 0"):
        of_parts(data, clip_norm=0)
    with pytest.raises(UserError, match="decoder cannot use LBFGS"):
        trained(trainer, of_parts(data, parts=parts(decoder=torch.optim.LBFGS)), data)


def test_nan_guard_checks_the_gradients_of_every_optimizer(trainer):
    data = few(batch_size=4, seed=1)
    task = of_parts(data, clip_norm=1.0)
    name, parameter = next((n, p) for n, p in task.named_parameters() if n.startswith("net.decoder") and p.dim() > 1)
    calls = []

    def burst(gradient):
        calls.append(1)
        return gradient * (float("nan") if len(calls) == 3 else 1.0)

    parameter.register_hook(burst)
    with pytest.raises(NonFiniteError, match=rf"step 2 .*the gradient of {name} is not finite"):
        trained(trainer, task, data, callbacks=[NaNGuard()])
    assert all(p.isfinite().all() for p in task.parameters())
