"""Looks for a learning rate or a batch size before training: `fit -c X.yaml --find lr`.

Nothing is trained: the run holds the curve (figures/lr_finder.png) or nothing, and the suggestion is printed.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.tuner import Tuner

from lit_project.callbacks import RangeTest, Unfreezing
from lit_project.errors import UserError
from lit_project.processes import is_first, print_once
from lit_project.run import RunDir
from lit_project.tasks.base import Task
from lit_project.viz.figures import new_figure

What = Literal["lr", "batch_size"]
LR_STEPS = 100
LR_RANGE = 1e-6, 10.0
LARGEST = 8192  # Lightning's own limit


def find(what: What, trainer: Trainer, model: LightningModule, datamodule: Any, run: RunDir) -> None:
    """Finds and prints.

    Raises:
        UserError: the run is too short, or the data module has no batch size.
    """
    if isinstance(model, Task):
        model.schedules = []  # they are made for the length of the real run
    if getattr(model, "mixing", None) is not None:
        model.mixing = replace(model.mixing, off_last_epochs=0)  # type: ignore[type-var]
    if what == "lr":
        _find_lr(trainer, model, datamodule, run)
    else:
        _find_batch_size(trainer, model, datamodule)


def _find_lr(trainer: Trainer, model: LightningModule, datamodule: Any, run: RunDir) -> None:
    """Raises the rate from 1e-6 to 10 over 100 steps and suggests where the loss falls fastest (Smith 2017).

    Lightning's finder gives every group the same rate, whatever its `lr_factor`, and trains what is to be frozen.
    """
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise UserError(f"--find lr takes {LR_STEPS} steps: leave trainer.fast_dev_run out")
    finder = RangeTest(*LR_RANGE, LR_STEPS)
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    freezing = [callback.of_first_epoch() for callback in callbacks if isinstance(callback, Unfreezing)]
    accumulating = [callback for callback in callbacks if isinstance(callback, GradientAccumulationScheduler)]
    trainer.callbacks = [*freezing, *accumulating, finder]  # type: ignore[attr-defined]
    trainer.loggers = []
    trainer.limit_val_batches = 0
    loop = trainer.fit_loop
    loop.max_epochs = -1  # small data: the steps may take more epochs than the run would
    loop.epoch_loop.max_steps = LR_STEPS
    loop.min_epochs = loop.epoch_loop.min_steps = 0
    trainer.fit(model, datamodule=datamodule)
    best = steepest(finder.rates, finder.losses)
    if best is None:
        raise UserError("the loss does not fall at any learning rate from 1e-6 to 10: there is nothing to suggest")
    if is_first():
        figure = new_figure(6, 4)
        axes = figure.add_subplot()
        axes.plot(finder.rates, finder.losses)
        axes.axvline(best, color="grey", linestyle=":", label=f"loss falls fastest: {best:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss (running mean)", title="learning rate finder")
        axes.grid(alpha=0.3)
        axes.legend()
        file = run.path / "figures" / "lr_finder.png"
        file.parent.mkdir(exist_ok=True)
        figure.savefig(file)
        print(f"learning rate finder: {file}")
    print_once(f"suggested: --model.optimizer.init_args.lr={best:.2g}")


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """The rate at which the loss falls fastest over the logarithm of the rate; None if it never falls.

    Only the deepest descent is looked at, and slopes are averaged over seven neighbours: the running mean of the losses
    begins too low, and single batches are noise.

    Args:
        rates: ascending.
        losses: at these rates; what is not finite ends the curve.
    """
    finite = list(itertools.takewhile(math.isfinite, losses))
    tops = [max(range(i + 1), key=finite.__getitem__) for i in range(len(finite))]  # highest place so far
    bottom = max(range(len(finite)), key=lambda i: finite[tops[i]] - finite[i], default=0)
    top = tops[bottom] if finite else 0
    if bottom - top < 2:
        return None
    loss, rate = (torch.tensor(values[top : bottom + 1], dtype=torch.double) for values in (finite, list(rates)))
    slopes = torch.gradient(loss, spacing=(rate.log(),))[0]
    smooth = [float(slopes[max(i - 3, 0) : i + 4].mean()) for i in range(len(slopes))]
    return rates[top + smooth.index(min(smooth))]


def _find_batch_size(trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Doubles the batch until memory is full, 8192 or the training data are reached, three steps each."""
    if getattr(datamodule, "batch_size", None) is None:
        raise UserError(f"{type(datamodule).__name__} has no batch_size to look for")
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise UserError("--find batch_size tries batches of its own: leave trainer.fast_dev_run out")
    if hasattr(datamodule, "drop_last"):
        datamodule.drop_last = False  # batches of more samples than there are would be none
    before = datamodule.batch_size
    # Lightning stops before it tries the limit itself
    tuner = Tuner(trainer)
    found = tuner.scale_batch_size(model, datamodule=datamodule, mode="power", init_val=before, max_val=LARGEST + 1)
    datamodule.batch_size = before
    why = "the largest tried" if found == LARGEST else f"the largest power of two times {before} that fits"
    if found and hasattr(datamodule, "size_of"):
        samples = datamodule.size_of("train") // trainer.world_size
        if found > max(samples, before):  # batches of more samples than there are were no larger
            doublings = max(samples // before, 1).bit_length() - 1
            found, why = before * 2**doublings, f"there are {samples:,} training samples for a process"
    print_once(f"suggested: --data.batch_size={found} ({why})")
