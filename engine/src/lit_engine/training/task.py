"""Base class for tasks. It builds the optimizer, logs exact means, learning rates and speed, and seeds each step."""

import inspect
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torchmetrics import Metric

from lit_engine import _lightning
from lit_engine.checkpoints.io import read
from lit_engine.checkpoints.weights import rename_compiled
from lit_engine.classes.names import import_class, instantiate
from lit_engine.data.sampler import global_seed, seed_step
from lit_engine.distributed.processes import replicas, warn_once
from lit_engine.distributed.sharding import clip_norm, gradients, local_shards, total_norm
from lit_engine.errors import CheckpointError, UserError
from lit_engine.run.metric_names import is_detail
from lit_engine.training.exact import Clock, StepMean, Totals
from lit_engine.training.layout import (
    CompileOptions,
    checkpoint_in_place,
    compile_in_place,
    is_wrong_in_channels_last,
    order_as_weights,
)
from lit_engine.training.metrics import GivenMetrics, Metrics
from lit_engine.training.parameter_groups import ParameterGroups
from lit_engine.training.schedules import (
    OptimizerFactory,
    Schedule,
    build_optimizer,
    build_schedulers,
    check_resumed,
    learning_rates,
    steps_of_epochs,
)

MAX_PARTS = 10  # maximum number of classes for which per-class metrics are logged
Module = TypeVar("Module", bound=LightningModule)


def no_optimizer(parameters: Any) -> Any:
    """Raise UserError. This placeholder replaces the optimizer factory, because checkpoints do not store factories."""
    raise UserError("a loaded task has no optimizer: set optimizer_factory, or call load_from_checkpoint(optimizer=…)")


