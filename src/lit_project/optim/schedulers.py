"""torch's schedulers where they need the length of the run or other schedulers: the same names, fewer arguments.

Any other scheduler of `torch.optim.lr_scheduler` is used as it is. Each `schedulers` below takes factories, so that
YAML nests them by `class_path`.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from torch.optim import Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

from lit_project.optim.horizon import ScheduleError, horizon, horizon_is, known_horizon

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
                f"this run; lit_project.optim.{name} takes it from the trainer"
            )
    total_iters = getattr(scheduler, "total_iters", 0)
    if type(scheduler) in (lr_scheduler.LinearLR, lr_scheduler.PolynomialLR) and total_iters > end:
        raise ScheduleError(
            f"{where}: total_iters of {name} is {total_iters}, but it is stepped {end} times in this run; "
            f"lit_project.optim.{name} takes it from the trainer"
        )


# These compute the rate from the start, whatever another scheduler made of it.
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
                    f"put {'them into it' if inside else 'it into lit_project.optim.SequentialLR'}, or use it alone"
                )
