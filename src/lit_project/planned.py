"""The learning rates of a run before it is trained: `fit -c X.yaml --plot_lr=true`."""

import csv
import warnings
from contextlib import suppress
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_project.errors import UserError
from lit_project.optim import steps_of_epochs
from lit_project.processes import is_first
from lit_project.run import RunDir
from lit_project.tasks.base import Task
from lit_project.viz.figures import learning_rates


class _Planned(BaseException):
    """Ends a fit before its first step."""


class _Plan(Callback):
    """Steps the schedules as training would, when everything is set up for it."""

    curves: dict[str, list[tuple[float, float]]]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert isinstance(pl_module, Task)
        self.curves = planned_rates(trainer, pl_module)
        raise _Planned


def planned_rates(trainer: Trainer, task: Task) -> dict[str, list[tuple[float, float]]]:
    """The rate of each parameter group at each optimizer step: name → points (step from 0, rate).

    What watches a metric (ReduceLROnPlateau) is taken never to act. The schedules are left at their end.

    Raises:
        UserError: the run has no end.
    """
    steps = task.length("step")
    if steps is None:
        raise UserError("a run without end has no plan of its learning rates: set trainer.max_epochs or max_steps")
    by_epoch = steps_of_epochs(trainer, task.accumulate)
    epochs, end = 0, next(by_epoch)  # epochs that are over, and steps at the end of this one
    curves: dict[str, list[tuple[float, float]]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the optimizer's step
        for step in range(steps):
            for name, rate in task.learning_rates().items():
                curves.setdefault(name, []).append((step, rate))
            last = step + 1 == end
            if last:
                epochs, end = epochs + 1, end + next(by_epoch)
            for config, schedule in zip(trainer.lr_scheduler_configs, task.all_schedules, strict=True):
                done = epochs if schedule.interval == "epoch" else step + 1
                due = (schedule.interval == "step" or last) and done % schedule.frequency == 0
                if due and not isinstance(config.scheduler, ReduceLROnPlateau):
                    config.scheduler.step()
    return curves


def plot_lr(trainer: Trainer, model: LightningModule, datamodule: Any, run: RunDir) -> None:
    """Writes figures/planned_learning_rate.png and .csv and trains nothing.

    Raises:
        UserError: see `planned_rates`, or the model is no `Task`.
    """
    if not isinstance(model, Task):
        raise UserError("plot_lr needs a model that is a lit_project.tasks.Task")
    plan = _Plan()
    trainer.callbacks.insert(0, plan)  # type: ignore[attr-defined]
    with suppress(_Planned):
        trainer.fit(model, datamodule=datamodule)
    if is_first():
        file = run.path / "figures" / "planned_learning_rate.png"
        file.parent.mkdir(exist_ok=True)
        learning_rates(plan.curves).savefig(file)
        with file.with_suffix(".csv").open("w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["step", *plan.curves])
            columns = [[rate for _, rate in points] for points in plan.curves.values()]
            writer.writerows((step, *rates) for step, rates in enumerate(zip(*columns, strict=True)))
        for name, points in plan.curves.items():
            rates = [rate for _, rate in points]
            print(f"{name}: {rates[0]:.3g} at first, {max(rates):.3g} at most, {rates[-1]:.3g} at last")
        print(f"planned learning rate: {file}")
