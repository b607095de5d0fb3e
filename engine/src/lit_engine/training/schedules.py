"""Optimizer and learning rate schedules: chained, checked, as long as the run."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from lit_engine._lightning import count_batches
from lit_engine.data.module import accumulation_schedule
from lit_engine.errors import UserError
from lit_engine.training.parameter_groups import check_options


class ScheduleError(UserError):
    """A learning rate schedule contradicts itself or the length of the run."""


@dataclass
class Horizon:
    """Steps until the end (None: without end), and whether a scheduler asked for them."""

    steps: int | None
    used: bool = False


_horizon: ContextVar[Horizon] = ContextVar("horizon", default=Horizon(None))  # noqa: B039  (never read)


def horizon() -> int:
    """How often the scheduler under construction will be stepped until the end of the run.

    Call it in the constructor of a scheduler of your own that must end with the run.

    Raises:
        ScheduleError: the run has no end.
    """
    current = _horizon.get()
    if current.steps is None:
        raise ScheduleError(
            "a scheduler that ends with the run needs a run with an end and at least one step: "
            "see trainer.max_epochs, max_steps and limit_train_batches"
        )
    current.used = True
    return current.steps


@contextmanager
def horizon_is(steps: int | None) -> Iterator[Horizon]:
    """Within it, `horizon()` is `steps` (None: without end)."""
    outer, current = _horizon.get(), Horizon(steps)
    token = _horizon.set(current)
    try:
        yield current
    finally:
        _horizon.reset(token)
        outer.used |= current.used


SchedulerFactory = Callable[[Optimizer], LRScheduler]


class CosineAnnealingLR(lr_scheduler.CosineAnnealingLR):
    """From the optimizer's rate to `eta_min` along half a cosine that ends with the run (Loshchilov & Hutter 2017).

    Args:
        optimizer: given by the task.
        eta_min: the rate at the end.
    """

    def __init__(self, optimizer: Optimizer, eta_min: float = 0.0) -> None:
        super().__init__(optimizer, T_max=horizon(), eta_min=eta_min)


class PolynomialLR(lr_scheduler.PolynomialLR):
    """From the optimizer's rate to 0 at the end of the run; `power` 1 is a straight line.

    Args:
        optimizer: given by the task.
        power: exponent of the remaining share of the run.
    """

    def __init__(self, optimizer: Optimizer, power: float = 1.0) -> None:
        super().__init__(optimizer, total_iters=horizon(), power=power)


class OneCycleLR(lr_scheduler.OneCycleLR):
    """Up to `max_lr` and down again over the whole run (Smith & Topin 2018).

    Momentum (of Adam: β₁) moves from 0.95 to 0.85 and back; with `cycle_momentum: false` it is that of the optimizer.

    Args:
        optimizer: given by the task.
        max_lr: the peak; default: the rate of each parameter group of the optimizer. A single number is that of the
            group with the largest rate; the others keep their proportions to it.
        kwargs: the other arguments of torch's OneCycleLR.
    """

    def __init__(self, optimizer: Optimizer, max_lr: float | list[float] | None = None, **kwargs: Any) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        if isinstance(max_lr, float | int) and max(rates) > 0:
            max_lr = [max_lr * (rate / max(rates)) for rate in rates]
        super().__init__(
            optimizer,
            max_lr=rates if max_lr is None else max_lr,
            # Lightning steps once more after the last update, where torch would raise
            total_steps=horizon() + 1,
            # named here so that a config cannot give them: torch would ignore them
            epochs=None,
            steps_per_epoch=None,
            **kwargs,
        )


class LinearLR(lr_scheduler.LinearLR):
    """From `start_factor` to `end_factor` times the optimizer's rate over its whole part of the run: a warm-up.

    Args:
        optimizer: given by the task.
        start_factor: first factor.
        end_factor: last factor.
    """

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0) -> None:
        super().__init__(optimizer, start_factor, end_factor, total_iters=max(horizon(), 1))


# They set the rate from the start of the run, watch a metric, or cannot begin at a milestone.
_NOT_IN_SEQUENCE = (
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
)


class SequentialLR(lr_scheduler.SequentialLR):
    """One scheduler after the other: warm-up, then the main one. Each gets what the others leave of the run.

    Args:
        optimizer: given by the task.
        schedulers: in their order.
        milestones: when each but the first begins, in steps of the schedule, one per `frequency` intervals; a number
            below 1 is a share of the run.

    Raises:
        ScheduleError: not one milestone less than schedulers, or not ascending, or beyond the end of the run; or a
            scheduler that cannot be part of a sequence.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[SchedulerFactory], milestones: Sequence[int | float]
    ) -> None:
        end = _horizon.get().steps
        borders = [round(m * horizon()) if m < 1 else int(m) for m in milestones]
        # two shares of a short run may be the same step
        ascend = borders == sorted(borders) and len({*milestones}) == len(milestones) and min(milestones, default=1) > 0
        if not ascend or len(milestones) != len(schedulers) - 1:
            raise ScheduleError(
                "the milestones of SequentialLR must ascend from above 0, one fewer than its schedulers: got "
                f"{list(milestones)} for {len(schedulers)}"
            )
        if end is not None and borders and borders[-1] >= end and milestones[-1] >= 1:
            raise ScheduleError(f"milestone {borders[-1]} of SequentialLR is not within the run, which ends at {end}")
        parts: list[LRScheduler] = []
        starts = []
        for start, stop, factory in zip([0, *borders], [*borders, end], schedulers, strict=True):
            if start == stop:  # a share of a short run was rounded to 0
                continue
            starts.append(start)
            with horizon_is(None if stop is None else stop - start):
                parts.append(factory(optimizer))
            if isinstance(parts[-1], _NOT_IN_SEQUENCE):
                raise ScheduleError(f"{type(parts[-1]).__name__} cannot be part of a SequentialLR")
        super().__init__(optimizer, parts, starts[1:])


