"""Before a training: a learning rate, a batch size, or the planned rates. `--find lr|batch_size`, `--plot_lr=true`."""

import math
import warnings
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.tuner import Tuner
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_engine._lightning import limit_loops, reconfigure, set_should_stop
from lit_engine.callbacks.figures import learning_rates as draw_rates
from lit_engine.callbacks.figures import new_figure, save_figure
from lit_engine.callbacks.freezing import Unfreezing
from lit_engine.data.module import accumulation_schedule
from lit_engine.distributed.processes import is_first, print_once
from lit_engine.errors import UserError
from lit_engine.training.schedules import learning_rates, steps_of_epochs
from lit_engine.training.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LR_STEPS = 100
LR_RANGE = 1e-6, 10.0
LARGEST = 8192  # batch


def find(what: Literal["lr", "batch_size"], trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Finds and prints; raises UserError if there is nothing to suggest."""
    _check_automatic(model, f"--find {what}")
    if isinstance(model, Task):
        model.schedules = []  # they are made for the length of the real run
    (_find_lr if what == "lr" else _find_batch_size)(trainer, model, datamodule)


def _check_automatic(model: LightningModule, option: str) -> None:
    """Raises UserError for a module that steps its optimizers by itself; a task declares how it does that."""
    if not model.automatic_optimization and not isinstance(model, Task):
        raise UserError(f"{option} needs automatic optimization, and {type(model).__name__} optimizes manually")


class RangeTest(Callback):
    """Raises the rate of a few steps and notes a running mean of their losses (Smith 2017).

    Lightning's finder halves its first losses, so that it finds no fall, ignores the `lr_factor` of groups, trains what
    is to be frozen, and ends with the epochs of the run. Here, at rate r, a group learns at its `lr_factor` times r.
    """

    def __init__(self) -> None:
        low, high = LR_RANGE
        self.curve = [low * (high / low) ** (step / (LR_STEPS - 1)) for step in range(LR_STEPS)]
        self.losses: list[float] = []
        self._sum = 0.0
        self._factors: list[float] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        limit_loops(trainer, -1, LR_STEPS)  # small data: more epochs than the run would have

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers = trainer.optimizers
        rate = optimizers[0].defaults.get("lr") if len(optimizers) == 1 else None
        if not rate:
            raise UserError("--find lr needs one optimizer, whose lr is above 0")
        trainer.strategy.lr_scheduler_configs = []
        self._factors = [float(group["lr"] / rate) for group in optimizers[0].param_groups]

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        for group, factor in zip(trainer.optimizers[0].param_groups, self._factors, strict=True):
            group["lr"] = factor * self.curve[trainer.global_step]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == len(self.losses):  # within a window of accumulated gradients
            return
        if isinstance(pl_module, Task):
            loss = torch.tensor(pl_module.loss_of_step(outputs), device=pl_module.device)
        else:  # Lightning has divided it
            loss = outputs["loss"] * trainer.accumulate_grad_batches
        self._sum = 0.98 * self._sum + 0.02 * float(trainer.strategy.reduce(loss, reduce_op="mean"))
        self.losses.append(self._sum / (1 - 0.98 ** (len(self.losses) + 1)))
        if not math.isfinite(self.losses[-1]) or self.losses[-1] > 4 * min(self.losses) > 0:  # it has exploded
            set_should_stop(trainer, True)


def _find_lr(trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Suggests the rate at which the loss falls fastest, and draws figures/lr_finder.png."""
    finder = RangeTest()
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    freezing = [callback.of_first_epoch() for callback in callbacks if isinstance(callback, Unfreezing)]
    kept = filter(None, [*freezing, accumulation_schedule(trainer)])
    reconfigure(trainer, callbacks=[*kept, finder], loggers=[], limit_val_batches=0)
    trainer.fit(model, datamodule=datamodule)
    rates = finder.curve[: len(finder.losses)]
    best = steepest(rates, finder.losses)
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
    option = next(
        (name for name in ("optimizer.init_args.lr", "lr", "learning_rate") if name.partition(".")[0] in model.hparams),
        None,
    )
    print_once(f"suggested: --model.{option}={best:.2g}" if option else f"suggested: a learning rate of {best:.2g}")


def steepest(rates: list[float], losses: list[float]) -> float | None:
    """The rate at which the loss falls fastest over the logarithm of the rate, before its lowest point.

    Slopes are averaged over seven neighbours, as single batches are noise.

    Args:
        rates: ascending by a constant factor.
        losses: at these rates; the first that is not finite ends the curve.

    Returns:
        None if the loss never falls.
    """
    finite = list(takewhile(math.isfinite, losses))
    falling = torch.tensor(finite[: finite.index(min(finite)) + 1] if finite else [])
    if len(falling) < 3:
        return None
    slopes = torch.gradient(falling)[0]
    smooth = [float(slopes[max(i - 3, 0) : i + 4].mean()) for i in range(len(slopes))]
    return rates[smooth.index(min(smooth))]


def _find_batch_size(trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Doubles the batch until memory is full, 8192 or the training data are reached, three steps each."""
    if trainer.world_size > 1:
        raise UserError("--find batch_size works in one process: --trainer.devices=1 --trainer.strategy=auto")
    owners = (datamodule, getattr(datamodule, "hparams", None))
    before = next(filter(None, (getattr(owner, "batch_size", None) for owner in owners)), None)
    if before is None:
        raise UserError(f"{type(datamodule).__name__} has no batch_size to look for: give it one, and no other size")
    if hasattr(datamodule, "drop_last"):
        datamodule.drop_last = False  # there would be no batch of more samples than there are
    tuner = Tuner(trainer)  # which stops before it tries the limit itself
    limit = tuner.scale_batch_size(model, datamodule=datamodule, mode="power", init_val=before, max_val=LARGEST + 1)
    samples: Any = getattr(trainer.train_dataloader, "dataset", None)
    size = (
        datamodule.size_of("train")
        if hasattr(datamodule, "size_of")
        else len(samples)
        if hasattr(samples, "__len__")
        else limit
    )
    limit = min(limit or before, size or before)
    found = before * 2 ** int(math.log2(max((limit or before) / before, 1)))
    why = f"the largest of {before}, {2 * before}… that fits, up to {LARGEST:,} or all samples"
    print_once(f"suggested: --data.batch_size={found} ({why})")


class PlanDone(Exception):
    """Raised before the first step."""


class Plan(Callback):
    """Steps the schedules as training would, once everything is set up for it, and ends the fit.

    ReduceLROnPlateau never acts here.

    Attributes:
        curves: the rate of each parameter group at each optimizer step: name → points (step from 0, rate).
    """

    def __init__(self) -> None:
        self.curves: dict[str, list[tuple[float, float]]] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        task = pl_module if isinstance(pl_module, Task) else None
        epochs = steps_of_epochs(trainer, task.accumulate if task else None)
        if epochs is None:
            raise UserError("a run without end has no plan of its learning rates: set trainer.max_epochs or max_steps")
        configs: list[Any] = trainer.lr_scheduler_configs
        schedules = [
            (config.scheduler, schedule)
            for config, schedule in zip(configs, task.all_schedules if task else configs, strict=True)
            if not isinstance(config.scheduler, ReduceLROnPlateau)
        ]
        batches = 1 if task else trainer.accumulate_grad_batches  # Lightning counts batches, within the epoch
        done = {"step": 0, "epoch": 0}
        for steps in epochs:
            for step in range(steps):
                for name, rate in learning_rates(trainer.optimizers).items():
                    self.curves.setdefault(name, []).append((done["step"], rate))
                ended = {"step"} if step + 1 < steps else {"step", "epoch"}
                for interval in ended:
                    done[interval] += 1
                count = {
                    **done,
                    "step": done["step"] if task else min((step + 1) * batches, trainer.num_training_batches),
                }
                for scheduler, schedule in schedules:
                    if schedule.interval not in ended or count[schedule.interval] % schedule.frequency:
                        continue
                    if task is None:  # which may step in a way of its own
                        pl_module.lr_scheduler_step(scheduler, None)
                    else:
                        scheduler.step()
        raise PlanDone


def plot_lr(trainer: Trainer, model: LightningModule, datamodule: Any) -> None:
    """Writes figures/planned_learning_rate.png."""
    _check_automatic(model, "--plot_lr")
    plan = Plan()
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    reconfigure(trainer, callbacks=[plan, *callbacks], loggers=[])
    with suppress(PlanDone), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*before.*optimizer.step")
        trainer.fit(model, datamodule=datamodule)
    for name, points in plan.curves.items():
        rates = [rate for _, rate in points]
        print_once(f"{name}: {rates[0]:.3g} at first, {max(rates):.3g} at most, {rates[-1]:.3g} at last")
    _save(trainer, "planned_learning_rate", draw_rates(plan.curves))


def _save(trainer: Trainer, name: str, figure: "Figure") -> None:
    if is_first():
        print(f"figure: {save_figure(trainer, name, figure)}")
