"""Optimizer and learning rate schedules: chained, checked, as long as the run."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from .errors import UserError
from .parameter_groups import apply_factors, check_options


class ScheduleError(UserError):
    """A learning rate schedule contradicts itself or the length of the run."""


@dataclass
class Horizon:
    """Steps until the end (None: without end), and whether a scheduler asked for them."""

    steps: int | None
    used: bool = False


_horizon: ContextVar[Horizon] = ContextVar("horizon")


def horizon() -> int:
    """How often the scheduler under construction will be stepped until the end of the run.

    Call it in the constructor of a scheduler of your own that must end with the run.

    Raises:
        ScheduleError: the run has no end, or the scheduler is built outside `configure`.
    """
    steps = known_horizon()
    if steps is None:
        raise ScheduleError(
            "a scheduler that ends with the run needs a run with an end: set trainer.max_epochs or max_steps"
        )
    _horizon.get().used = True
    return steps


def known_horizon() -> int | None:
    """`horizon()`, or None if it is not known."""
    current = _horizon.get(None)
    return current.steps if current else None


@contextmanager
def horizon_is(steps: int | None) -> Iterator[Horizon]:
    """Within it, `horizon()` is `steps` (None: without end)."""
    outer = _horizon.get(None)
    current = Horizon(steps)
    token = _horizon.set(current)
    try:
        yield current
    finally:
        _horizon.reset(token)
        if outer is not None:
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

    Args:
        optimizer: given by the task.
        max_lr: the peak; default: the rate of each parameter group of the optimizer. A single number is that of the
            group with the largest rate; the others keep their proportions to it.
        pct_start: share of the run on the way up.
        anneal_strategy: `cos` or `linear`.
        cycle_momentum: lower the momentum while the rate is high; the optimizer must have one.
        base_momentum: lowest momentum.
        max_momentum: highest momentum.
        div_factor: the rate starts at `max_lr / div_factor`
        final_div_factor: and ends at that start divided by this.
        three_phase: a third phase for the last descent.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float] | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        if isinstance(max_lr, float | int) and max(rates) > 0:
            max_lr = [max_lr * (rate / max(rates)) for rate in rates]
        super().__init__(
            optimizer,
            max_lr=rates if max_lr is None else max_lr,
            # Lightning steps once more after the last update, where torch would raise
            total_steps=horizon() + 1,
            pct_start=pct_start,
            anneal_strategy=anneal_strategy,
            cycle_momentum=cycle_momentum,
            base_momentum=base_momentum,
            max_momentum=max_momentum,
            div_factor=div_factor,
            final_div_factor=final_div_factor,
            three_phase=three_phase,
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


# They set the rate from the start of the run, or watch a metric.
_NOT_IN_SEQUENCE = (lr_scheduler.OneCycleLR, lr_scheduler.CyclicLR, lr_scheduler.ReduceLROnPlateau)
# torch cannot begin them at a milestone
_ONLY_FIRST = (lr_scheduler.ChainedScheduler, lr_scheduler.SequentialLR)


class SequentialLR(lr_scheduler.SequentialLR):
    """One scheduler after the other: warm-up, then the main one. Each gets what the others leave of the run.

    Args:
        optimizer: given by the task.
        schedulers: in their order.
        milestones: when each but the first begins, counted in the interval of the schedule; a number below 1 is a
            share of the run.

    Raises:
        ScheduleError: not one milestone less than schedulers, or not ascending, or beyond the end of the run; or a
            scheduler that cannot be part of a sequence.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[SchedulerFactory], milestones: Sequence[int | float]
    ) -> None:
        if len(milestones) != len(schedulers) - 1:
            raise ScheduleError(
                f"SequentialLR of {len(schedulers)} schedulers needs {len(schedulers) - 1} milestone(s), "
                f"got {len(milestones)}"
            )
        if any(m <= 0 for m in milestones) or any(b <= a and (a < 1) == (b < 1) for a, b in pairwise(milestones)):
            raise ScheduleError(f"the milestones of SequentialLR must ascend from above 0, got {list(milestones)}")
        end = known_horizon()
        borders = [round(m * horizon()) if m < 1 else int(m) for m in milestones]
        for milestone, border in zip(milestones, borders, strict=True):
            if milestone >= 1 and end is not None and border >= end:
                raise ScheduleError(f"milestone {border} of SequentialLR is not within the run, which ends at {end}")
        if any(b < a for a, b in pairwise(borders)):
            raise ScheduleError(f"the milestones of SequentialLR must ascend: {list(milestones)} are {borders}")
        parts: list[LRScheduler] = []
        starts = []
        for start, stop, factory in zip([0, *borders], [*borders, end], schedulers, strict=True):
            if start == stop:  # a share of a short run has rounded to nothing
                continue
            starts.append(start)
            with horizon_is(None if stop is None else stop - start):
                parts.append(factory(optimizer))
                check_length(parts[-1], "part of SequentialLR")
            if isinstance(parts[-1], _NOT_IN_SEQUENCE):
                raise ScheduleError(f"{type(parts[-1]).__name__} cannot be part of a SequentialLR")
            if start > 0 and isinstance(parts[-1], _ONLY_FIRST):
                raise ScheduleError(f"{type(parts[-1]).__name__} can only be the first part of a SequentialLR")
        super().__init__(optimizer, parts, starts[1:])