class Task(_lightning.QuickModule):
    """Base class for tasks. A subclass implements three step methods, and the task logs exact means over all samples.

    The example logs `train/loss`, `train/accuracy`, `val/loss` and `val/accuracy` at the end of each epoch. The values
    are exact means over all samples on all processes. It also logs `train/samples_per_second` and the learning rate of
    each parameter group (`lr`, or `lr/NAME` if there are several groups). To log more in an evaluation, override
    `evaluation_start` and `evaluation_metrics`. In all methods, `split` is `val` or `test`. `predict_step` returns
    columns of the prediction table. Hooks that you override must call `super()`.

        def training_step(self, batch, batch_idx):
            logits = self(batch.images)
            correct = (logits.argmax(dim=1) == batch.targets).sum()
            return self.step(F.cross_entropy(logits, batch.targets), len(batch.targets), accuracy=correct)

        def evaluation_step(self, batch, split):
            return self.training_step(batch, 0)

        def predict_step(self, batch, batch_idx):
            return {"index": batch.indices.tolist(), "prediction": self(batch.images).argmax(dim=1).tolist()}

    Args:
        optimizer: factory that creates the optimizer from the parameters.
        schedulers: learning rate schedules (see `Schedule`). The factors of several schedules are multiplied.
        parameter_groups: parameters with their own learning rate or weight decay (see `ParameterGroups`).
        channels_last: store images and the convolutions of `net` in (B, H, W, C) order. The results are the same up to
            rounding. By default, this order is used on CPUs with oneDNN and in half precision, where it is faster. It
            is not used for networks for which oneDNN would compute incorrect gradients.
        compile: backend of `torch.compile` for `net`, usually `inductor` (it needs a C++ compiler on CPUs), or a dict
            of arguments, such as `mode` and `fullgraph`. Compilation does not change checkpoints.
        metrics: list or dict of torchmetrics objects for each evaluation. In a list, metrics are named after their
            classes, as in `val/multiclass_f1_score`. `metric_inputs` returns the metrics' inputs. The task sets
            `num_classes` or `num_labels` if omitted.
        checkpoint_blocks: recompute the activations of each block of `net` in the backward pass instead of storing
            them. This saves memory but takes time. It does not change gradients. Blocks are residual blocks,
            the layers of a Transformer, or the modules returned by the network's `blocks()` method.

    Attributes:
        running: sums of the training epoch so far.
        evaluated: sums over the samples evaluated so far.
    """

    unit = "samples"  # unit of the counts that are passed to `step`
    # Metrics to show on the progress bar and in the learning curves, if they are logged.
    headline_metrics: tuple[str, ...] = ("loss", "accuracy")
    accumulate: int | None = None  # micro-batches per step, for tasks with manual optimization
    untrained: ClassVar[dict[str, Any]] = {"optimizer": no_optimizer, "schedulers": None}  # used by `load_module`
    notes: dict[str, Any]  # non-numeric results of an evaluation for metrics.json

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise UserError if a hook does not call `super()`, because gradients or metrics would be wrong."""
        super().__init_subclass__(**kwargs)
        hooks = {"setup", "backward", "evaluation_start", *(name for name in vars(Task) if name.startswith("on_"))}
        for kind in cls.__mro__[: cls.__mro__.index(Task)]:  # includes mixins
            for name in hooks & vars(kind).keys():
                hook = inspect.unwrap(vars(kind)[name])
                # the name differs for aliases, and for decorators without `functools.wraps`
                if getattr(hook, "__name__", None) == name and name not in hook.__code__.co_names:
                    why = "because `Task` uses this hook"
                    raise UserError(f"{kind.__name__}.{name} must call super().{name}(…), {why}")

    def __init__(
        self,
        optimizer: OptimizerFactory,
        schedulers: Sequence[Schedule] | None = None,
        parameter_groups: ParameterGroups | None = None,
        channels_last: bool | None = None,
        compile: CompileOptions | str | None = None,
        metrics: GivenMetrics | None = None,
        checkpoint_blocks: bool = False,
    ) -> None:
        super().__init__()
        self.optimizer_factory = optimizer
        self.grouping = parameter_groups
        self.schedules = list(schedulers or [])
        self.channels_last, self.compilation, self.checkpoint_blocks = channels_last, compile, checkpoint_blocks
        self.running = Totals()
        self.evaluated = Totals()
        self.notes = {}
        self._given_metrics, self._metrics = metrics, Metrics()
        self._clock = Clock()
        self._seed = 0
        self._log_every = 50
        self._rates: dict[str, float] = {}
        self._gradient_norm: Tensor | None = None
        self._done = 0  # optimizer steps
        self._step_mean = StepMean()
        self._counted = False  # whether `step` has already counted this batch
        self._repeated = False  # whether an optimizer, such as LBFGS, computes the loss of this batch again

    def setup(self, stage: str) -> None:
        """Create the metrics, set the network's memory format, and apply `compile` and `checkpoint_blocks`."""
        parts: Any = getattr(self, "class_names", None) or getattr(self, "target_names", ())
        self._metrics = Metrics(self._given_metrics, parts)
        self._restore_random_states = _lightning.keep_random_states()
        net = getattr(self, "net", None)
        if net is None:
            return
        last = self._uses_channels_last(net)
        if not any(map(is_lazy, net.parameters())):
            # The output of a convolution has the same memory format as its weights.
            net.to(memory_format=torch.channels_last if last else torch.contiguous_format)
        if self.checkpoint_blocks:
            checkpoint_in_place(net)
        if self.compilation is not None and not _lightning.is_compiled(net):
            options = self.compilation
            compile_in_place(net, {"backend": options} if isinstance(options, str) else options)

    def _uses_channels_last(self, net: torch.nn.Module) -> bool:
        """Return whether to use the channels-last memory format. Raise UserError if it is requested but impossible."""
        on_cpu = self.trainer.strategy.root_device.type == "cpu"
        problem = self._problem_with_channels_last(net, on_cpu)
        if self.channels_last is None:
            is_faster = (on_cpu and torch.backends.mkldnn.is_available()) or "16" in str(self.trainer.precision)
            return is_faster and not problem
        if self.channels_last and problem:
            raise UserError(f"channels_last {problem}")
        return self.channels_last

    def _problem_with_channels_last(self, net: torch.nn.Module, on_cpu: bool) -> str:
        """Return why the network cannot use the channels-last memory format, or an empty string if it can."""
        if any(map(is_lazy, net.parameters())):
            return "does not support lazy layers"
        if self.device_mesh is not None:
            return "does not support sharded weights"
        if any(weight.ndim == 5 for weight in net.parameters()):  # torch would also convert these
            return "only supports images (B, C, H, W), but this network has weights with five axes"
        if on_cpu and any(map(is_wrong_in_channels_last, net.modules())):
            return (
                "computes wrong gradients on a CPU for strided 1×1 convolutions with fewer than 16 channels "
                "(uxlfoundation/oneDNN, issue 6035)"
            )
        return ""

    def teardown(self, stage: str) -> None:
        """Restore the random states after training, so that the next task does not always have the same weights."""
        if stage == "fit":
            self._restore_random_states()

    def configure_model(self) -> None:
        """Shard the task's submodules if the strategy is `Sharded`."""
        if self.device_mesh is not None:
            from lit_engine.distributed.sharded import shard  # this import takes half a second

            shard(self, self.device_mesh)
            for metric in (module for module in self.modules() if isinstance(module, Metric)):
                metric.process_group = replicas(self.trainer).group  # each batch counts once

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Clip gradients. Fused optimizers in 16-mixed precision and partially sharded models are supported.

        Raises:
            UserError: if clipping by value is requested for a fused optimizer in 16-mixed precision.
        """
        if not gradient_clip_val:
            return
        by_value, limit = gradient_clip_algorithm == "value", gradient_clip_val
        if self._is_still_scaled(optimizer):
            if by_value:  # clipping would make infinite gradients finite, so the step would not be skipped
                raise UserError("16-mixed with a fused optimizer cannot clip by value: set fused: false")
            limit *= _lightning.loss_scale(self.trainer)
        if by_value:
            for gradient in local_shards(gradients(optimizer)):
                gradient.clamp_(-limit, limit)
        else:
            clip_norm(gradients(optimizer), limit)

    def _is_still_scaled(self, optimizer: Any) -> bool:
        """Return whether the optimizer will unscale the gradients itself, as in 16-mixed mode with fused optimizers."""
        return _lightning.scales_loss(self.trainer) and _lightning.unscales_itself(optimizer)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]
        cls,
        checkpoint_path: str | Path,
        map_location: Any = "cpu",
        strict: bool | None = None,
        weights_only: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Load a task from a checkpoint for evaluation or prediction. Code in the checkpoint is never run.

        If no project is installed, call `lit_engine.use` first.

        Args:
            checkpoint_path: path of the checkpoint.
            map_location: device for the weights.
            strict: whether the names of the weights must match exactly. Default: `strict_loading`.
            weights_only: ignored, because checkpoints are always loaded with `weights_only=True`.
            **kwargs: arguments of the task, such as an `optimizer`, which replace arguments in the checkpoint.

        Raises:
            CheckpointError: if the checkpoint is damaged, belongs to a different task or refers to a forbidden class.
        """
        return load_module(cls, checkpoint_path, map_location, strict, **kwargs)

    def step(self, mean: Tensor, count: float | Tensor, **sums: Tensor) -> Tensor:
        """Include a batch in the metrics of the epoch or evaluation, and return the loss for `training_step`.

        You may add other mean losses of the batch to the returned loss. All of them are weighted by `count`. To skip a
        batch, return None from `training_step` without calling this method.

        Args:
            mean: scalar mean loss over the samples or tokens of this batch.
            count: number of samples or tokens, or the sum of their weights.
            **sums: sums of other values to log. Pass `loss` if the logged loss should differ from `mean`.

        Raises:
            ValueError: if an optimizer that computes the loss several times per step is used with accumulated gradients
                or several processes, or if the batch was already counted. Use `add_sums` for additional sums.
        """
        if "loss" not in sums:
            wide = torch.promote_types(mean.dtype, torch.float32)  # half precision would overflow or round the sum
            sums = {"loss": mean.detach().to(wide) * count, **sums}
        trainer = _lightning.trainer_of(self)
        if trainer is None:  # without a trainer, only the sums are needed
            self.running.add(count, **sums)
            return mean
        self._count_once(trainer)
        if not trainer.training:
            self.evaluated.add(count, **sums)
            return mean
        if self._is_filler():
            count = 0
        elif not self._repeated:
            self.running.add(count, **sums)
        if self._repeated and max(trainer.accumulate_grad_batches, trainer.world_size) > 1:
            raise ValueError(
                f"{type(self.optimizers(use_pl_optimizer=False)).__name__} computes the loss of a step several times: "
                "use one process, and set accumulate_grad_batches to 1"
            )
        self._step_mean.start_batch((count, replicas(trainer).size))
        return mean

    def _count_once(self, trainer: Any) -> None:
        """Mark the batch as counted. Raise ValueError if it already was, unless its loss is computed again."""
        # Manual optimization and optimizers such as LBFGS may compute the loss again after the backward pass.
        is_pending = self.automatic_optimization and self._step_mean.is_pending
        if self._counted and (is_pending or not trainer.training):
            raise ValueError("step was called twice for a batch, which would count it twice: use add_sums instead")
        self._repeated = self._counted and self.automatic_optimization
        self._counted = True

    def add_sums(self, **sums: Tensor) -> None:
        """Add more scalar sums for the batch that `step` has just counted, for example in a subclass."""
        trainer = _lightning.trainer_of(self)
        if trainer is not None and not trainer.training:
            self.evaluated.add(0, **sums)
        elif not (self._is_filler() or self._repeated):
            self.running.add(0, **sums)

    def _is_filler(self) -> bool:
        """Return whether this training batch only repeats a sample of another batch (see `EpochBatches`)."""
        trainer = _lightning.trainer_of(self)
        return trainer is not None and getattr(trainer.train_dataloader, "filler", False)

    @property
    def adds_layers(self) -> bool:
        """Whether the hooks of a subclass may create layers before Lightning loads the weights."""
        return overrides(self, "setup", "configure_model")

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        super().backward(self._step_mean.weigh(loss), *args, **kwargs)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        """Rescale the gradients to match the mean loss over the whole step."""
        self._step_mean.rescale(optimizer, self.trainer)
        self._note_norm(optimizer)

    def _note_norm(self, optimizer: Any) -> None:
        """Compute the gradient norm before clipping, for steps that are logged."""
        if (self.trainer.global_step + 1) % self._log_every == 0:
            norm = total_norm(gradients(optimizer))
            if self._is_still_scaled(optimizer):
                norm = norm / _lightning.loss_scale(self.trainer)
            self._gradient_norm = norm

    def parameter_groups(self) -> Iterable[Any]:
        """Return the trainable parameters or parameter groups for the optimizer."""
        if self.grouping is not None:
            return self.grouping(self)
        return [parameter for parameter in self.parameters() if parameter.requires_grad]

    def configure_optimizers(self) -> Any:
        """Build the optimizer and its schedulers.

        Raises:
            UserError: if a parameter group or a schedule is invalid, or if a schedule conflicts with another one or
                with the length of the run.
        """
        optimizer = build_optimizer(self.optimizer_factory, self.parameter_groups())
        return [optimizer], build_schedulers(self.schedules, optimizer, self.length)

    def length(self, interval: str) -> int | None:
        """Return the length of the run in units of `interval` (`step` or `epoch`), or None if it is unlimited."""
        epochs = steps_of_epochs(self.trainer)
        if epochs is None:  # with endless data, only max_steps or max_epochs can limit the run
            limit = self.trainer.max_steps if interval == "step" else self.trainer.max_epochs
            return limit if limit and limit > 0 else None
        return sum(epochs) if interval == "step" else len(epochs)

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        """Step a scheduler. If its interval is `step`, `frequency` counts optimizer steps since the start of the run.

        Lightning counts micro-batches within the epoch, which would make schedules depend on gradient accumulation.
        """
        schedule = next((one for config, one in self._scheduled() if config.scheduler is scheduler), None)
        if schedule is not None:
            is_due = schedule.interval == "epoch" or self.trainer.global_step % schedule.frequency == 0
            if not is_due or isinstance(scheduler, ReduceLROnPlateau):  # see `_step_plateaus`
                return
        super().lr_scheduler_step(scheduler, metric)

    def _scheduled(self) -> list[tuple[Any, Schedule]]:
        """Pair the schedulers from `build_schedulers` with `schedules`. A subclass may create other schedulers."""
        built = [one for one in self.trainer.lr_scheduler_configs if hasattr(one.scheduler, "planned_length")]
        return list(zip(built, self.schedules, strict=bool(built)))

    def on_train_start(self) -> None:
        """Set up logging, the clock and the seed, and reject a resumed schedule that does not fit the run."""
        self._seed = global_seed()
        for optimizer in self.trainer.optimizers:
            order_as_weights(optimizer)
        self._step_mean = StepMean()  # discards counts from an earlier fit
        self._log_every = int(getattr(self.trainer, "log_every_n_steps", 50)) or sys.maxsize  # 0: never
        self._done = self.trainer.global_step
        self.running.mark()
        self._clock.skip()  # when resuming mid-epoch, Lightning does not call on_train_epoch_start
        check_resumed(self.trainer, self.length)
        watched = {schedule.monitor or "" for schedule in self.schedules}
        if not self.trainer.enable_validation and any(name.startswith("val/") for name in watched):
            raise UserError(f"a schedule monitors {max(watched)!r}, but the run has no validation")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the epoch's running sums, so that the run can resume mid-epoch."""
        checkpoint["running"] = {**self.running.gather(self), "seconds": self._clock.seconds, "rates": self._rates}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore this replica's sums. If the number of replicas changed, the first replica receives all sums."""
        trainer = _lightning.trainer_of(self)
        if trainer is not None and trainer.precision == "64-true":
            self.double()  # Lightning converts the module after loading, which would round the weights to float32
        running = checkpoint.get("running", {})
        self._clock = Clock(running.get("seconds", 0.0))
        if running:
            self._rates = running.get("rates", {})
            self.running.scatter(running, replicas(trainer))

    def on_train_epoch_start(self) -> None:
        self.running = Totals()
        self._clock = Clock()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Seed the model's random numbers (dropout), so that they depend only on the seed, the step and the replica."""
        self._counted = False
        self._step_mean.start_batch()
        trainer = self.trainer
        seed_step(self._seed, "step", self.current_epoch, batch_idx, replicas(trainer).rank, device=self.device)
        self._rates = learning_rates(trainer.optimizers)  # schedulers change the rates before the end of the step

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log an optimizer step's loss (all micro-batches) and the learning rates every `log_every_n_steps` steps."""
        if self.trainer.is_last_batch and self.device.type != "cpu":
            torch.accelerator.synchronize()  # include pending work on the device
        self._clock.lap()
        done = self.trainer.global_step
        if done == self._done:
            return
        self._done = done
        # The outputs are {} if training_step returned None, as it may in manual optimization.
        if done % self._log_every == 0 and (outputs or not self.automatic_optimization):
            loss = self.loss_of_step(outputs)
            values = {"train/loss_step": loss} if loss is not None else {}
            values |= {**self._rates, "epoch": self.current_epoch}
            if self._gradient_norm is not None:
                values["train/gradient_norm"] = self._gradient_norm.item()
            # Call the loggers directly, because `self.log` would pass per-step values to callbacks and metrics.json.
            for logger in self.trainer.loggers:
                logger.log_metrics(values, step=done - 1)  # Lightning counts steps from 0
        self.running.mark()

    def loss_of_step(self, outputs: Any) -> float | None:
        """Return the mean loss of the last optimizer step over all processes, or None if it is unknown.

        All processes must call this.
        """
        loss = self.running.mean_loss_since_mark(self)
        if loss is None and outputs:  # the task does not call `step`, so undo Lightning's division
            loss = outputs["loss"].item() * self.trainer.accumulate_grad_batches
        return loss

    def evaluation_start(self) -> None:
        """Reset the sums and metrics for an evaluation."""
        self.evaluated = Totals()
        self._metrics.start(self)

    def evaluation_step(self, batch: Any, split: str) -> Any:
        """Evaluate a batch of the `val` or `test` split by calling `step`. Callbacks receive the returned outputs."""
        raise NotImplementedError(f"{type(self).__name__} has no evaluation_step")

    def metric_inputs(self, outputs: Any) -> Iterable[Any]:
        """Return the predictions and targets for `metrics`, by default the values of the dict `outputs`."""
        if not isinstance(outputs, Mapping):
            raise UserError(f"model.metrics: {type(self).__name__}.evaluation_step returns no predictions and targets")
        return outputs.values()

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        """Return the metrics to log for an evaluation, computed from the sums over all processes (`totals`)."""
        return {**totals.means(), self.unit: float(totals.count)}

    def on_validation_epoch_start(self) -> None:
        self.evaluation_start()

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_batch_start(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self._counted = False

    on_test_batch_start = on_validation_batch_start

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "test")

    def evaluate(self, batch: Any, split: str) -> Any:
        """Run `evaluation_step` on a batch, update `metrics` with its outputs, and return the outputs."""
        outputs = self.evaluation_step(batch, split)
        if self._metrics.named:
            self._metrics.update(self.metric_inputs(outputs))
        return outputs

    def on_validation_epoch_end(self) -> None:
        totals, split = self.evaluated.reduce(self), "test" if self.trainer.testing else "val"
        batches = self.trainer.num_test_batches if self.trainer.testing else self.trainer.num_val_batches
        if self._metrics.named and not self._metrics.is_updated and 0 < sum(batches) < math.inf:
            name = f"{type(self).__name__}.{'test' if split == 'test' else 'validation'}_step"
            raise UserError(f"model.metrics: {name} does not call self.evaluate: override evaluation_step instead")
        # If `evaluation_step` does not call `step`, only `model.metrics` are logged.
        if totals.count or self._metrics.named:
            own, more = self.evaluation_metrics(totals, split) if totals.count else {}, self._metrics.compute()
            if both := own.keys() & more.keys():
                raise UserError(f"model.metrics: the task already logs {max(both)}: rename the metric")
            self.log_reduced({f"{split}/{name}": value for name, value in {**own, **more}.items()})

    on_test_epoch_end = on_validation_epoch_end

    def on_validation_end(self) -> None:
        """Exclude mid-epoch validation from the training time."""
        self._clock.skip()

    def on_train_epoch_end(self) -> None:
        totals = self.running.reduce(self)
        values = {f"train/{name}": mean for name, mean in totals.means().items()}
        count, seconds = float(totals.count), self._clock.seconds
        if count:
            values[f"train/{self.unit}"] = count
            values[f"train/{self.unit}_per_second"] = count / seconds if seconds > 0 else 0.0
        elif self.current_epoch == 0 and self.automatic_optimization:
            warn_once(
                f"warning: {type(self).__name__}.training_step does not call self.step, so samples are not counted, "
                "and accumulated gradients are averaged over batches"
            )
        self.log_reduced({**values, **self._rates})
        self._step_plateaus()

    def log_reduced(self, values: Mapping[str, float]) -> None:
        """Log values in double precision. The values must already be reduced over all processes.

        `self.log` would convert the values to float32, which rounds counts above 2^24.
        """
        # Use the CPU, because MPS devices do not support float64.
        exact = {name: torch.tensor(float(value), dtype=torch.double) for name, value in values.items()}
        # Per-class metrics of more than 10 classes are only in metrics.json, because they would clutter the loggers.
        kinds = Counter(name.rpartition("/")[0] for name in exact if is_detail(name))
        for logged in (True, False):
            part = {n: v for n, v in exact.items() if (kinds[n.rpartition("/")[0]] <= MAX_PARTS) is logged}
            # The values are already reduced. With both options set, Lightning neither reduces them again nor warns.
            self.log_dict(part, logger=None if logged else False, sync_dist=True, rank_zero_only=True)

    def _step_plateaus(self) -> None:
        """Update ReduceLROnPlateau. Lightning would skip it in resumed epochs, or use metrics of earlier epochs."""
        if not self.trainer.is_last_batch:  # training ends mid-epoch
            return
        metrics = self.trainer.callback_metrics
        for config, schedule in self._scheduled():
            due = (self.current_epoch + 1) % schedule.frequency == 0
            if not (due and isinstance(config.scheduler, ReduceLROnPlateau)):
                continue
            monitor = str(schedule.monitor)
            if monitor.startswith("val/") and not _lightning.has_validated(self.trainer):
                continue  # the value is from an earlier epoch
            if monitor not in metrics:
                raise UserError(f"ReduceLROnPlateau monitors {monitor!r}; available: {', '.join(sorted(metrics))}")
            config.scheduler.step(metrics[monitor])


