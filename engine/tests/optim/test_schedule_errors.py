"""Schedules that contradict themselves, each other or the length of the run raise errors before the first step."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers
from torch.utils.data import DataLoader

from lit_engine.errors import UserError
from lit_engine.training.parameter_groups import Group, ParameterGroups
from lit_engine.training.schedules import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    Schedule,
    SequentialLR,
)
from lit_engine.training.task import Task

EXPONENTIAL = partial(torch_schedulers.ExponentialLR, gamma=0.9)
ONE_CYCLE = partial(OneCycleLR, cycle_momentum=False)


class Line(Task):
    """Linear model that must not be trained."""

    def __init__(self, schedulers, groups=None):
        super().__init__(partial(torch.optim.SGD, lr=0.1), schedulers, groups)
        self.net = nn.Linear(2, 1)

    def training_step(self, batch, batch_idx):
        raise AssertionError("training has begun")


@pytest.fixture
def error_of(trainer):
    """Return a function that starts a run with ten batches per epoch and returns the message of its error."""

    def run(*schedules, groups=None, **kwargs):
        with pytest.raises(UserError) as error:
            trainer(**{"max_epochs": 1, **kwargs}).fit(Line(schedules, groups), DataLoader(torch.ones(10, 2)))
        return str(error.value)

    return run


def sequence(*milestones, schedulers=(LinearLR, CosineAnnealingLR)):
    return Schedule(partial(SequentialLR, schedulers=schedulers, milestones=milestones), "step")


def test_rejects_a_milestone_beyond_the_end_of_the_run(error_of):
    assert error_of(sequence(10)) == "milestone 10 of SequentialLR is not within the run, which ends at 10"
    assert "which ends at 5" in error_of(sequence(6), accumulate_grad_batches=2)
    assert "which ends at 3" in error_of(sequence(6), max_steps=3)
    by_epoch = Schedule(partial(SequentialLR, schedulers=[LinearLR, CosineAnnealingLR], milestones=[5]), "epoch")
    assert "which ends at 4" in error_of(by_epoch, max_epochs=4)


def test_rejects_milestones_that_are_not_positive_and_ascending(error_of):
    for milestones in ((3, 3), (0.5, 0.3), (-1, 3), (0.5, 3), (3,), (1.5, 3)):
        message = error_of(sequence(*milestones, schedulers=[LinearLR, PolynomialLR, CosineAnnealingLR]))
        assert "the milestones of SequentialLR must be positive and ascending" in message
        assert str(list(milestones)) in message


def test_a_schedule_that_spans_the_run_needs_a_finite_run(error_of):
    for scheduler, interval in ((ONE_CYCLE, "step"), (LinearLR, "epoch")):
        assert "trainer.max_epochs, max_steps" in error_of(Schedule(scheduler, interval), max_epochs=-1)


def test_a_schedule_outside_a_task_suggests_the_schedules_of_torch():
    with pytest.raises(UserError, match=r"not a Task must use torch's schedulers, such as torch\.optim\.lr_scheduler"):
        CosineAnnealingLR(torch.optim.SGD([torch.zeros(1)], lr=0.1))


def test_unknown_plateau_metric_error_lists_the_available_metrics(trainer):
    class Logs(Line):
        def training_step(self, batch, batch_idx):
            return {"loss": self.net(batch).mean()}

        def on_train_epoch_end(self):
            self.log("train/some", 1.0)
            super().on_train_epoch_end()

        def validation_step(self, batch, batch_idx):
            self.log("val/loss", 1.0)

    task = Logs([Schedule(torch_schedulers.ReduceLROnPlateau, "epoch", monitor="val/los")])
    with pytest.raises(UserError, match=r"ReduceLROnPlateau monitors 'val/los'; available: .*train/some.*val/loss"):
        trainer(max_epochs=1).fit(task, DataLoader(torch.ones(10, 2)), DataLoader(torch.ones(1, 2)))


def test_rejects_schedules_incompatible_with_parameter_group_rates(error_of):
    groups = ParameterGroups([Group("slow", ["*.bias"], lr_factor=0.1)])
    cyclic = partial(torch_schedulers.CyclicLR, base_lr=0.01, max_lr=0.1)
    assert "one base_lr for parameter groups" in error_of(Schedule(cyclic, "step"), groups=groups)
    cosine = partial(CosineAnnealingLR, eta_min=0.02)
    for schedule in (Schedule(cosine, "step"), sequence(3, schedulers=[LinearLR, cosine])):
        assert "eta_min 0.02 is above the rate of a parameter group, 0.01" in error_of(schedule, groups=groups)


def test_rejects_a_frequency_below_one(error_of):
    message = error_of(Schedule(CosineAnnealingLR, "step", frequency=0))
    assert message == "schedulers[0]: frequency must be at least 1, got 0"


def test_monitor_is_required_for_plateaus_and_rejected_for_other_schedules(error_of):
    for schedule in (
        Schedule(CosineAnnealingLR, "step", monitor="val/loss"),
        Schedule(torch_schedulers.ReduceLROnPlateau, "epoch"),
    ):
        assert "set `monitor` only for ReduceLROnPlateau" in error_of(schedule)


def test_plateaus_cannot_be_checked_after_each_step(error_of):
    message = error_of(Schedule(torch_schedulers.ReduceLROnPlateau, "step", frequency=4, monitor="val/loss"))
    assert message == "schedulers[0]: a schedule that monitors a metric needs interval: epoch"


def test_rejects_multiplying_schedules_that_are_not_factors(error_of):
    for scheduler in (
        ONE_CYCLE,
        partial(torch_schedulers.LambdaLR, lr_lambda=lambda step: 0.9**step),
        partial(SequentialLR, schedulers=[LinearLR, CosineAnnealingLR], milestones=[3]),
        partial(CosineAnnealingLR, eta_min=0.01),
    ):
        message = error_of(Schedule(EXPONENTIAL, "step"), Schedule(scheduler, "step"))
        assert "cannot be multiplied with other" in message


def test_rejects_schedulers_that_cannot_start_at_a_milestone_of_a_sequence(error_of):
    inner = partial(SequentialLR, schedulers=[LinearLR, CosineAnnealingLR], milestones=[3])
    factors = partial(torch_schedulers.MultiplicativeLR, lr_lambda=lambda step: 0.9)
    for scheduler in (ONE_CYCLE, factors, inner):
        assert "cannot be part of a SequentialLR" in error_of(sequence(3, schedulers=[LinearLR, scheduler]))
