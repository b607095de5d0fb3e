"""Helpers for learning rate tests: a task that records the rates, and closed-form curves."""

from functools import partial
from math import cos, pi

import pytest
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

from lit_engine.training.task import Task

LR = 0.8


class Noted(Task):
    """Task that records learning rates and momenta at each step. `losses` are the validation losses by epoch."""

    def __init__(self, optimizer, schedulers, losses):
        super().__init__(optimizer, schedulers)
        self.net = nn.Linear(2, 1)
        self.losses = losses
        self.rates, self.momenta = [], []

    def training_step(self, batch, batch_idx):
        return {"loss": self.net(batch).square().mean()}

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.losses[self.current_epoch])

    def on_before_optimizer_step(self, optimizer):
        super().on_before_optimizer_step(optimizer)
        self.rates.append(optimizer.param_groups[0]["lr"])
        self.momenta.append(optimizer.param_groups[0].get("momentum"))


class Groups(Noted):
    """Task with two parameter groups, one of which has its own rate."""

    def parameter_groups(self):
        return [{"params": [self.net.weight], "lr": 0.1}, {"params": [self.net.bias]}]

    def on_before_optimizer_step(self, optimizer):
        Task.on_before_optimizer_step(self, optimizer)
        self.rates.append([group["lr"] for group in optimizer.param_groups])


def close(values):
    return pytest.approx(list(values), rel=1e-6, abs=1e-9)


def cosine(step, steps, peak=LR, end=0.0):
    return end + (peak - end) * (1 + cos(pi * step / steps)) / 2


def line(step, steps, start, end=1.0):
    return start + (end - start) * min(step / steps, 1)


def halving(every):
    return partial(torch_schedulers.StepLR, step_size=every, gamma=0.5)
