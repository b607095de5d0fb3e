"""Optimizers and learning rate schedules. Several schedules can be combined. Most adapt to the length of the run."""

import math
import re
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
from lit_engine.data.module import accumulation_schedule, accumulation_steps
from lit_engine.distributed.processes import warn_once
from lit_engine.errors import UserError
from lit_engine.training.parameter_groups import check_options


@dataclass
class Horizon:
    """Number of steps until the end of the run (None if unlimited), and whether a scheduler used this number."""

    steps: int | None
    used: bool = False


# Sharing this mutable default is safe, because no code reads its `used` attribute.
_horizon: ContextVar[Horizon] = ContextVar("horizon", default=Horizon(None))  # noqa: B039


def horizon() -> int:
    """Return how many times a new scheduler will be stepped until the end of the run.

    Call this function in the constructor of your own scheduler if the schedule must end with the run.

    Raises:
        UserError: if the length of the run is unlimited.
    """
    current = _horizon.get()
    if current.steps is None:
        raise UserError(
            "a schedule needs a known number of steps (at least one): check trainer.max_epochs, max_steps "
            "and limit_train_batches. A module that is not a Task must use torch's schedulers, such as "
            "torch.optim.lr_scheduler.CosineAnnealingLR"
        )
    current.used = True
    return current.steps


@contextmanager
def horizon_is(steps: int | None) -> Iterator[Horizon]:
    """Make `horizon()` return `steps` in this context. None means that the run is unlimited."""
    outer, current = _horizon.get(), Horizon(steps)
    token = _horizon.set(current)
    try:
        yield current
    finally:
        _horizon.reset(token)
        outer.used |= current.used


SchedulerFactory = Callable[[Optimizer], LRScheduler]


class CosineAnnealingLR(lr_scheduler.CosineAnnealingLR):
    """Cosine decay from the optimizer's rate to `eta_min` at the end of the run (Loshchilov & Hutter 2017).

    Args:
        optimizer: provided by the task.
        eta_min: learning rate at the end of the run.
    """

    def __init__(self, optimizer: Optimizer, eta_min: float = 0.0) -> None:
        super().__init__(optimizer, T_max=horizon(), eta_min=eta_min)


class PolynomialLR(lr_scheduler.PolynomialLR):
    """Polynomial decay (linear if `power` is 1) from the optimizer's rate to 0 at the end of the run.

    Args:
        optimizer: provided by the task.
        power: exponent of the remaining fraction of the run.
    """

    def __init__(self, optimizer: Optimizer, power: float = 1.0) -> None:
        super().__init__(optimizer, total_iters=horizon(), power=power)


class OneCycleLR(lr_scheduler.OneCycleLR):
    """Learning rate that rises to `max_lr` and falls over the rest of the run (Smith & Topin 2018).

    Momentum (Adam's β₁) changes from 0.95 to 0.85 and back. Set `cycle_momentum` to false to keep momentum constant.

    Args:
        optimizer: provided by the task.
        max_lr: peak rate. Default: the learning rate of each parameter group. A single number applies to the group
            with the largest rate, and the peak rates of the other groups are scaled in proportion.
        pct_start: fraction of the run until the peak.
        kwargs: other arguments of torch's OneCycleLR.
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: float | list[float] | None = None, pct_start: float = 0.3, **kwargs: Any
    ) -> None:
        rates = [group["lr"] for group in optimizer.param_groups]
        if isinstance(max_lr, float | int) and max(rates) > 0:
            max_lr = [max_lr * (rate / max(rates)) for rate in rates]
        # Like other schedules, reach the final rate after the last update. torch would reach it one step earlier.
        total = horizon() + 1
        super().__init__(
            optimizer,
            max_lr=rates if max_lr is None else max_lr,
            total_steps=total,
            # If the first phase had a length of exactly 0, torch would divide by zero.
            pct_start=pct_start * (1 - 1e-9) if pct_start * total == 1 else pct_start,
            # A config cannot set these two arguments, because torch would ignore them.
            epochs=None,
            steps_per_epoch=None,
            **kwargs,
        )


class LinearLR(lr_scheduler.LinearLR):
    """Linear warm-up from `start_factor` to `end_factor` times the optimizer's rate.

    Args:
        optimizer: provided by the task.
        start_factor: factor at the start.
        end_factor: factor at the end of the run, or when the next scheduler of a SequentialLR starts.
    """

    def __init__(self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0) -> None:
        super().__init__(optimizer, start_factor, end_factor, total_iters=max(horizon(), 1))


class InverseSqrtLR(lr_scheduler.LambdaLR):
    """Linear warm-up to the optimizer's rate, then inverse square root decay (Vaswani et al. 2017).

    Unlike the other schedules, it does not depend on the length of the run.

    Args:
        optimizer: provided by the task.
        warmup_steps: number of steps until the rate peaks.

    Raises:
        UserError: if `warmup_steps` is below 1.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int) -> None:
        if warmup_steps < 1:
            raise UserError(f"warmup_steps must be at least 1, got {warmup_steps}")
        super().__init__(optimizer, lambda step: min((step + 1) / warmup_steps, (warmup_steps / (step + 1)) ** 0.5))