# These compute the rate from its initial value and overwrite what another scheduler made of it.
_ABSOLUTE = (
    lr_scheduler.LambdaLR,
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
    lr_scheduler.SequentialLR,
)


def check_multiply(schedulers: Sequence[LRScheduler]) -> None:
    """Raises ScheduleError if several schedulers contain one that overwrites what the others did."""
    for scheduler in schedulers if len(schedulers) > 1 else ():
        if isinstance(scheduler, _ABSOLUTE) or getattr(scheduler, "eta_min", 0) > 0:
            raise ScheduleError(
                f"{type(scheduler).__name__} sets the learning rate (with eta_min, if it has one) and cannot be "
                "multiplied with others: use it alone, or put what goes before or after it into SequentialLR"
            )


def check_groups(scheduler: LRScheduler, rates: Sequence[float]) -> None:
    """Raises ScheduleError if the parameter groups, of these rates, would lose the proportions that were asked for."""
    name, lowest = type(scheduler).__name__, min(rates)
    if isinstance(scheduler, lr_scheduler.CyclicLR) and len({*rates}) > len({*scheduler.base_lrs}):
        raise ScheduleError(f"{name}: one base_lr for parameter groups of different rates; list one for each of them")
    for part in (scheduler, *getattr(scheduler, "_schedulers", ())):
        if getattr(part, "eta_min", 0) > lowest:
            raise ScheduleError(f"{name}: eta_min {part.eta_min} is above the rate of a parameter group, {lowest:.3g}")


OptimizerFactory = Callable[[Iterable[Any]], Optimizer]


@dataclass
class Schedule:
    """A learning rate scheduler and when it is stepped.

    Args:
        scheduler: of this project or `torch.optim.lr_scheduler`.
        interval: unit of its steps: optimizer steps or epochs. There is no default: a wrong guess is a wrong curve.
        frequency: it is stepped once in so many intervals.
        monitor: the metric that ReduceLROnPlateau watches, such as `val/loss`.
    """

    scheduler: SchedulerFactory
    interval: Literal["step", "epoch"]
    frequency: int = 1
    monitor: str | None = None


def steps_of_epochs(trainer: Trainer, accumulate: int | None = None) -> list[int] | None:
    """Optimizer steps in each epoch of the run; None if it has no end, or the data have none.

    Args:
        trainer: of the run, with its `GradientAccumulationScheduler` if there is one.
        accumulate: micro-batches of a step, of a task that optimises by itself.
    """
    last = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else math.inf
    left = trainer.max_steps if trainer.max_steps > 0 else math.inf
    count_batches(trainer)
    if math.inf in (min(last, left), trainer.num_training_batches):
        return None
    changing = accumulation_schedule(trainer)
    epochs: list[int] = []
    while len(epochs) < last and left > 0:
        factor = accumulate or (changing.get_accumulate_grad_batches(len(epochs)) if changing else None)
        steps = max(math.ceil(trainer.num_training_batches / (factor or trainer.accumulate_grad_batches)), 1)
        epochs.append(int(min(steps, left)))
        left -= steps
    return epochs


