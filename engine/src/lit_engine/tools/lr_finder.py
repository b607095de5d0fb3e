"""Suggests a learning rate or batch size (`--find lr|batch_size`), or plots the planned rates (`--plot_lr=true`)."""

import math
import warnings
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import torch
from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.tuner import Tuner
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_engine._lightning import limit_loops, reconfigure, set_ended
from lit_engine.callbacks.figures import new_figure, save_figure
from lit_engine.callbacks.figures import step_curves as draw_rates
from lit_engine.callbacks.freezing import Unfreezing
from lit_engine.checkpoints.warm_start import WarmStart
from lit_engine.data.module import accumulation_schedule
from lit_engine.distributed.processes import is_first, print_once, warn_once
from lit_engine.errors import UserError
from lit_engine.training.schedules import iterate_steps, learning_rates, steps_of_epochs
from lit_engine.training.task import Task, overrides

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LR_STEPS = 100
LR_RANGE = 1e-6, 10.0
LARGEST = 8192  # maximum batch size


def find(options: Namespace, trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Print a suggested learning rate or batch size. Raise UserError if there is nothing to suggest."""
    _check_automatic(model, f"--find {options.find}")
    if isinstance(model, Task):
        model.schedules = []  # schedules depend on the length of the actual run
        model.length = lambda interval: None  # type: ignore[method-assign]  # keeps MixUp and CutMix on in all steps
    if options.find == "lr":
        _find_lr(trainer, model, datamodule)
    else:
        _find_batch_size(options, trainer, model, datamodule)


def _check_automatic(model: LightningModule, option: str) -> None:
    """Raise UserError if a module uses manual optimization, unless it is a `Task`, which counts its own steps."""
    if not model.automatic_optimization and not isinstance(model, Task):
        raise UserError(f"{option} needs automatic optimization, but {type(model).__name__} optimizes manually")


class RangeTest(Callback):
    """A learning rate range test, which raises the rate at each step and averages the losses (Smith 2017).

    Unlike Lightning's finder, this test applies the `lr_factor` of parameter groups, does not train frozen layers, and
    does not stop at `max_epochs`. Lightning's finder also halves the first loss, so that the loss seems to rise.
    """

    def __init__(self) -> None:
        low, high = LR_RANGE
        self.curve = [low * (high / low) ** (step / (LR_STEPS - 1)) for step in range(LR_STEPS)]
        self.losses: list[float] = []
        self._sum = 0.0
        self._factors: list[float] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        limit_loops(trainer, -1, LR_STEPS)  # small datasets may need more epochs than the run has

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers = trainer.optimizers
        rate = optimizers[0].defaults.get("lr") if len(optimizers) == 1 else None
        if not rate:
            raise UserError("--find lr needs exactly one optimizer, with an lr above 0")
        trainer.strategy.lr_scheduler_configs = []
        self._factors = [float(group["lr"] / rate) for group in optimizers[0].param_groups]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for group, factor in zip(trainer.optimizers[0].param_groups, self._factors, strict=True):
            group["lr"] = factor * self.curve[trainer.global_step]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == len(self.losses) or not outputs:  # still accumulating, or the step was skipped
            return
        if isinstance(pl_module, Task):
            loss = torch.tensor(pl_module.loss_of_step(outputs), device=pl_module.device)
        else:  # undo Lightning's division by the number of accumulated batches
            loss = outputs["loss"] * trainer.accumulate_grad_batches
        self._sum = 0.98 * self._sum + 0.02 * float(trainer.strategy.reduce(loss, reduce_op="mean"))
        self.losses.append(self._sum / (1 - 0.98 ** (len(self.losses) + 1)))
        if not math.isfinite(self.losses[-1]) or self.losses[-1] > 4 * min(self.losses) > 0:  # diverged
            trainer.should_stop = True


def _find_lr(trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Suggest the rate at which the loss falls fastest, and plot the loss in figures/lr_finder.png."""
    finder = RangeTest()
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    freezing = [callback.of_first_epoch() for callback in callbacks if isinstance(callback, Unfreezing)]
    loading = [callback for callback in callbacks if isinstance(callback, WarmStart)]
    kept = filter(None, [*loading, *freezing, accumulation_schedule(trainer)])
    reconfigure(trainer, callbacks=[*kept, finder], loggers=[], limit_val_batches=0)
    trainer.fit(model, datamodule=datamodule)
    rates = finder.curve[: len(finder.losses)]
    best = find_steepest_rate(rates, finder.losses)
    if best is None:
        raise UserError("the loss does not fall at any learning rate from 1e-6 to 10: there is nothing to suggest")
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    axes.plot(rates, finder.losses)
    axes.axvline(best, color="grey", linestyle=":", label=f"loss falls fastest: {best:.2g}")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss (running mean)", title="learning rate finder")
    axes.grid(alpha=0.3)
    axes.legend()
    _save(trainer, "lr_finder", figure)
    names = ("optimizer.init_args.lr",) if isinstance(model, Task) else ("lr", "learning_rate")
    option = next((name for name in names if name.partition(".")[0] in model.hparams), None)
    print_once(f"suggested: --model.{option}={best:.2g}" if option else f"suggested: a learning rate of {best:.2g}")


def find_steepest_rate(rates: list[float], losses: list[float]) -> float | None:
    """Return the rate at which the loss falls most steeply on a logarithmic axis, before it reaches its minimum.

    Slopes are averaged over seven neighbours, because the losses of single batches are noisy. The slope at batch n is
    weighted by 1 - 0.98^n, because a running mean of few batches is noisier.

    Args:
        rates: learning rates, each larger than the previous rate by a constant factor.
        losses: losses at these rates. The first non-finite loss and all later losses are ignored.

    Returns:
        The rate, or None if the loss never falls.
    """
    finite = list(takewhile(math.isfinite, losses))
    falling = torch.tensor(finite[: finite.index(min(finite)) + 1] if finite else [])
    if len(falling) < 3:
        return None
    slopes = torch.gradient(falling)[0] * (1 - 0.98 ** torch.arange(1, len(falling) + 1))
    smooth = [float(slopes[max(i - 3, 0) : i + 4].mean()) for i in range(len(slopes))]
    return rates[smooth.index(min(smooth))]


def _find_batch_size(options: Namespace, trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Double the batch size while it fits in memory, up to 8192 or the dataset size. Run each size for 3 steps."""
    if trainer.world_size > 1:
        raise UserError("--find batch_size needs one process: set --trainer.devices=1 --trainer.strategy=auto")
    owner = model if datamodule is None else datamodule
    sizes = (getattr(one, "batch_size", None) for one in (owner, getattr(owner, "hparams", None)))
    before = next(filter(None, sizes), None)
    if before is None:
        raise UserError(f"{type(owner).__name__} has no batch_size to tune: set batch_size (not global_batch_size)")
    if hasattr(datamodule, "drop_last"):
        datamodule.drop_last = False  # a batch size above the number of samples would yield no batches
    tuner = Tuner(trainer)  # the tuner never tries `max_val` itself, but may return larger sizes
    limit = tuner.scale_batch_size(model, datamodule=datamodule, mode="power", init_val=before, max_val=LARGEST + 1)
    loader = trainer.train_dataloader
    samples: Any = getattr(loader, "samples", getattr(loader, "dataset", None))
    size = len(samples) if hasattr(samples, "__len__") else LARGEST
    found = before * 2 ** int(math.log2(max(min(limit or before, size, LARGEST) / before, 1)))
    why = f"the largest of {before}, {2 * before}… that fits in memory, up to {LARGEST:,} and the number of samples"
    if limit is not None and limit < before:  # Lightning halves a size that does not fit, and starts with at most 8192
        found, why = limit, why.replace(f"{2 * before}…", f"{before // 2}…")
    where = "model" if owner is model else "data"
    is_option = "batch_size" in options[where].get("init_args", {})
    print_once(f"suggested: {f'--{where}.batch_size=' if is_option else 'a batch size of '}{found} ({why})")


class PlanDone(Exception):
    """An exception that stops a fit when the plan is complete, before training starts."""


class Plan(Callback):
    """A callback that steps the schedules as training would, and stops the fit before the first training step.

    ReduceLROnPlateau is never stepped.

    Attributes:
        curves: maps the name of each parameter group to pairs `(step, learning rate)`, counting steps from 0.
    """

    def __init__(self) -> None:
        self.curves: dict[str, list[tuple[float, float]]] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task = pl_module if isinstance(pl_module, Task) and pl_module.schedules else None
        epochs = steps_of_epochs(trainer)
        if epochs is None:
            raise UserError("cannot plan the learning rates of an unlimited run: set trainer.max_epochs or max_steps")
        configs: list[Any] = trainer.lr_scheduler_configs
        schedules = [
            (config.scheduler, schedule)
            for config, schedule in zip(configs, task.schedules if task else configs, strict=True)
            if not isinstance(config.scheduler, ReduceLROnPlateau)
        ]
        for done, counts in enumerate(iterate_steps(trainer, epochs, since_start=task is not None)):
            for name, rate in learning_rates(trainer.optimizers).items():
                self.curves.setdefault(name, []).append((done, rate))
            for scheduler, schedule in schedules:
                if schedule.interval not in counts or counts[schedule.interval] % schedule.frequency:
                    continue
                if task is None:  # call the hook, because the module may override it
                    pl_module.lr_scheduler_step(scheduler, None)
                else:
                    scheduler.step()
            if "epoch" in counts:  # update `current_epoch`, which hooks may read
                set_ended(trainer, done + 1, counts["epoch"])
        raise PlanDone


def plot_lr(trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Plot the planned learning rates in figures/planned_learning_rate.png."""
    _check_automatic(model, "--plot_lr")
    if overrides(model, "optimizer_step"):
        warn_once("note: rates that the module sets in optimizer_step are not plotted")
    plan = Plan()
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    reconfigure(trainer, callbacks=[plan, *callbacks], loggers=[])
    with suppress(PlanDone), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step")
        trainer.fit(model, datamodule=datamodule)
    for name, points in plan.curves.items():
        rates = [rate for _, rate in points]
        print_once(f"{name}: starts at {rates[0]:.3g}, peaks at {max(rates):.3g}, ends at {rates[-1]:.3g}")
    _save(trainer, "planned_learning_rate", draw_rates(plan.curves))


def _save(trainer: Trainer, name: str, figure: "Figure") -> None:
    if is_first():
        print(f"figure: {save_figure(trainer, name, figure)}")