# These schedulers change the learning rate when they are created, monitor a metric, or cannot start at a milestone.
_NOT_IN_SEQUENCE = (
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.MultiplicativeLR,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
)


class SequentialLR(lr_scheduler.SequentialLR):
    """Schedulers that run one after the other, such as a warm-up and the main schedule. Each covers a part of the run.

    Args:
        optimizer: provided by the task.
        schedulers: schedulers in order.
        milestones: scheduler steps at which the second and later schedulers start. One scheduler step is taken every
            `frequency` intervals. A value below 1 is a fraction of the run.

    Raises:
        UserError: if the milestones are not ascending, are outside the run or do not match the number of
            schedulers, or if a scheduler cannot be part of a sequence.
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: Sequence[SchedulerFactory], milestones: Sequence[int | float]
    ) -> None:
        end = _horizon.get().steps
        borders = [round(m * horizon()) if m < 1 else int(m) for m in milestones]
        are_valid = all(m > 0 and (m < 1 or m == int(m)) for m in milestones)
        # In a short run, two different fractions may be rounded to the same step.
        ascend = borders == sorted(borders) and len({*milestones}) == len(milestones)
        if not (are_valid and ascend and len(milestones) == len(schedulers) - 1):
            raise UserError(
                "the milestones of SequentialLR must be positive and ascending whole numbers, or fractions below 1. "
                f"Each scheduler after the first needs one. Got {list(milestones)} for {len(schedulers)} schedulers"
            )
        if end is not None and borders and borders[-1] >= end and milestones[-1] >= 1:
            raise UserError(f"milestone {borders[-1]} of SequentialLR is not within the run, which ends at {end}")
        parts: list[LRScheduler] = []
        starts = []
        for start, stop, factory in zip([0, *borders], [*borders, end], schedulers, strict=True):
            if start == stop:  # in a short run, a fraction may be rounded to 0 steps
                continue
            starts.append(start)
            with horizon_is(None if stop is None else stop - start):
                parts.append(factory(optimizer))
            if isinstance(parts[-1], _NOT_IN_SEQUENCE):
                raise UserError(f"{type(parts[-1]).__name__} cannot be part of a SequentialLR")
        super().__init__(optimizer, parts, starts[1:])

    def step(self) -> None:  # type: ignore[override]
        """Step the current scheduler. At a milestone, first reset the rate to its initial value."""
        if self.last_epoch + 1 in self._milestones:
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"]  # some schedulers compute each rate from the previous one
        super().step()


# These schedulers compute the rate from its initial value and overwrite the effect of other schedulers.
_ABSOLUTE = (
    lr_scheduler.LambdaLR,
    lr_scheduler.OneCycleLR,
    lr_scheduler.CyclicLR,
    lr_scheduler.CosineAnnealingWarmRestarts,
    lr_scheduler.SequentialLR,
)


def check_multiply(schedulers: Sequence[LRScheduler]) -> None:
    """Raise UserError if one of several schedulers overwrites the effect of the others."""
    for scheduler in schedulers if len(schedulers) > 1 else ():
        if isinstance(scheduler, _ABSOLUTE) or getattr(scheduler, "eta_min", 0) > 0:
            raise UserError(
                f"{type(scheduler).__name__} sets an absolute rate or minimum and cannot be multiplied with other "
                "schedulers. Use only this scheduler, or combine them with SequentialLR"
            )


def check_groups(scheduler: LRScheduler, rates: Sequence[float]) -> None:
    """Raise UserError if a schedule would not preserve the ratios between the groups' learning rates."""
    name, lowest = type(scheduler).__name__, min(rates)
    if isinstance(scheduler, lr_scheduler.CyclicLR) and len({*rates}) > len({*scheduler.base_lrs}):
        raise UserError(f"{name} has one base_lr for parameter groups with different rates: list one per group")
    for part in (scheduler, *getattr(scheduler, "_schedulers", ())):
        if getattr(part, "eta_min", 0) > lowest:
            raise UserError(f"{name}: eta_min {part.eta_min} is above the rate of a parameter group, {lowest:.3g}")