def overrides(module: LightningModule, *hooks: str) -> bool:
    """Return whether a module overrides one of the hooks of `Task`, or of LightningModule if it is not a task."""
    base = Task if isinstance(module, Task) else LightningModule
    return any(getattr(type(module), hook) is not getattr(base, hook) for hook in hooks)


def load_module(
    base: type[Module], path: str | Path, map_location: Any = "cpu", strict: bool | None = None, **kwargs: Any
) -> Module:
    """Load a module from a checkpoint as an instance of `base` (see `Task.load_from_checkpoint`)."""
    checkpoint = read(path, map_location)
    parameters = dict(checkpoint.get("hyper_parameters", {}))
    kind = import_class(parameters["_class_path"], base, path) if "_class_path" in parameters else base
    placeholders = getattr(kind, "untrained", {})
    untrained = {name: value for name, value in placeholders.items() if name in parameters}
    for name, value in parameters.items():
        if isinstance(value, dict) and str(value.get("class_path")).startswith("torch.optim."):
            untrained.setdefault(name, no_optimizer)
    module = instantiate(kind, parameters, {**untrained, **kwargs}, path, placeholders)
    module.configure_model()
    module.on_load_checkpoint(checkpoint)
    weights = checkpoint["state_dict"]
    rename_compiled(module, weights)
    if any(own.dtype != torch.double == weights[n].dtype for n, own in module.named_parameters() if n in weights):
        module.double()  # the run used 64-true, and float32 would round the weights
    try:
        module.load_state_dict(weights, strict=module.strict_loading if strict is None else strict)
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {path} do not match its hyperparameters: {error}") from error
    return module.to(next((weight.device for weight in weights.values() if isinstance(weight, Tensor)), "cpu"))
