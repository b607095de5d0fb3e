"""Resumed runs continue the curve of their rates."""

from functools import partial

import pytest
from curves import LR, close, halving
from torch.optim import lr_scheduler as torch_schedulers

from lit_project.engine.schedules import (
    CosineAnnealingLR,
    LinearLR,
    OneCycleLR,
    Schedule,
    ScheduleError,
    SequentialLR,
)
from saving import SaveAt

COMPOSED = {
    "one cycle": [Schedule(partial(OneCycleLR, cycle_momentum=False), "step")],
    "sequence": [Schedule(partial(SequentialLR, schedulers=[LinearLR, CosineAnnealingLR], milestones=[0.5]), "step")],
    "two intervals": [Schedule(CosineAnnealingLR, "step"), Schedule(halving(1), "epoch")],
    "frequency": [Schedule(CosineAnnealingLR, "step", frequency=3)],
    "plateau": [
        Schedule(partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=0), "epoch", monitor="val/loss"),
        Schedule(CosineAnnealingLR, "step"),
    ],
}


RUN = {"batches": 5, "max_epochs": 4, "losses": [1.0, 1.1, 0.9, 1.0]}


@pytest.mark.parametrize("name", COMPOSED)
def test_run_resumed_within_an_epoch_continues_the_curve(train, tmp_path, name):
    step = 7
    whole = train(*COMPOSED[name], callbacks=[SaveAt(step, tmp_path / "saved.ckpt")], **RUN)
    resumed = train(*COMPOSED[name], checkpoint=tmp_path / "saved.ckpt", **RUN)
    assert len(whole.rates) == 20
    assert resumed.rates == whole.rates[step:]


@pytest.mark.parametrize("interval", ["step", "epoch"])
def test_resumed_schedule_cannot_end_elsewhere(train, tmp_path, interval):
    schedule = Schedule(CosineAnnealingLR, interval)
    train(schedule, callbacks=[SaveAt(7, tmp_path / "saved.ckpt")], **RUN)
    ends = {"step": ("20 steps", "30"), "epoch": ("4 epochs", "6")}[interval]
    with pytest.raises(ScheduleError, match=f"ends after {ends[0]}, but the run would now have {ends[1]}"):
        train(schedule, checkpoint=tmp_path / "saved.ckpt", **{**RUN, "max_epochs": 6})


def test_resumed_schedule_without_an_end_may_go_on(train, tmp_path):
    schedule = Schedule(halving(2), "epoch")
    train(schedule, callbacks=[SaveAt(7, tmp_path / "saved.ckpt")], **RUN)
    task = train(schedule, checkpoint=tmp_path / "saved.ckpt", **{**RUN, "max_epochs": 5, "losses": ()})
    assert task.rates == close(LR * 0.5 ** (step // 5 // 2) for step in range(7, 25))