OptimizerFactory = Callable[[Iterable[Any]], Optimizer]


@dataclass
class Schedule:
    """Learning rate scheduler and the interval at which it is stepped.

    Args:
        scheduler: scheduler from this project or from `torch.optim.lr_scheduler`.
        interval: `step` (optimizer steps) or `epoch`. There is no default, because a wrong unit distorts the schedule.
        frequency: number of intervals per scheduler step.
        monitor: metric that ReduceLROnPlateau monitors, such as `val/loss`.
    """

    scheduler: SchedulerFactory
    interval: Literal["step", "epoch"]
    frequency: int = 1
    monitor: str | None = None


def steps_of_epochs(trainer: Trainer) -> list[int] | None:
    """Return the number of optimizer steps in each epoch of the run, or None if the run or its data are unlimited."""
    last = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else math.inf
    left = trainer.max_steps if trainer.max_steps > 0 else math.inf
    count_batches(trainer)
    if math.inf in (min(last, left), trainer.num_training_batches):
        return None
    changing, fixed = accumulation_schedule(trainer), accumulation_steps(trainer)
    epochs: list[int] = []
    while len(epochs) < last and left > 0:
        factor = changing.get_accumulate_grad_batches(len(epochs)) if changing else fixed
        steps = max(math.ceil(trainer.num_training_batches / factor), 1)
        epochs.append(int(min(steps, left)))
        left -= steps
    return epochs


def iterate_steps(trainer: Trainer, epochs: Iterable[int], since_start: bool) -> Iterator[dict[str, int]]:
    """After each optimizer step, yield the number of steps and, at the end of an epoch, the number of epochs.

    Schedules are stepped at multiples of `frequency`.

    Args:
        trainer: the trainer, which knows the number of batches per epoch.
        epochs: number of optimizer steps in each epoch.
        since_start: whether `step` counts steps since the start of the run, as in tasks. For other modules, Lightning
            counts batches since the start of the epoch.
    """
    done = 0
    for epoch, steps in enumerate(epochs, 1):
        for step in range(1, steps + 1):
            done += 1
            batches = min(step * trainer.accumulate_grad_batches, int(trainer.num_training_batches))
            yield {"step": done if since_start else batches, **({"epoch": epoch} if step == steps else {})}


