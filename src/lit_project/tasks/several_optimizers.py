"""An example of manual optimization, in which several optimizers train different parts of a model.

For example, the class `TranslatorOfParts` below trains the encoder and the decoder with separate optimizers (see
`configs/translation_two_optimizers.yaml`). If only learning rates or weight decay differ, `ParameterGroups` is enough.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import LBFGS

from lit_engine.distributed.sharding import clip_norm, gradients
from lit_engine.errors import UserError
from lit_engine.training.layout import scales_loss
from lit_engine.training.parameter_groups import Group, ParameterGroups
from lit_engine.training.schedules import OptimizerFactory, Schedule, build_optimizer, build_schedulers
from lit_engine.training.task import Task, no_optimizer
from lit_project.tasks.translation.task import Translator


@dataclass
class Part:
    """A set of parameters with its own optimizer.

    Args:
        name: name of the learning rate in logs (`lr/NAME`).
        match: module paths or patterns of parameter names (see `Group`).
        optimizer: creates the optimizer for these parameters.
        schedulers: learning rate schedules of this optimizer.
    """

    name: str
    match: list[str]
    optimizer: OptimizerFactory
    schedulers: list[Schedule] = field(default_factory=list)


class SeveralOptimizers(Task):
    """Mixin for a task with one optimizer per part of the model. One step of all optimizers counts as a single step.

    With manual optimization, the task is responsible for accumulation, clipping and schedules. It has its own
    options for them, because Lightning rejects the trainer options. The loss is still averaged over a step.

    Args:
        parts: groups of parameters. Each trainable parameter must belong to exactly one part.
        accumulate: number of micro-batches per optimizer step.
        clip_norm: maximum norm of the gradient, computed over all parts. Default: no clipping.
        kwargs: arguments of the task, except `optimizer`, `schedulers` and `parameter_groups`.

    Raises:
        UserError: a parameter belongs to no part or several parts, or a pattern matches nothing.
    """

    accumulate: int
    untrained: ClassVar[dict[str, Any]] = {"parts": [Part("all", [], no_optimizer)]}

    def __init__(self, parts: list[Part], accumulate: int = 1, clip_norm: float | None = None, **kwargs: Any) -> None:
        if not parts:
            raise ValueError("parts is empty: add at least one part")
        if accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, got {accumulate}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm must be above 0, got {clip_norm}")
        schedules = [schedule for part in parts for schedule in part.schedulers]
        super().__init__(optimizer=parts[0].optimizer, schedulers=schedules, parameter_groups=None, **kwargs)
        self.automatic_optimization = False
        self.parts = parts
        self.accumulate = accumulate
        self.clip_norm = clip_norm

    def configure_optimizers(self) -> Any:
        """Return one optimizer and its schedules per part. Raise UserError if the precision is not supported."""
        if scales_loss(self.trainer):
            raise UserError(
                f"precision {self.trainer.precision} scales the loss, which several optimizers do not support: "
                "use bf16-mixed"
            )
        groups = ParameterGroups([Group(part.name, part.match) for part in self.parts])(self)
        by_name = {group["name"]: group for group in groups}
        if "base" in by_name:
            lost = by_name["base"]["params"]
            name = next(name for name, parameter in self.named_parameters() if parameter is lost[0])
            raise UserError(f"parts: {name} belongs to no part ({len(lost)} such parameters in total)")
        optimizers: list[Any] = []
        configs: list[dict[str, Any]] = []
        for part in self.parts:
            if part.name not in by_name:
                raise UserError(f"parts: {part.name} has no trainable parameters")
            optimizer = build_optimizer(part.optimizer, [by_name[part.name]])
            if isinstance(optimizer, LBFGS):
                raise UserError(f"parts: {part.name} cannot use LBFGS, which evaluates the loss several times per step")
            # `--find` and `--plan` remove all schedules from the task.
            schedules = build_schedulers(part.schedulers if self.schedules else [], optimizer, self.length)
            optimizers.append(optimizer)
            configs += [{**config, "name": f"{part.name}/{config['name']}"} for config in schedules]
        return optimizers, configs

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Run the backward pass for the task's loss. After the last micro-batch of a step, step all optimizers."""
        loss: Any = super().training_step(batch, batch_idx)
        self.manual_backward(loss)
        done = batch_idx + 1
        if done % self.accumulate == 0 or done == self.trainer.num_training_batches:
            self._step_optimizers()
        return loss.detach()

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Rescale and clip the gradients of all parts before the first optimizer's step."""
        together = SimpleNamespace(param_groups=[group for o in self.trainer.optimizers for group in o.param_groups])
        super().on_before_optimizer_step(together)
        if self.clip_norm is not None:
            clip_norm(gradients(together), self.clip_norm)

    def _step_optimizers(self) -> None:
        found: Any = self.optimizers()
        first, *others = found if isinstance(found, list) else [found]
        first.step()  # Lightning counts this step, and calls the hook above.
        for optimizer in others:
            optimizer.optimizer.step()
        for optimizer in (first, *others):
            optimizer.zero_grad()
        self._step_schedules("step", self.trainer.global_step)

    def _step_schedules(self, interval: str, done: int) -> None:
        for config in self.trainer.lr_scheduler_configs:
            if config.interval == interval and done % config.frequency == 0:
                self.lr_scheduler_step(config.scheduler, None)

    def log_reduced(self, values: Mapping[str, float]) -> None:
        """Log values at the current optimizer step. Lightning would count micro-batches instead."""
        # Like Lightning, count training steps from 0. A test after training is logged at the next step.
        step = self.trainer.global_step - (self.trainer.state.fn == "fit")
        super().log_reduced({**values, "epoch": self.current_epoch, "step": step})

    def on_train_epoch_end(self) -> None:
        """Log the epoch's metrics and step the schedules with interval `epoch`."""
        super().on_train_epoch_end()
        if self.trainer.is_last_batch:  # `is_last_batch` is false if training stops mid-epoch.
            self._step_schedules("epoch", self.current_epoch + 1)


class TranslatorOfParts(SeveralOptimizers, Translator):
    """A `Translator` with several optimizers, for example one for the encoder and one for the decoder."""
