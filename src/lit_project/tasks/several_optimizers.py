"""Several optimizers in one task, each with its own part of the net: an example of manual optimisation.

`class TranslatorOfParts(SeveralOptimizers, Translator)` below trains encoder and decoder by optimizers of their own:
`configs/translation_two_optimizers.yaml`. For parts that only differ in rate or decay, `ParameterGroups` will do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_engine.distributed.sharding import clip_norm, gradients
from lit_engine.errors import UserError
from lit_engine.training.layout import scales_loss
from lit_engine.training.parameter_groups import Group, GroupError, ParameterGroups
from lit_engine.training.schedules import OptimizerFactory, Schedule, ScheduleError, build_optimizers
from lit_engine.training.task import Task, no_optimizer
from lit_project.tasks.translation.task import Translator


@dataclass
class Part:
    """Parameters with an optimizer of their own.

    Args:
        name: in logs, as `lr/NAME`.
        match: module paths or patterns of parameter names; see `Group`.
        optimizer: makes the optimizer of them.
        schedulers: learning rate schedules of that optimizer.
    """

    name: str
    match: list[str]
    optimizer: OptimizerFactory
    schedulers: list[Schedule] = field(default_factory=list)


class SeveralOptimizers(Task):
    """Mixed in before a task: one optimizer per part, all stepped together, as one step.

    Lightning leaves accumulation, clipping and schedules to a task that optimises by itself, and refuses the trainer's
    options for them: they are options of the task. The gradient is still that of the mean over the whole step.

    Args:
        parts: together they hold every trainable parameter once.
        accumulate: micro-batches per optimizer step.
        clip_norm: greatest norm of the gradient of all parts together; null for any.
        kwargs: of the task; it takes no `optimizer`, `schedulers` or `parameter_groups`.

    Raises:
        GroupError: a parameter in no part or in two, or a pattern that matches nothing.
    """

    untrained: ClassVar[dict[str, Any]] = {"parts": [Part("all", [], no_optimizer)]}

    def __init__(self, parts: list[Part], accumulate: int = 1, clip_norm: float | None = None, **kwargs: Any) -> None:
        if not parts:
            raise ValueError("parts is empty: give at least one")
        super().__init__(optimizer=parts[0].optimizer, schedulers=None, parameter_groups=None, **kwargs)
        self.automatic_optimization = False
        self.parts = parts
        self.accumulate = accumulate
        self.clip_norm = clip_norm

    def configure_optimizers(self) -> Any:
        """One optimizer per part, with its schedules; refuses what cannot work with several of them."""
        if scales_loss(self.trainer):
            raise UserError(
                f"precision {self.trainer.precision} scales the loss, which several optimizers cannot undo together: "
                "take bf16-mixed"
            )
        groups = ParameterGroups([Group(part.name, part.match) for part in self.parts])(self)
        by_name = {group["name"]: group for group in groups}
        if "base" in by_name:
            lost = by_name["base"]["params"]
            name = next(name for name, parameter in self.named_parameters() if parameter is lost[0])
            raise GroupError(f"parts: {name} ({len(lost)} parameters in all) belongs to no part")
        optimizers: list[Any] = []
        configs: list[dict[str, Any]] = []
        for part in self.parts:
            if part.name not in by_name:
                raise GroupError(f"parts: nothing in {part.name} is to be trained")
            own, schedules = build_optimizers([by_name[part.name]], part.optimizer, part.schedulers, self.length)
            if any("monitor" in config and config["interval"] == "step" for config in schedules):
                raise ScheduleError(f"parts: a schedule of {part.name} watches a metric: its interval must be epoch")
            optimizers += own
            configs += [{**config, "name": f"{part.name}/{config['name']}"} for config in schedules]
        return optimizers, configs

    @property
    def all_schedules(self) -> list[Schedule]:
        """Those of all parts."""
        return [schedule for part in self.parts for schedule in part.schedulers]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The task's loss, its gradients, and at the end of a window a step of all optimizers."""
        loss: Any = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        done = batch_idx + 1
        if done % (self.accumulate or 1) == 0 or done == self.trainer.num_training_batches:
            self._step_optimizers()
        return loss.detach()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Nothing: it is done for all optimizers together."""

    def _step_optimizers(self) -> None:
        found: Any = self.optimizers()
        optimizers = found if isinstance(found, list) else [found]
        together = SimpleNamespace(param_groups=[group for o in optimizers for group in o.param_groups])
        self._step_mean.rescale(together, self.trainer)
        self._note_norm(together)
        if self.clip_norm is not None:
            clip_norm(gradients(together), self.clip_norm)
        optimizers[0].step()  # Lightning counts this one, and callbacks look at all gradients before it
        for optimizer in optimizers[1:]:
            optimizer.optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self._step_schedules("step", self.trainer.global_step)

    def _step_schedules(self, interval: str, done: int) -> None:
        for config, schedule in zip(self.trainer.lr_scheduler_configs, self.all_schedules, strict=True):
            watches = isinstance(config.scheduler, ReduceLROnPlateau)  # stepped by the task at the end of an epoch
            if schedule.interval == interval and done % schedule.frequency == 0 and not watches:
                config.scheduler.step()  # type: ignore[call-arg]

    def log_reduced(self, values: Mapping[str, float]) -> None:
        """Logs values at the current optimizer step; by default, Lightning would use the number of micro-batches."""
        if (self.accumulate or 1) > 1:
            # like Lightning, number steps from 0 while training, and log a test after it at the next step
            step = self.trainer.global_step - (self.trainer.state.fn == "fit")
            values = {**values, "epoch": self.current_epoch, "step": step}
        super().log_reduced(values)

    def on_train_epoch_end(self) -> None:
        """Logs, and steps the schedules that go by epochs."""
        super().on_train_epoch_end()
        if self.trainer.is_last_batch:  # the training may end within an epoch
            self._step_schedules("epoch", self.current_epoch + 1)


class TranslatorOfParts(SeveralOptimizers, Translator):
    """A `Translator` with several optimizers, such as one for the encoder and one for the decoder."""