class ChainedScheduler(lr_scheduler.ChainedScheduler):
    """Several schedulers at once, whose factors multiply.

    Args:
        optimizer: given by the task.
        schedulers: ones that scale the current rate.

    Raises:
        ScheduleError: one of them sets the rate instead of scaling it, so that there would be no product.
    """

    def __init__(self, optimizer: Optimizer, schedulers: Sequence[SchedulerFactory]) -> None:
        parts = [factory(optimizer) for factory in schedulers]
        check_multiply(parts)
        super().__init__(parts, optimizer)


def check_length(scheduler: LRScheduler, where: str) -> None:
    """Raises ScheduleError if a scheduler whose length was given by hand does not fit `horizon()`."""
    end = known_horizon()
    if end is None:
        return
    name = type(scheduler).__name__
    for kind, attribute in ((lr_scheduler.OneCycleLR, "total_steps"), (lr_scheduler.CosineAnnealingLR, "T_max")):
        if type(scheduler) is kind and getattr(scheduler, attribute) != end:
            raise ScheduleError(
                f"{where}: {attribute} of {name} is {getattr(scheduler, attribute)}, but it is stepped {end} times in "
                f"this run; {name} of this project takes it from the trainer"
            )
    total_iters = getattr(scheduler, "total_iters", 0)
    if type(scheduler) in (lr_scheduler.LinearLR, lr_scheduler.PolynomialLR) and total_iters > end:
        raise ScheduleError(
            f"{where}: total_iters of {name} is {total_iters}, but it is stepped {end} times in this run; "
            f"{name} of this project takes it from the trainer"
        )


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
    if len(schedulers) > 1:
        for scheduler in schedulers:
            if getattr(scheduler, "eta_min", 0):
                raise ScheduleError(
                    f"{type(scheduler).__name__} with eta_min is no factor and cannot be multiplied with other "
                    "schedulers: use eta_min 0, or use it alone"
                )
            if isinstance(scheduler, _ABSOLUTE):
                inside = isinstance(scheduler, lr_scheduler.SequentialLR)
                raise ScheduleError(
                    f"{type(scheduler).__name__} sets the learning rate and cannot be multiplied with others; "
                    f"put {'them into it' if inside else 'it into SequentialLR'}, or use it alone"
                )


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