def learning_rates(optimizers: Sequence[Optimizer]) -> dict[str, float]:
    """Return the current rate of every parameter group: `lr`, or `lr/NAME` (`lr/0`…) if there are several."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if len(groups) == 1:
        return {"lr": float(groups[0]["lr"])}
    return {f"lr/{group.get('name', number)}": float(group["lr"]) for number, group in enumerate(groups)}


def build_optimizers(
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    optimizer: OptimizerFactory,
    schedules: Sequence[Schedule],
    length: Callable[[str], int | None],
) -> tuple[list[Optimizer], list[dict[str, Any]]]:
    """Build the optimizer and its schedules; see `build_optimizer` and `build_schedulers`.

    Returns:
        The lists that `LightningModule.configure_optimizers` returns.
    """
    optim = build_optimizer(optimizer, parameters)
    return [optim], build_schedulers(schedules, optim, length)


def build_optimizer(factory: OptimizerFactory, parameters: Iterable[Tensor] | Iterable[dict[str, Any]]) -> Optimizer:
    """Build the optimizer of parameters or parameter groups, and apply each group's `lr_factor`.

    Raises:
        UserError: if the optimizer rejects its arguments.
        GroupError: if a parameter group has an option that the optimizer does not have.
    """
    given: list[Any] = list(parameters)
    optimizer = _made("optimizer", factory, given)
    check_options(given, optimizer)
    for group in optimizer.param_groups:
        group["lr"] *= group.pop("lr_factor", 1.0)
    return optimizer


def build_schedulers(
    schedules: Sequence[Schedule], optimizer: Optimizer, length: Callable[[str], int | None]
) -> list[dict[str, Any]]:
    """Build the learning rate schedulers of an optimizer. The factors of several schedulers are multiplied.

    Args:
        schedules: what to build.
        optimizer: its learning rates are the initial ones.
        length: returns the length of the run in an interval (`step` or `epoch`), or None if the run has no end.

    Returns:
        Lightning's scheduler configs.

    Raises:
        ScheduleError: if a schedule contradicts itself, another one or the length of the run.
        UserError: if a scheduler rejects its arguments.
    """
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    configs = []
    for number, schedule in enumerate(schedules):
        name = f"schedulers[{number}]"
        if schedule.frequency < 1:
            raise ScheduleError(f"{name}: frequency must be at least 1, got {schedule.frequency}")
        end = length(schedule.interval)
        with horizon_is(None if end is None else -(-end // schedule.frequency)) as seen:
            scheduler = _made(name, schedule.scheduler, optimizer)
        check_groups(scheduler, rates)
        # an attribute, so that it is saved with the scheduler's state and compared on resume
        scheduler.planned_length = end if seen.used else None
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) != (schedule.monitor is not None):
            raise ScheduleError(f"{name}: ReduceLROnPlateau needs a metric to monitor, the others watch none")
        config: dict[str, Any] = {
            "scheduler": scheduler,
            "interval": schedule.interval,
            # Lightning would count micro-batches within the epoch: Task.lr_scheduler_step counts optimizer steps
            "frequency": schedule.frequency if schedule.interval == "epoch" else 1,
            "name": f"schedule{number}",
        }
        if schedule.monitor is not None:
            config["monitor"] = schedule.monitor
            # Lightning would step it after it saved the epoch's checkpoint, and end the run if an epoch was not
            # validated: the task does it
            config["reduce_on_plateau"] = schedule.interval == "step"
        configs.append(config)
    check_multiply([config["scheduler"] for config in configs])
    return configs


def _made(where: str, factory: Callable[[Any], Any], argument: Any) -> Any:
    """What a factory of the config makes; what it refuses, such as a negative rate, is the user's to put right."""
    try:
        return factory(argument)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(f"{where}: {error}") from error


def check_resumed(trainer: Trainer, run: Callable[[str], int | None]) -> None:
    """Raises ScheduleError if a schedule that was resumed ends elsewhere than the run does now."""
    for config in trainer.lr_scheduler_configs:
        planned = getattr(config.scheduler, "planned_length", None)
        length = run(config.interval)
        if planned is not None and planned != length:
            raise ScheduleError(
                f"the learning rate schedule of this run ends after {planned} {config.interval}s, but the run would "
                f"now have {length}: keep its max_epochs, batch size and number of devices, start a new run "
                "from its weights with --init_from, or continue at the rate it has with --model.schedulers=null"
            )