def learning_rates(optimizers: Sequence[Optimizer]) -> dict[str, float]:
    """Return the rate of each parameter group as `lr`, or as `lr/NAME` (`lr/0`…) if there are several groups."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if len(groups) == 1:
        return {"lr": float(groups[0]["lr"])}
    return {f"lr/{group.get('name', number)}": float(group["lr"]) for number, group in enumerate(groups)}


def build_optimizer(factory: OptimizerFactory, parameters: Iterable[Tensor] | Iterable[dict[str, Any]]) -> Optimizer:
    """Build an optimizer for parameters or parameter groups, and apply each group's `lr_factor`.

    Raises:
        UserError: if the optimizer rejects its arguments, or lacks an option set in a parameter group.
    """
    given: list[Any] = list(parameters)
    optimizer = _make("optimizer", factory, given)
    check_options(given, optimizer)
    for group in optimizer.param_groups:
        if group.get("lr") is None:
            raise UserError(f"optimizer: {type(optimizer).__name__} needs a learning rate: set lr")
        group["lr"] *= group.pop("lr_factor", 1.0)
    return optimizer


def build_schedulers(
    schedules: Sequence[Schedule], optimizer: Optimizer, length: Callable[[str], int | None]
) -> list[dict[str, Any]]:
    """Build the learning rate schedulers for an optimizer. The factors of several schedulers are multiplied.

    Returns:
        Lightning's scheduler configs.

    Raises:
        UserError: if a scheduler rejects its arguments, or conflicts with another one or with the length of the run.
    """
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    configs = []
    for number, schedule in enumerate(schedules):
        name = f"schedulers[{number}]"
        if schedule.frequency < 1:
            raise UserError(f"{name}: frequency must be at least 1, got {schedule.frequency}")
        end = length(schedule.interval)
        with horizon_is(None if end is None else -(-end // schedule.frequency)) as seen:
            scheduler = _make(name, schedule.scheduler, optimizer)
        check_groups(scheduler, rates)
        # This attribute is part of the scheduler's state, so a resumed run can check the length.
        scheduler.planned_length = end if seen.used else None
        if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) != (schedule.monitor is not None):
            raise UserError(f"{name}: set `monitor` only for ReduceLROnPlateau, which requires it")
        if schedule.monitor is not None and schedule.interval == "step":
            raise UserError(f"{name}: a schedule that monitors a metric needs interval: epoch")
        config: dict[str, Any] = {
            "scheduler": scheduler,
            "interval": schedule.interval,
            # Lightning would count micro-batches within the epoch. Task.lr_scheduler_step counts optimizer steps.
            "frequency": schedule.frequency if schedule.interval == "epoch" else 1,
            "name": f"schedule{number}",
        }
        if schedule.monitor is not None:
            config["monitor"] = schedule.monitor
            # The task steps this scheduler, because Lightning would step it after saving the epoch's checkpoint.
            # Lightning would also stop the run after an epoch without validation.
            config["reduce_on_plateau"] = False
        configs.append(config)
    check_multiply([config["scheduler"] for config in configs])
    return configs


def _make(where: str, factory: Callable[[Any], Any], argument: Any) -> Any:
    """Call a factory from the config. Raise UserError if it rejects its arguments, such as a negative rate."""
    try:
        return factory(argument)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise UserError(f"{where}: {error}") from error


def lengths_in(state: Any) -> list[str]:
    """Return the values that depend on the length of the run, from the state of a scheduler and of its parts."""
    # timm calls the length `t_initial`, and lightning-bolts calls it `max_epochs`.
    names = r"planned_length|T_max|t_initial|num_training_steps|(?:total|max)\w*_(?:steps|epochs|iters?)"
    return re.findall(rf"'(?:{names})': (\w+)", str(state))


def has_other_factors(scheduler: Any, state: Any) -> bool:
    """Return whether a LambdaLR computes different rates at the saved step, for example because max_epochs changed."""
    if type(scheduler) is not lr_scheduler.LambdaLR or "_last_lr" not in state:
        return False
    factors = [factor(state["last_epoch"]) for factor in scheduler.lr_lambdas]
    return [base * factor for base, factor in zip(state["base_lrs"], factors, strict=False)] != state["_last_lr"]


def check_lengths(trainer: Trainer, saved: Sequence[Any]) -> None:
    """Raise UserError if a resumed run's schedules have different lengths from those saved in its checkpoint."""
    for config, state in zip(trainer.lr_scheduler_configs, saved, strict=False):
        if has_other_factors(config.scheduler, state):
            warn_once("warning: LambdaLR now computes different learning rates, perhaps because max_epochs changed")
        before, now = lengths_in(state), lengths_in(config.scheduler.state_dict())
        if before != now:
            raise UserError(
                f"the length of {type(config.scheduler).__name__} was {', '.join(before)} and would be "
                f"{', '.join(now)}, but a resumed run cannot change its schedules: restore max_epochs and the batch "
                "size, or continue as a new run with --fork"
            )


def check_resumed(trainer: Trainer, run: Callable[[str], int | None]) -> None:
    """Raise UserError if a resumed schedule no longer ends with the run."""
    for config in trainer.lr_scheduler_configs:
        planned = getattr(config.scheduler, "planned_length", None)
        length = run(config.interval)
        if planned is not None and planned != length:
            raise UserError(
                f"the learning rate schedule of this run ends after {planned} {config.interval}s, "
                f"but the run would now have {length}: restore its max_epochs, batch size and number of devices, "
                "continue as a new run with --fork, or keep the current rate with --model.schedulers=null"
            )
