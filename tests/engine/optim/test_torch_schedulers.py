"""Every scheduler of torch, stepped by optimizer steps or epochs, gives its own curve, resumed too."""

from functools import partial

import pytest
import torch
from curves import LR
from torch.optim import lr_scheduler as schedulers

from lit_project.engine.schedules import Schedule
from saving import SaveAt

BATCHES, EPOCHS = 5, 4


def warm_up(step):
    """Linear over eight steps, then the inverse square root (Vaswani et al. 2017), 1 at its peak."""
    return min((step + 1) / 8, (8 / (step + 1)) ** 0.5)


FACTORIES = {
    "LambdaLR": partial(schedulers.LambdaLR, lr_lambda=warm_up),
    "MultiplicativeLR": partial(schedulers.MultiplicativeLR, lr_lambda=warm_up),
    "StepLR": partial(schedulers.StepLR, step_size=3, gamma=0.5),
    "MultiStepLR": partial(schedulers.MultiStepLR, milestones=[1, 3], gamma=0.2),
    "ConstantLR": partial(schedulers.ConstantLR, factor=0.1, total_iters=3),
    "LinearLR": partial(schedulers.LinearLR, start_factor=0.1, total_iters=3),
    "ExponentialLR": partial(schedulers.ExponentialLR, gamma=0.9),
    "PolynomialLR": partial(schedulers.PolynomialLR, total_iters=3, power=2.0),
    "CosineAnnealingLR": partial(schedulers.CosineAnnealingLR, T_max=3),
    "CosineAnnealingWarmRestarts": partial(schedulers.CosineAnnealingWarmRestarts, T_0=2, T_mult=2),
    "CyclicLR": partial(schedulers.CyclicLR, base_lr=0.1, max_lr=LR, step_size_up=3, cycle_momentum=False),
}


def by_hand(factory, interval):
    """Rates of all steps in plain PyTorch."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = factory(optimizer)
    rates = []
    for step in range(BATCHES * EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if interval == "step" or (step + 1) % BATCHES == 0:
            scheduler.step()
    return rates


@pytest.mark.parametrize("name", FACTORIES)
def test_it_is_plain_pytorchs_also_resumed(train, tmp_path, name):
    interval = "epoch" if name == "StepLR" else "step"
    factory = FACTORIES[name]
    if name in ("PolynomialLR", "CosineAnnealingLR"):  # end with the run: another length is an error
        length = BATCHES * EPOCHS if interval == "step" else EPOCHS
        factory = partial(factory, **{"T_max" if name == "CosineAnnealingLR" else "total_iters": length})
    run = {"batches": BATCHES, "max_epochs": EPOCHS}
    schedule = Schedule(factory, interval)
    whole = train(schedule, callbacks=[SaveAt(7, tmp_path / "saved.ckpt")], **run)
    assert whole.rates == pytest.approx(by_hand(factory, interval), rel=1e-9)
    resumed = train(schedule, checkpoint=tmp_path / "saved.ckpt", **run)
    assert resumed.rates == whole.rates[7:]


def test_plateau_after_a_warm_up(train):
    """The product of a warm-up over two epochs, and of halves where the loss did not fall."""
    plateau = partial(schedulers.ReduceLROnPlateau, factor=0.5, patience=0)
    task = train(
        Schedule(partial(schedulers.LinearLR, start_factor=0.2, total_iters=10), "step"),
        Schedule(plateau, "epoch", monitor="val/loss"),
        batches=BATCHES, max_epochs=EPOCHS, losses=[1.0, 0.9, 1.0, 1.1],
    )  # fmt: skip
    warm = [min(0.2 + 0.8 * step / 10, 1.0) for step in range(20)]
    halves = [0.5 if step >= 15 else 1.0 for step in range(20)]
    assert task.rates == pytest.approx([LR * a * b for a, b in zip(warm, halves, strict=True)], rel=1e-6)
