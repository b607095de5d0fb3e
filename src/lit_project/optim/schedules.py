"""From factories in a config to what `configure_optimizers` returns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from lit_project.errors import UserError
from lit_project.optim.groups import apply_factors, check_options
from lit_project.optim.horizon import ScheduleError, horizon_is
from lit_project.optim.schedulers import SchedulerFactory, check_length, check_multiply

OptimizerFactory = Callable[[Iterable[Any]], Optimizer]


@dataclass
class Schedule:
    """A learning rate scheduler and when it is stepped.

    Args:
        scheduler: from `lit_project.optim` or `torch.optim.lr_scheduler`.
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
