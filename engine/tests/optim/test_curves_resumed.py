"""Schedulers from torch match plain PyTorch, and resumed runs continue their curves."""

from functools import partial

import pytest
import torch
from curves import LR, close, halving
from torch.optim import lr_scheduler as torch_schedulers

from helpers import SaveAt
from lit_engine.errors import UserError
from lit_engine.training.schedules import (
    CosineAnnealingLR,
    InverseSqrtLR,
    LinearLR,
    OneCycleLR,
    Schedule,
    SequentialLR,
)

RUN = {"batches": 5, "max_epochs": 4, "losses": [1.0, 1.1, 0.9, 1.0]}
PLATEAU = Schedule(partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=0), "epoch", monitor="val/loss")
SCHEDULES = {
    "one cycle": [Schedule(partial(OneCycleLR, cycle_momentum=False), "step")],
    "sequence": [Schedule(partial(SequentialLR, schedulers=[LinearLR, CosineAnnealingLR], milestones=[0.5]), "step")],
    "two intervals": [Schedule(CosineAnnealingLR, "step"), Schedule(halving(1), "epoch")],
    "frequency": [Schedule(CosineAnnealingLR, "step", frequency=3)],
    "inverse square root": [Schedule(partial(InverseSqrtLR, warmup_steps=5), "step")],
    "plateau": [PLATEAU, Schedule(CosineAnnealingLR, "step")],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_resumed_within_an_epoch_continues_the_curve(train, tmp_path, name):
    step = 7
    whole = train(*SCHEDULES[name], callbacks=[SaveAt(step, tmp_path / "saved.ckpt")], **RUN)
    resumed = train(*SCHEDULES[name], checkpoint=tmp_path / "saved.ckpt", **RUN)
    assert len(whole.rates) == 20
    assert resumed.rates == whole.rates[step:]


@pytest.mark.parametrize(
    ("factory", "interval"),
    [
        (partial(torch_schedulers.StepLR, step_size=3, gamma=0.5), "epoch"),
        (
            partial(torch_schedulers.LambdaLR, lr_lambda=lambda step: 0.9**step),
            "step",
        ),
    ],
    ids=["StepLR", "LambdaLR"],
)
def test_torch_schedulers_match_plain_pytorch(train, factory, interval):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = factory(optimizer)
    by_hand = []
    for step in range(20):
        by_hand.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if interval == "step" or (step + 1) % 5 == 0:
            scheduler.step()
    assert train(Schedule(factory, interval), **RUN).rates == pytest.approx(by_hand, rel=1e-9)


def test_warm_up_and_plateau_factors_are_multiplied(train):
    """The rate warms up over two epochs and is halved whenever the loss does not fall."""
    warm_up = partial(torch_schedulers.LinearLR, start_factor=0.2, total_iters=10)
    task = train(Schedule(warm_up, "step"), PLATEAU, **{**RUN, "losses": [1.0, 0.9, 1.0, 1.1]})
    warm = [min(0.2 + 0.8 * step / 10, 1.0) for step in range(20)]
    halves = [0.5 if step >= 15 else 1.0 for step in range(20)]
    assert task.rates == pytest.approx([LR * a * b for a, b in zip(warm, halves, strict=True)], rel=1e-6)


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_rejects_resuming_a_schedule_with_a_different_end(train, tmp_path, interval):
    schedule = Schedule(CosineAnnealingLR, interval)
    train(schedule, callbacks=[SaveAt(7, tmp_path / "saved.ckpt")], **RUN)
    ends = {"step": ("20 steps", "30"), "epoch": ("4 epochs", "6")}[interval]
    with pytest.raises(UserError, match=f"ends after {ends[0]}, but the run would now have {ends[1]}"):
        train(schedule, checkpoint=tmp_path / "saved.ckpt", **{**RUN, "max_epochs": 6})


def test_a_resumed_schedule_without_an_end_may_run_longer(train, tmp_path):
    schedule = Schedule(halving(2), "epoch")
    train(schedule, callbacks=[SaveAt(7, tmp_path / "saved.ckpt")], **RUN)
    task = train(schedule, checkpoint=tmp_path / "saved.ckpt", **{**RUN, "max_epochs": 5, "losses": ()})
    assert task.rates == close(LR * 0.5 ** (step // 5 // 2) for step in range(7, 25))
