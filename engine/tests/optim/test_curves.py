"""Compares the learning rate curves of real runs with closed-form expressions at every step."""

from functools import partial
from math import ceil

import pytest
import torch
from curves import LR, Groups, close, cosine, halving, line
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

from lit_engine.errors import UserError
from lit_engine.training.schedules import (
    CosineAnnealingLR,
    InverseSqrtLR,
    LinearLR,
    OneCycleLR,
    PolynomialLR,
    Schedule,
    SequentialLR,
    horizon,
    horizon_is,
)

# Trainer options, and the resulting number of optimizer steps.
LENGTHS = {
    "max_steps before max_epochs": ({"batches": 10, "max_epochs": 9, "max_steps": 23}, 23),
    "accumulation and max_steps": ({"batches": 7, "max_epochs": 9, "accumulate_grad_batches": 2, "max_steps": 10}, 10),
    "limited batches": ({"batches": 20, "max_epochs": 2, "limit_train_batches": 0.5}, 20),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_cosine_schedule_matches_its_formula(train, name):
    kwargs, steps = LENGTHS[name]
    eta_min = 0.1
    task = train(Schedule(partial(CosineAnnealingLR, eta_min=eta_min), "step"), **kwargs)
    assert task.rates == close(cosine(step, steps, end=eta_min) for step in range(steps))


def test_polynomial_schedule_matches_its_formula(train):
    task = train(Schedule(partial(PolynomialLR, power=2.0), "step"))
    assert task.rates == close(LR * (1 - step / 10) ** 2 for step in range(10))


def test_inverse_square_root_schedule_matches_its_formula(train):
    task = train(Schedule(partial(InverseSqrtLR, warmup_steps=4), "step"))
    assert task.rates == close(LR * rate for rate in [0.25, 0.5, 0.75, 1, *((4 / n) ** 0.5 for n in range(5, 11))])
    with pytest.raises(UserError, match="warmup_steps must be at least 1, got 0"):
        train(Schedule(partial(InverseSqrtLR, warmup_steps=0), "step"))


@pytest.mark.parametrize("pct_start", [0.4, 1 / 11])
def test_one_cycle_schedule_matches_its_formula(train, pct_start):
    steps = 10
    momentum = partial(torch.optim.SGD, lr=LR, momentum=0.5)
    task = train(Schedule(partial(OneCycleLR, pct_start=pct_start), "step"), optimizer=momentum)
    total = steps + 1  # like the cosine, the curve reaches its last value when the run ends
    peak = pct_start * total - 1
    rates, momenta = [], []
    for step in range(steps):
        up = step < peak
        phase = step / peak if up else (step - peak) / (total - 1 - peak)
        ends = (LR / 25, LR) if up else (LR, LR / 25 / 1e4)
        rates.append(cosine(phase, 1, *ends))
        momenta.append(cosine(phase, 1, *((0.95, 0.85) if up else (0.85, 0.95))))
    assert task.rates == close(rates)
    assert task.momenta == close(momenta)


def test_one_cycle_peaks_at_the_optimizer_rate_of_each_group(train):
    schedule = Schedule(partial(OneCycleLR, cycle_momentum=False), "step")
    task = train(schedule, batches=9, kind=Groups)
    assert [max(rates) for rates in zip(*task.rates, strict=True)] == close([0.1, LR])


@pytest.mark.parametrize(("milestone", "border"), [(4, 4), (0.25, 5)])
def test_warm_up_followed_by_cosine_matches_the_formula(train, milestone, border):
    parts = [partial(LinearLR, start_factor=0.1), CosineAnnealingLR]
    task = train(Schedule(partial(SequentialLR, schedulers=parts, milestones=[milestone]), "step"), batches=20)
    warm = [LR * line(step, border, 0.1) for step in range(border)]
    assert task.rates == close(warm + [cosine(step, 20 - border) for step in range(20 - border)])


def test_a_recursive_scheduler_starts_at_the_optimizer_rate_after_a_warm_up(train):
    class Decay(torch_schedulers.LRScheduler):
        def get_lr(self):
            return [group["lr"] * (0.9 if self.last_epoch else 1.0) for group in self.optimizer.param_groups]

    parts = [partial(LinearLR, start_factor=0.1), Decay]
    task = train(Schedule(partial(SequentialLR, schedulers=parts, milestones=[4]), "step"))
    assert task.rates == close([LR * line(step, 4, 0.1) for step in range(4)] + [LR * 0.9**step for step in range(6)])


def test_factors_of_several_schedules_are_multiplied(train):
    factors = [
        partial(LinearLR, start_factor=0.2),
        partial(torch_schedulers.ExponentialLR, gamma=0.9),
        CosineAnnealingLR,
    ]
    task = train(*(Schedule(factor, "step") for factor in factors), batches=12)
    assert task.rates == close(line(step, 12, 0.2) * 0.9**step * cosine(step, 12) for step in range(12))


def test_epoch_horizon_counts_a_last_epoch_cut_short_by_max_steps(train):
    task = train(Schedule(CosineAnnealingLR, "epoch"), batches=4, max_epochs=50, max_steps=18)  # in the fifth epoch
    assert task.rates == close(cosine(step // 4, 5) for step in range(18))


def test_frequency_counts_optimizer_steps_of_the_whole_run(train):
    """Lightning itself counts micro-batches within an epoch."""
    accumulate, frequency = 2, 3
    kwargs = {"batches": 7, "max_epochs": 3, "accumulate_grad_batches": accumulate}
    steps = 3 * ceil(7 / accumulate)
    task = train(Schedule(halving(1), "step", frequency=frequency), **kwargs)
    assert task.rates == close(LR * 0.5 ** (step // frequency) for step in range(steps))
    task = train(Schedule(CosineAnnealingLR, "step", frequency=frequency), **kwargs)
    assert task.rates == close(cosine(step // frequency, ceil(steps / frequency)) for step in range(steps))


@pytest.mark.parametrize(("interval", "max_steps"), [("step", -1), ("step", 20), ("epoch", 20)])
def test_horizon_accounts_for_accumulation_that_changes_between_epochs(train, interval, max_steps):
    """With ten batches per epoch, the epochs have 10, 5, 3 and 3 steps."""
    task = train(
        Schedule(CosineAnnealingLR, interval),
        max_epochs=4,
        max_steps=max_steps,
        callbacks=[GradientAccumulationScheduler({0: 1, 1: 2, 2: 4})],
    )
    epochs = [0] * 10 + [1] * 5 + [2] * 3 + [3] * 3
    epochs = epochs if max_steps < 0 else epochs[:max_steps]
    place, end = (range(len(epochs)), len(epochs)) if interval == "step" else (epochs, epochs[-1] + 1)
    assert task.rates == close(cosine(step, end) for step in place)


def test_horizon_of_a_schedule_with_a_frequency_is_rounded_up(train):
    """The schedule steps after every third of ten steps. If its horizon were rounded down, it would end too early."""
    lengths = []

    class Planned(torch_schedulers.LambdaLR):
        def __init__(self, optimizer):
            lengths.append(horizon())
            super().__init__(optimizer, lambda step: 1.0)

    train(Schedule(Planned, "step", frequency=3), batches=10, max_epochs=1)
    assert lengths == [4]


def test_a_single_max_lr_applies_to_the_largest_rate_and_scales_the_others():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    groups = [{"params": [weight], "lr": lr} for weight, lr in zip(weights, (0.01, 0.04, 0.002), strict=True)]
    with horizon_is(10):
        schedule = OneCycleLR(torch.optim.SGD(groups), max_lr=0.1)
    assert [group["max_lr"] for group in schedule.optimizer.param_groups] == pytest.approx([0.025, 0.1, 0.005])