def steps_of_epochs(trainer: Trainer, accumulate: int | None = None) -> Iterator[int]:
    """Optimizer steps of each epoch from the first on, without end; the batches have been counted.

    Args:
        trainer: of the run, with its `GradientAccumulationScheduler` if there is one.
        accumulate: micro-batches of a step, of a task that optimises by itself.
    """
    changing = [one for one in trainer.callbacks if isinstance(one, GradientAccumulationScheduler)]  # type: ignore[attr-defined]
    for epoch in count():
        factor = accumulate or (changing[0].get_accumulate_grad_batches(epoch) if changing else None)
        yield -(-int(trainer.num_training_batches) // (factor or trainer.accumulate_grad_batches))


def run_length(trainer: Trainer, interval: str, accumulate: int | None = None) -> int | None:
    """Length of the run in optimizer steps or in epochs (`interval`: `step`, `epoch`); None without end.

    Args:
        trainer: of the run.
        interval: see above.
        accumulate: see `steps_of_epochs`.
    """
    if trainer.estimated_stepping_batches == float("inf"):
        return None
    last = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else None
    limit = trainer.max_steps if trainer.max_steps and trainer.max_steps > 0 else None
    trainer.fit_loop.setup_data()  # without max_epochs Lightning has not counted the batches yet
    if trainer.num_training_batches == float("inf"):
        return limit if interval == "step" else last
    steps = epochs = 0
    for more in steps_of_epochs(trainer, accumulate):
        if epochs == last or (limit is not None and steps >= limit):
            break
        steps, epochs = steps + more, epochs + 1
    if interval == "epoch":
        return epochs
    return steps if limit is None else min(steps, limit)


def configure(
    parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
    optimizer: OptimizerFactory,
    schedules: Sequence[Schedule],
    length: Callable[[str], int | None],
    lr: float | None = None,
) -> tuple[list[Optimizer], list[dict[str, Any]]]:
    """Builds the optimizer and its schedules, whose factors multiply where there are several.

    Args:
        parameters: tensors or parameter groups.
        optimizer: makes the optimizer of them.
        schedules: in the form of the config.
        length: of the run in the given interval.
        lr: replaces the optimizer's learning rate.

    Returns:
        What `LightningModule.configure_optimizers` returns.

    Raises:
        ScheduleError: a schedule contradicts itself, another one or the length of the run.
        UserError: the optimizer or a scheduler refuses its arguments.
    """
    given: list[Any] = list(parameters)
    optim = _made("optimizer", optimizer, given)
    check_options(given, optim)
    apply_factors(optim.param_groups, lr)
    configs = []
    for number, schedule in enumerate(schedules):
        if schedule.frequency < 1:
            raise ScheduleError(f"schedulers[{number}]: frequency must be at least 1, got {schedule.frequency}")
        end = length(schedule.interval)
        with horizon_is(None if end is None else -(-end // schedule.frequency)) as seen:
            scheduler = _made(f"schedulers[{number}]", schedule.scheduler, optim)
            _check(scheduler, schedule, number)
        # an attribute, so that it is saved with the scheduler's state and compared on resume
        scheduler.planned_length = end if seen.used else None
        config: dict[str, Any] = {
            "scheduler": scheduler,
            "interval": schedule.interval,
            # Lightning would count micro-batches within the epoch: Task.lr_scheduler_step counts optimizer steps
            "frequency": schedule.frequency if schedule.interval == "epoch" else 1,
            "name": f"schedule{number}",
        }
        if schedule.monitor is not None:
            config["monitor"] = schedule.monitor
            # Lightning would step it after it has saved the epoch's checkpoint, and end the run where an epoch was not
            # validated: the task does it
            config["reduce_on_plateau"] = schedule.interval == "step"
        configs.append(config)
    monitors = sorted({config["monitor"] for config in configs if "monitor" in config})
    if len(monitors) > 1:
        raise ScheduleError(
            f"schedulers watch different metrics ({', '.join(monitors)}): one would cut the rate while the other "
            "waits; keep one of them"
        )
    check_multiply([config["scheduler"] for config in configs])
    return [optim], configs


def _made(where: str, factory: Callable[[Any], Any], argument: Any) -> Any:
    """What a factory of the config makes; what it refuses, such as a negative rate, is the user's to put right."""
    try:
        return factory(argument)
    except (ValueError, TypeError, RuntimeError) as error:
        raise UserError(f"{where}: {error}") from error


def check_resumed(trainer: Trainer, run: Callable[[str], int | None]) -> None:
    """Raises ScheduleError if a schedule that was resumed ends elsewhere than the run does now."""
    for config in trainer.lr_scheduler_configs:
        planned = getattr(config.scheduler, "planned_length", None)
        length = run(config.interval)
        if planned is not None and planned != length:
            raise ScheduleError(
                f"the learning rate schedule of this run ends after {planned} {config.interval}s, but the run would "
                f"now have {length}: keep its max_epochs, batch size and number of devices, or start a new run from "
                "its weights with --init_from"
            )


def _check(scheduler: Any, schedule: Schedule, number: int) -> None:
    where = f"schedulers[{number}] ({type(scheduler).__name__})"
    plateau = isinstance(scheduler, lr_scheduler.ReduceLROnPlateau)
    if plateau and schedule.monitor is None:
        raise ScheduleError(f"{where} needs a metric to watch, such as monitor: val/loss")
    if not plateau and schedule.monitor is not None:
        raise ScheduleError(f"{where} watches no metric: remove monitor: {schedule.monitor}")
    check_length(scheduler, where)
