"""What all tasks share: optimizer and schedules, exact running means, rates and speed, one random stream a step."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.optim import LBFGS

from lit_project.optim import (
    OptimizerFactory,
    ParameterGroups,
    Schedule,
    ScheduleError,
    check_resumed,
    configure,
    run_length,
)
from lit_project.seeding import global_seed, seed_step
from lit_project.tasks.clock import Clock
from lit_project.tasks.step_mean import StepMean


class Totals:
    """Sums over samples and their count, from which means are exact: ragged batches and processes weigh right."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count: int | Tensor = 0

    def add(self, count: int | Tensor, **sums: Tensor) -> None:
        """Adds sums over `count` samples (or tokens); each is a scalar tensor. The device is not waited for."""
        self.count += count
        for name, value in sums.items():
            value = value.detach()
            if name in self.sums:
                self.sums[name] += value
            else:  # double: a million float32 additions lose digits
                dtype = torch.double if value.device.type != "mps" else torch.float
                self.sums[name] = value.to(dtype, copy=True)  # the next addition is in place

    def means(self) -> dict[str, float]:
        """Sum / count of each name in this process."""
        count = int(self.count)
        return {name: value.item() / count for name, value in self.sums.items()} if count else {}

    def reduce(self, task: LightningModule) -> "Totals":
        """The totals over all processes."""
        total = Totals()
        total.count = int(self.count)
        total.sums = dict(self.sums)
        if task.trainer.world_size > 1:
            names = sorted(self.sums)
            packed = torch.stack(
                [*(self.sums[name] for name in names), torch.tensor(total.count).to(self.sums[names[0]])]
            )
            packed = task.trainer.strategy.reduce(packed, reduce_op="sum")
            total.sums = dict(zip(names, packed[:-1], strict=True))
            total.count = int(packed[-1].item())
        return total


