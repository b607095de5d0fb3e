"""Tests the suggestions of `--find`."""

import logging
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers import TINY
from lit_engine.callbacks.freezing import Unfreezing
from lit_engine.run.directory import RunDir
from lit_engine.tools import lr_finder
from lit_engine.tools.lr_finder import find, find_steepest_rate
from lit_engine.training.parameter_groups import Group, ParameterGroups
from toy.data import Digits
from toy.tasks import ImageClassifier

RATES = [10 ** (-6 + 7 * i / 99) for i in range(100)]


def valley(rate):
    """A loss curve that falls like a logistic function around 1e-3 and explodes beyond 1."""
    return 2.3 - 1.5 / (1 + math.exp(-4 * (math.log10(rate) + 3))) + max(rate - 1, 0) ** 2


def test_suggests_the_rate_with_the_steepest_descent():
    assert find_steepest_rate(RATES, [valley(rate) for rate in RATES]) == pytest.approx(1e-3, rel=0.3)


def test_noisy_losses_of_the_first_batches_have_no_influence():
    """At first, the running mean covers only a few batches, so it may fall by chance."""
    losses = [valley(rate) for rate in RATES]
    losses[0] += 0.25
    losses[2] -= 0.1
    assert find_steepest_rate(RATES, losses) == pytest.approx(1e-3, rel=0.3)


def test_the_loss_curve_ends_at_the_first_non_finite_loss():
    losses = [valley(rate) for rate in RATES[:80]] + [float("nan")] * 20
    assert find_steepest_rate(RATES, losses) == pytest.approx(1e-3, rel=0.3)


@pytest.mark.parametrize("losses", [[], [1.0] * 100, RATES], ids=["empty", "flat", "rising"])
def test_suggests_no_rate_if_the_loss_never_falls(losses):
    assert find_steepest_rate(RATES, losses) is None


class Watched(torch.optim.SGD):
    """Records the groups' learning rates, and which parameters have gradients, in each step."""

    def step(self, closure=None):
        result = super().step(closure)
        self.steps.append({g["name"]: (g["lr"], g["params"][0].grad is not None) for g in self.param_groups})
        return result


def test_find_lr_respects_parameter_groups_and_freezing_in_the_first_epoch(trainer):
    """In step k, group i has the rate factor_i · 1e-6 · 1e7^(k/99). The search takes many epochs of this data."""
    Watched.steps = []
    body, late = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, 16)
    net = nn.Sequential()
    net.body, net.late, net.head = body, late, nn.Linear(16, 10)
    data = Digits(batch_size=500, seed=0)
    groups = [Group("body", ["net.body"], lr_factor=0.1), Group("late", ["net.late"], lr_factor=0.5)]
    task = ImageClassifier(
        net, partial(Watched, lr=0.3), data.class_names, data.mean, data.std, parameter_groups=ParameterGroups(groups)
    )
    before = late.weight.detach().clone()
    fit = trainer(max_epochs=2, callbacks=[Unfreezing({"net.late": 1})], accumulate_grad_batches=2)
    find(SimpleNamespace(find="lr"), fit, task, data)
    assert 50 < len(Watched.steps) <= 100
    for k, groups in enumerate(Watched.steps):
        rate = 1e-6 * 1e7 ** (k / 99)
        assert groups == {"base": (pytest.approx(rate), True), "body": (pytest.approx(0.1 * rate), True)}
    assert fit.current_epoch > 10
    assert torch.equal(late.weight, before)


@pytest.mark.draws
def test_find_lr_on_the_command_line_does_not_train(lit):
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --find lr --name found")
    assert result.status == 0
    assert (result.run / "figures" / "lr_finder.png").stat().st_size > 5000
    assert not (result.run / "checkpoints").exists()
    suggestion = next(line for line in result.out.splitlines() if line.startswith("suggested: "))
    option = suggestion.split()[1]
    assert 1e-5 < float(option.partition("=")[2]) < 1
    assert str(result.run) not in lit("runs").out  # it is not a run until it is trained
    fit = f"fit -c configs/quickstart.yaml {TINY} {option} --trainer.max_epochs=1 --name found"
    with RunDir(result.run).lock():  # another process has just started to train this run
        assert "another process is training the run" in lit(fit).err
    trained = lit(fit)
    assert (trained.status, trained.run) == (0, result.run)
    assert (result.run / "figures" / "lr_finder.png").exists()
    assert "already exists" in lit(fit).err


def test_find_batch_size_stops_at_the_number_of_samples(lit, monkeypatch):
    messages, handler = [], logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())
    for name in ("lightning.pytorch", "pytorch_lightning"):  # the latter if another test has imported it
        monkeypatch.setattr(logging.getLogger(name), "handlers", [handler])
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --data.batch_size=256 --data.drop_last=true --find batch_size")
    assert result.status == 0
    assert "suggested: --data.batch_size=1024 (" in result.out  # 1,257 training samples
    assert any("succeeded" in message for message in messages)
    assert not [message for message in messages if "will continue" in message or "weights_only" in message]


def test_find_batch_size_suggests_only_sizes_that_it_has_tried(lit, monkeypatch):
    monkeypatch.setattr(lr_finder, "LARGEST", 512)
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --find batch_size")
    assert "suggested: --data.batch_size=512 (" in result.out


def test_find_batch_size_halves_a_size_that_does_not_fit(lit, monkeypatch):
    step = ImageClassifier.training_step

    def limited(self, batch, batch_idx):
        if len(batch[1]) > 50:
            raise RuntimeError("CUDA out of memory.")
        return step(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassifier, "training_step", limited)
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --find batch_size")
    assert "suggested: --data.batch_size=32 (the largest of 128, 64… that fits in memory" in result.out


def test_find_rejects_other_values_other_commands_and_existing_runs(lit, trained):
    assert "find" in lit(f"fit -c configs/quickstart.yaml {TINY} --find luck").err
    assert lit(f"test -c configs/quickstart.yaml {TINY} --find lr").status == 2
    assert "remove --find" in lit("fit --run", trained, "--find lr").err
    assert "remove --name" in lit("fit --run", trained, "--name new").err


def test_find_batch_size_rejects_several_processes_before_they_start(lit):
    result = lit(
        "fit -c configs/quickstart.yaml -c configs/overlays/ddp.yaml --trainer.accelerator=cpu --find batch_size"
    )
    assert result.status == 2
    assert result.err.startswith("error: --find batch_size needs one process: set --trainer.devices=1")