class Task(LightningModule):
    """Base of the tasks.

    A subclass implements the steps. In `training_step` it calls `self.running.add(batch_size, loss=…, accuracy=…)`;
    the means are logged as `train/loss`, `train/accuracy` at the end of each epoch, with `train/samples_per_second`
    and the learning rate of each parameter group (`lr`, or `lr/NAME` for several), and shown while it runs.

    Args:
        optimizer: makes the optimizer of the parameters.
        schedulers: learning rate schedules, multiplied where there are several; see `lit_project.optim.Schedule`.
        parameter_groups: parameters with rates or decay of their own; see `lit_project.optim.ParameterGroups`.

    Attributes:
        lr: replaces the optimizer's learning rate, if set before training (by Lightning's tuner).
    """

    unit = "samples"  # what is counted
    notes: dict[str, Any]  # what metrics.json keeps of an evaluation besides numbers

    def __init__(
        self,
        optimizer: OptimizerFactory,
        schedulers: Sequence[Schedule] | None = None,
        parameter_groups: ParameterGroups | None = None,
    ) -> None:
        super().__init__()
        self.optimizer_factory = optimizer
        self.grouping = parameter_groups
        self.lr: float | None = None
        self.schedules = list(schedulers or [])
        self.running = Totals()
        self.notes = {}
        self._clock = Clock()
        self._seed = 0
        self._log_every = 50
        self._rates: dict[str, float] = {}
        self._gradient_norm: Tensor | None = None
        self._logged = 0  # optimizer steps at the last log of a single step
        self._step_mean = StepMean()

    def weighted(self, loss: Tensor, count: int | Tensor) -> Tensor:
        """What `training_step` returns as `loss`, so that a step's gradient is that of the mean over all its counts.

        Micro-batches, the last window of an epoch and processes may hold different numbers of samples or tokens: see
        `StepMean`. `mean` next to it in the dictionary is what is logged.

        Args:
            loss: mean over the samples or tokens of this micro-batch, scalar.
            count: their number.

        Raises:
            ValueError: gradients are accumulated for an optimizer that computes the loss several times a step.
        """
        if self._trainer is None:  # a step outside of training
            return loss
        if self.trainer.accumulate_grad_batches > 1 and isinstance(self.optimizers(use_pl_optimizer=False), LBFGS):
            raise ValueError("LBFGS computes the loss anew within a step: it needs accumulate_grad_batches 1")
        return self._step_mean.weigh(loss, count, self.trainer.world_size)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Makes the gradients those of the mean over the whole step."""
        self._step_mean.rescale(optimizer, self.trainer)
        self._note_norm(optimizer)

    def _note_norm(self, optimizer: Any) -> None:
        """The norm of the gradient before it is clipped, for the steps that are logged."""
        if (self.trainer.global_step + 1) % self._log_every == 0:
            gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
            self._gradient_norm = torch.nn.utils.get_total_norm(gradients)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets the name of the running hook, which Lightning does forty times a step, without `nn.Module`'s checks."""
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def parameter_groups(self) -> Iterable[Any]:
        """What is optimised: parameters, or groups of them; frozen ones are left out."""
        if self.grouping is not None:
            return self.grouping(self)
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def configure_optimizers(self) -> Any:
        """The optimizer and its chained schedules, whose horizons come from the trainer.

        Raises:
            ScheduleError: a schedule contradicts itself, another one or the length of the run.
            GroupError: the parameter groups do.
        """
        return configure(
            self.parameter_groups(),
            self.optimizer_factory,
            self.schedules,
            self.length,
            self.lr,
        )

    def length(self, interval: str) -> int | None:
        """Length of the run in optimizer steps or epochs (`interval`: `step`, `epoch`); None without end."""
        return run_length(self.trainer, interval)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Steps a scheduler; by optimizer steps once in `frequency`, counted over the whole run.

        Lightning counts micro-batches within the epoch, so that the schedule would depend on gradient accumulation.
        """
        config = next(c for c in self.trainer.lr_scheduler_configs if c.scheduler is scheduler)
        if config.reduce_on_plateau and config.interval == "epoch":
            return  # done by on_train_epoch_end
        frequencies = {f"schedule{n}": s.frequency for n, s in enumerate(self.schedules) if s.interval == "step"}
        if self.trainer.global_step % frequencies.get(str(config.name), 1) == 0:
            super().lr_scheduler_step(scheduler, metric)

    def on_train_start(self) -> None:
        """Remembers the seed of the run; refuses a resumed schedule that does not fit it."""
        self._seed = global_seed()
        self._step_mean.reset()
        self._log_every = int(getattr(self.trainer, "log_every_n_steps", 50))
        check_resumed(self.trainer, self.length)

    def on_train_epoch_start(self) -> None:
        """Starts the sums and the clock."""
        self.running = Totals()
        self._clock = Clock()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Random numbers of the model (dropout) depend on the seed, the step and the rank alone."""
        seed_step(self._seed, "step", self.current_epoch, batch_idx, self.global_rank, device=self.device)
        trainer = self.trainer
        if (trainer.global_step + 1) % self._log_every == 0 or batch_idx + 1 == trainer.num_training_batches:
            self._rates = self.learning_rates()  # of this step: at its end the schedulers have moved on

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Logs loss and rates of single steps every `log_every_n_steps` optimizer steps."""
        self._clock.lap()
        done = self.trainer.global_step
        if done % self._log_every == 0 and done != self._logged and outputs is not None:
            self._logged = done
            loss = outputs["mean"] if "mean" in outputs else (
                outputs["loss"] * self.trainer.accumulate_grad_batches  # by which Lightning has divided it
            )  # fmt: skip
            values = {"train/loss_step": loss.item(), **self._rates, "epoch": self.current_epoch}
            if self._gradient_norm is not None:
                values["train/gradient_norm"] = self._gradient_norm.item()
            for logger in self.trainer.loggers:
                logger.log_metrics(values, step=done - 1)  # Lightning counts steps from 0

    def on_validation_end(self) -> None:
        """Validation within an epoch is not training time."""
        self._clock.skip()

    def on_train_epoch_end(self) -> None:
        """Logs the exact means of the epoch."""
        totals = self.running.reduce(self)
        values = {f"train/{name}": mean for name, mean in totals.means().items()}
        count, seconds = int(totals.count), self._clock.seconds
        values[f"train/{self.unit}"] = float(count)
        values[f"train/{self.unit}_per_second"] = count / seconds if seconds > 0 else 0.0
        self.log_dict({**values, **self._rates}, sync_dist=True)
        self._step_plateaus()

    def _step_plateaus(self) -> None:
        """Lightning does this after saving the epoch's checkpoint, so that a resumed run would miss an epoch."""
        for config in self.trainer.lr_scheduler_configs:
            due = (self.current_epoch + 1) % config.frequency == 0
            if due and config.reduce_on_plateau and config.interval == "epoch":
                metrics = self.trainer.callback_metrics
                if config.monitor not in metrics:
                    known = ", ".join(sorted(metrics))
                    raise ScheduleError(f"ReduceLROnPlateau watches {config.monitor!r}; there are: {known}")
                super().lr_scheduler_step(config.scheduler, metrics[config.monitor])

    def learning_rates(self) -> dict[str, float]:
        """The current rate of every parameter group: `lr`, or `lr/NAME` (`lr/0`…) for several."""
        optimizers = self.optimizers(use_pl_optimizer=False)
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        if len(groups) == 1:
            return {"lr": float(groups[0]["lr"])}
        return {f"lr/{group.get('name', number)}": float(group["lr"]) for number, group in enumerate(groups)}
