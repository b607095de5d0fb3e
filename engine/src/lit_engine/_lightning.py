"""Wrappers for the undocumented parts of Lightning 2.6 and torch 2.15 that this library uses.

Each docstring states why the access is needed and, if known, which version of the package introduced the private API.
`test_private_apis.py` tests each function, and fails if a private name disappears.
"""

import builtins
import copy
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cache, partial
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.distributed import _destroy_dist_connection
from lightning.fabric.utilities.seed import _collect_rng_states, _set_rng_states
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, WeightAveraging
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.plugins.environments import SLURMEnvironment
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities import move_data_to_device, rank_zero_only
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torchmetrics import Metric

BatchNorm = _BatchNorm  # base class of all batch norm layers, for `isinstance` checks

# ------------------------------------------------------------------------------------------------ parts of a trainer


def trainer_of(module: LightningModule) -> Trainer | None:
    """Return a module's trainer or None. The public property fails without a trainer. Requires Lightning 1.8+."""
    return module._trainer


def reconfigure(trainer: Trainer, **parts: Any) -> None:
    """Replace attributes of an existing trainer, such as `callbacks`, `loggers` or `num_sanity_val_steps`.

    The learning rate finder and the server reuse the configured trainer with different callbacks.
    """
    for name, value in parts.items():
        setattr(trainer, name, value)


def attach_callbacks(trainer: Trainer, module: LightningModule) -> None:
    """Attach the callbacks from a module's `configure_callbacks` early. Lightning would attach them in `fit` or `test`.

    They affect earlier steps. For example, a checkpoint's averaged weights are kept only if a callback updates them.
    """
    module.trainer = trainer
    trainer.strategy.connect(module)
    trainer._callback_connector._attach_model_callbacks()
    module.configure_callbacks = list  # type: ignore[method-assign]


def attach_data(trainer: Trainer, data: LightningDataModule | None) -> None:
    """Set `trainer.datamodule` for a module's `setup`, which may use it even if `predict` is called with other data."""
    if data is not None:
        data.trainer = trainer
        trainer.datamodule = data  # type: ignore[attr-defined]


def limit_loops(trainer: Trainer, max_epochs: int, max_steps: int) -> None:
    """Set the maximum number of epochs and steps. The trainer has no setters. Requires Lightning 2.0+."""
    trainer.fit_loop.max_epochs = max_epochs
    trainer.fit_loop.epoch_loop.max_steps = max_steps


def set_root_dir(trainer: Trainer, path: str) -> None:
    """Set the default root directory of an existing trainer, once all ranks know the path. Requires Lightning 2.0+."""
    trainer._default_root_dir = path  # type: ignore[attr-defined]


def skip_sigterm_broadcast(trainer: Trainer) -> None:
    """Skip the broadcast of a SIGTERM flag, which would synchronize all processes before each step.

    `Saver` replaces Lightning's SIGTERM handler, so the flag is never set. Requires Lightning 2.6+.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]


def skip_batches_of_evaluation(trainer: Trainer) -> None:
    """Disable logging of individual validation and test batches. Their means are still logged.

    Lightning counts these batches from the start of the process, so a resumed run would log them at different steps.
    Requires Lightning 1.5+.
    """
    trainer._logger_connector.update_eval_step_metrics = lambda step: None  # type: ignore[method-assign]


def reload_in_same_epochs(trainer: Trainer) -> None:
    """When a run is resumed, create the training loaders for the epoch in which they were last reloaded.

    Checkpoints do not contain the number of this epoch. If `reload_dataloaders_every_n_epochs` is 2 and the run resumes
    in epoch 1, Lightning would create the loaders for epoch 1, and reload them in epoch 3. Requires Lightning 2.0+.
    """
    loop, every = trainer.fit_loop, trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
    set_up = loop.setup_data

    def setup_data() -> None:
        epochs: Any = loop.epoch_progress.current
        now = epochs.completed  # the value of `trainer.current_epoch`
        epochs.completed -= now % every
        try:
            set_up()
        finally:
            epochs.completed = now

    if every > 1:
        loop.setup_data = setup_data  # type: ignore[method-assign]


def disable_requeue(trainer: Trainer) -> None:
    """Prevent Lightning from requeueing a SLURM job with its own checkpoint.

    Single-device strategies have no public `cluster_environment`. Requires Lightning 1.6+.
    """
    environment = trainer._accelerator_connector.cluster_environment
    if isinstance(environment, SLURMEnvironment):
        environment.auto_requeue = False


def save_after_validation(callback: ModelCheckpoint) -> None:
    """Configure a ModelCheckpoint to save after each validation, before a newer value can replace the logged metric.

    Accepting the constructor argument would make it an option of every subclass. Requires Lightning 1.6+.
    """
    callback._save_on_train_epoch_end = False


class CheckpointInRootDir(ModelCheckpoint):
    """A ModelCheckpoint that saves to the trainer's default root directory, regardless of the loggers' folders.

    For `fit(ckpt_path="last")`, Lightning searches the folder of the first logger before `setup`. Requires
    Lightning 1.9+.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._set_folder(trainer)
        super().setup(trainer, pl_module, stage)

    def _set_folder(self, trainer: Trainer) -> None:
        if self.dirpath is None:
            self.dirpath = str(Path(trainer.default_root_dir) / "checkpoints")

    def _find_last_checkpoints(self, trainer: Trainer) -> set[str]:
        self._set_folder(trainer)
        return super()._find_last_checkpoints(trainer)


class NoProfiler(PassThroughProfiler):
    """No-op profiler. Lightning's default profiler creates 56 generators per step (2 % of the time of a small step)."""

    profile: Any = nullcontext


STEP_HOOKS = (
    "on_train_batch_start",
    "on_before_zero_grad",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
)


def shorten_steps(trainer: Trainer) -> None:
    """Inspect `training_step` and the batch hooks only once, and skip the hooks that a callback does not override.

    Inspecting once saves about 0.2 ms per step. Most hooks of callbacks do nothing. Requires Lightning 2.6+.
    """
    loop, selector = trainer.fit_loop.epoch_loop, trainer._data_connector._datahook_selector
    names = list(type(loop)._build_kwargs(loop, OrderedDict(), None, 0))  # batch, and batch_idx if the step accepts it
    loop._build_kwargs = lambda kwargs, *values: OrderedDict(zip(names, values))  # type: ignore[method-assign] # noqa: B905
    selector.get_instance = cache(selector.get_instance)  # type: ignore[method-assign,union-attr]
    for callback, hook in product(trainer.callbacks, STEP_HOOKS):  # type: ignore[attr-defined]
        if getattr(type(callback), hook) is getattr(Callback, hook) and hook not in vars(callback):
            vars(callback)[hook] = None  # Lightning only calls hooks that are callable


class QuickModule(LightningModule):
    """Module that stores the name of the current hook without the checks of `nn.Module.__setattr__`.

    Lightning sets this name 44 times per step. Skipping the checks saves about 0.05 ms. Requires Lightning 1.0+.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_current_fx_name":
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)


def keep_random_states() -> Callable[[], None]:
    """Return a function that restores the current states of the CPU's random generators. Requires Lightning 2.0+.

    Lightning's public `isolate_rng` is a context manager, which cannot be copied with the task that stores it. Reading
    the states on GPUs would allocate memory on each GPU.
    """
    return partial(_set_rng_states, _collect_rng_states(include_cuda=False))


def scales_loss(trainer: Trainer) -> bool:
    """Return whether losses are scaled, as in 16-mixed on a GPU. If so, steps with infinite gradients are skipped."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def loss_scale(trainer: Trainer) -> float:
    """Return the factor by which the loss is scaled."""
    return float(trainer.precision_plugin.scaler.get_scale())  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------- the command line


@contextmanager
def skip_data_summary() -> Iterator[None]:
    """Omit Lightning's summary of the data when converting data modules to strings.

    For each link to a missing attribute, jsonargparse formats the data module in a debug message. Lightning's `__str__`
    creates all data loaders, and fails for dicts of loaders.
    """
    original, LightningDataModule.__str__ = LightningDataModule.__str__, object.__str__  # type: ignore[method-assign]
    try:
        yield
    finally:
        LightningDataModule.__str__ = original  # type: ignore[method-assign]


# ----------------------------------------------------------------------------------------- counters of the fit loop


def count_batches(trainer: Trainer) -> None:
    """Create the training dataloader early to set `num_training_batches`. Requires Lightning 2.0+."""
    trainer.fit_loop.setup_data()


def is_between_epochs(trainer: Trainer) -> bool:
    """Return whether the loop counters come from a checkpoint saved between epochs. Requires Lightning 1.5+."""
    epochs: Any = trainer.fit_loop.epoch_progress.current
    return epochs.ready == epochs.started == epochs.processed


def start_as_new(trainer: Trainer) -> None:
    """Make a resumed fit call all hooks at the start of its next epoch, as in a new fit. Requires Lightning 2.0+.

    This function calls the base class's setter of `restarting`, because the fit loop's own setter would also reset the
    inner loops. Lightning must create the data iterator again, because the first one used the counters of the previous
    epoch. A checkpoint saved in `on_train_epoch_end` does not count its epoch as complete, so with `max_steps`,
    Lightning would train this epoch again.
    """
    progress: Any = trainer.fit_loop.epoch_progress
    for epochs in (progress.total, progress.current):
        epochs.completed = epochs.processed
    trainer.fit_loop.reset_restart_stage()
    _Loop.restarting.fset(trainer.fit_loop, False)  # type: ignore[attr-defined]
    trainer.fit_loop._resuming_from_checkpoint = False


def finish_restart(trainer: Trainer) -> None:
    """Clear the restarting flag mid-epoch, so that the epoch ends normally and ReduceLROnPlateau is stepped.

    Dataloaders resume from their saved positions. Lightning does not restore the position if the dataloader was created
    before the checkpoint was loaded, for example by `estimated_stepping_batches`. Requires Lightning 2.0+.
    """
    loop = trainer.fit_loop
    if any(loop._combined_loader_states_to_load):
        loop._load_combined_loader_states()
        iter(loop._data_fetcher)  # type: ignore[arg-type]
    loop._restarting = False


def skip_validation_if_not_due(trainer: Trainer) -> None:
    """Skip an interrupted validation if the new options disable it. Requires Lightning 2.6+.

    Without this function, Lightning would train on an extra batch instead, even at the end of the epoch.
    """
    loop = trainer.fit_loop.epoch_loop
    is_due = loop._should_check_val_fx
    if loop.val_loop.restarted_mid_evaluation and not is_due(trainer.fit_loop._data_fetcher):  # type: ignore[arg-type]
        loop._skip_next_val = True
        loop._should_check_val_fx = lambda data_fetcher: loop._skip_next_val or is_due(data_fetcher)  # type: ignore[method-assign]


def step_plateau_schedules(trainer: Trainer) -> None:
    """Step the ReduceLROnPlateau schedules with interval `step`. Requires Lightning 1.6+.

    Lightning does this after a step's hooks, but checkpoints are saved in these hooks. A resumed run must therefore
    do this for the last step before the checkpoint.
    """
    trainer.fit_loop.epoch_loop.update_lr_schedulers("step", update_plateau_schedulers=True)


def ready_batches(trainer: Trainer) -> int:
    """Return the number of batches that have started in this epoch. Requires Lightning 1.5+."""
    return trainer.fit_loop.epoch_loop.batch_progress.current.ready


def processed_batches(trainer: Trainer) -> int:
    """Return the number of batches whose step is complete, even if a step fetches its own batch (`dataloader_iter`)."""
    current: Any = trainer.fit_loop.epoch_loop.batch_progress.current
    return current.processed


def is_in_hook(trainer: Trainer) -> bool:
    """Return whether a hook other than `training_step` is running. Such a hook may fetch its own batches.

    `Trainer` has no public attribute for this. Requires Lightning 1.0+.
    """
    return getattr(trainer.lightning_module, "_current_fx_name", None) not in (None, "training_step")


def will_validate(trainer: Trainer) -> bool:
    """Return whether Lightning will validate after this batch. Requires Lightning 1.8+.

    In Lightning, a stop request also triggers validation. This function assumes that there is no such request.
    """
    loop = trainer.fit_loop.epoch_loop
    stops, trainer.should_stop = trainer.should_stop, False
    validates = loop._should_check_val_fx(trainer.fit_loop._data_fetcher)  # type: ignore[arg-type]
    trainer.should_stop = stops
    return validates


def has_validated(trainer: Trainer) -> bool:
    """Return whether validation ran in this epoch. Otherwise, logged validation metrics are from an earlier epoch.

    `max_steps` may end an epoch before its validation, and `check_val_every_n_epoch` may skip it.
    """
    batches: Any = trainer.fit_loop.epoch_loop.val_loop.batch_progress.total  # only this epoch's
    return bool(batches.processed)


def modes_in_training(trainer: Trainer) -> dict[str, bool]:
    """Return whether each submodule was in train mode before the current validation. Requires Lightning 2.2+."""
    return trainer.fit_loop.epoch_loop.val_loop._module_mode.mode


def logged_steps(trainer: Trainer) -> int:
    """Return the step at which the next values will be logged. Requires Lightning 1.6+."""
    return trainer.fit_loop.epoch_loop._batches_that_stepped


def set_ended(trainer: Trainer, steps: int, epochs: int) -> None:
    """Restore the step and epoch counts of a fit that ended mid-epoch."""
    trainer.fit_loop.epoch_loop._batches_that_stepped = steps
    trainer.fit_loop.epoch_progress.current.completed = epochs


def loop_state(trainer: Trainer) -> dict[str, Any]:
    """Return a copy of the fit loop's counters, to be saved later."""
    return copy.deepcopy(trainer.fit_loop.state_dict())


def epochs_in(checkpoint: dict[str, Any]) -> tuple[int, int | None]:
    """Return a checkpoint's number of complete epochs (including validation) and its number of fully trained epochs.

    The numbers differ if the checkpoint was saved during the validation at the end of an epoch. If a checkpoint was
    saved mid-epoch, the second number is None. Requires Lightning 1.5+.
    """
    loop = checkpoint["loops"]["fit_loop"]
    epochs, is_trained = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]["is_last_batch"]
    complete = epochs["processed"]
    if epochs["ready"] == complete:
        return complete, complete
    return complete, complete + 1 if is_trained else None


def set_loop_counters(loops: dict[str, Any], moment: str) -> None:
    """Adjust the counters in a checkpoint so that resuming from it is exact. Requires Lightning 2.6+.

    Without this function, some runs would resume at a different point, or not at all.

    Args:
        loops: state of the fit loop.
        moment: when the checkpoint is saved (`epoch`, `step`, `repeat`, `validation` or `validated`). An empty string
            means that another callback saves the checkpoint, possibly after repeating an interrupted validation.
    """
    validations = loops["epoch_loop.val_loop.batch_progress"]
    validation = validations["total"]
    if not moment:
        validation.update(dict.fromkeys(validation, validation["processed"]))
        return
    cleared = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["zero_grad"]
    for counts in cleared.values():  # Lightning never reads these counts, but they differ after resuming
        counts.update(dict.fromkeys(counts, 0))
    validation.update(dict.fromkeys(validation, min(validation["processed"], 1)))  # see `has_validated`
    validations["current"], validations["is_last_batch"] = dict.fromkeys(validation, 0), False
    if moment == "epoch":  # Lightning counts an epoch as ready before its start hooks run
        for epochs in (loops["epoch_progress"]["total"], loops["epoch_progress"]["current"]):
            epochs.update(dict.fromkeys(("ready", "started", "completed"), epochs["processed"]))
    for batches in (loops["epoch_loop.batch_progress"]["total"], loops["epoch_loop.batch_progress"]["current"]):
        # The current batch is complete, and Lightning does not count a batch whose `on_train_batch_start` returned -1.
        batches.update(dict.fromkeys(batches, batches["processed"]))
    if moment == "step":
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1
    if moment == "validation":  # Lightning repeats a validation if one of its batches is unfinished
        validation.update(ready=validation["processed"] + 1, started=validation["processed"] + 1)


def restore_progress(trainer: Trainer, checkpoint: dict[str, Any]) -> None:
    """Restore the step and the epoch that loggers and modules use in an evaluation. Requires Lightning 1.5+."""
    if counters := checkpoint.get("loops", {}).get("fit_loop"):
        trainer.fit_loop.load_state_dict(counters)


def is_trained_with_other_length(trainer: Trainer) -> bool:
    """Return whether the epoch's last batch was processed, but the epoch now has a different number of batches.

    Lightning would then train on the new batches (longer epoch) or on one more batch (shorter epoch).
    """
    length, batches = trainer.num_training_batches, trainer.fit_loop.epoch_loop.batch_progress
    is_open = batches.is_last_batch and not is_between_epochs(trainer)
    return is_open and length != float("inf") and batches.current.ready != length


def set_batch_counters(trainer: Trainer) -> None:
    """Set this epoch's batch counters to the loader's position, after resuming with a different batch size."""
    batches: Any = trainer.fit_loop.epoch_loop.batch_progress
    done = trainer.num_training_batches if batches.is_last_batch else trainer.train_dataloader.position  # type: ignore[union-attr]
    epochs = trainer.current_epoch - (batches.is_last_batch and is_between_epochs(trainer))
    before = epochs * trainer.num_training_batches
    for counts, number in ((batches.total, before + done), (batches.current, done)):
        vars(counts).update(dict.fromkeys(vars(counts), number))


def rewind_step(trainer: Trainer, batches: int) -> None:
    """Reset the counters to the start of a failed optimizer step, which began after `batches` batches of the epoch."""
    loop: Any = trainer.fit_loop.epoch_loop
    progress, steps = loop.batch_progress, loop.automatic_optimization.optim_progress.optimizer.step
    before = progress.total.processed - progress.current.processed
    for counts, done in ((progress.total, before + batches), (progress.current, batches)):
        vars(counts).update(dict.fromkeys(vars(counts), done))
    progress.is_last_batch = False
    for counts in (steps.total, steps.current):
        counts.ready = counts.completed


# --------------------------------------------------------------------------------------------------- logged metrics


def logged_values(trainer: Trainer) -> dict[str, Tensor]:
    """Return a dict of the metrics that the current stage has logged in this epoch or evaluation.

    `callback_metrics` mixes all stages and keeps only the newest metric for each name. Requires Lightning 1.2+.
    """
    results: Any = trainer._results
    found: dict[str, Tensor] = {}
    for item in results.values() if results else ():
        value = None if item.has_reset else results._get_cache(item, on_step=not item.meta.on_epoch)
        if isinstance(value, Tensor):
            found[results._forked_name(item, on_step=False)[0]] = value
    return found


def logged_metrics(trainer: Trainer) -> list[str]:
    """Return the names of the metric objects that the current stage has logged. Requires Lightning 1.2+."""
    results: Any = trainer._results or {}  # None after training
    return [
        item.meta.metric_attribute for item in results.values() if item.meta.metric_attribute and not item.has_reset
    ]


def log_step(trainer: Trainer) -> None:
    """Log a step's metrics before its checkpoint is saved, instead of after all hooks. Requires Lightning 1.2+."""
    trainer._logger_connector.update_train_step_metrics()


def logged_so_far(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the values that `self.log` has accumulated in this training epoch, for a checkpoint.

    Lightning loses these values when a run is resumed mid-epoch. Requires Lightning 1.2+.
    """
    results: Any = trainer.fit_loop.epoch_loop._results
    found = []
    for item in results.values():
        meta = item.meta
        if not item.has_reset and (item.is_tensor or meta.metric_attribute):
            names = ("name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx")
            options = {name: getattr(meta, name) for name in (*names, "fx", "metric_attribute")}
            options |= {"sync_dist": meta.sync.should, "rank_zero_only": meta.sync.rank_zero_only}
            sums = {name: getattr(item, name).cpu() for name in item._defaults} if item.is_tensor else {}
            latest = item._forward_cache.cpu() if isinstance(item._forward_cache, Tensor) else None
            reduce = f"{'builtins.' if meta.reduce_fx in (min, max, sum) else ''}{meta.reduce_fx.__name__}"
            found.append({"options": options, "reduce_fx": reduce, "sums": sums, "latest": latest})
    return found


def log_again(trainer: Trainer, saved: list[dict[str, Any]]) -> None:
    """Restore the values that `self.log` had accumulated in this epoch. Requires Lightning 1.2+."""
    results: Any = trainer.fit_loop.epoch_loop._results
    for one in saved:
        module, _, name = one["reduce_fx"].rpartition(".")
        options = {**one["options"], "reduce_fx": getattr(builtins if module else torch, name)}
        path = options["metric_attribute"]
        value = (
            attrgetter(path)(trainer.lightning_module) if path else torch.zeros((), device=trainer.strategy.root_device)
        )
        results.log(**options, value=value, sync_dist_fn=trainer.strategy.reduce, batch_size=1)
        item = results[f"{options['fx']}.{options['name']}"]
        sums = {name: before.to(value.device) for name, before in one["sums"].items()}
        latest = move_data_to_device(one.get("latest"), value.device)  # logged again until there is a new value
        vars(item).update(sums, _computed=None, _forward_cache=latest)
    trainer._logger_connector._first_loop_iter = False  # otherwise, Lightning resets the values in the first batch


METRIC_ATTRIBUTES = ("min_val", "max_val", "_num_vals_seen")  # not registered as states by MinMaxMetric and Running


def metric_states(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Map the names of a module's metrics to CPU copies of their states. By default, a state_dict omits these states.

    Each `MetricTracker` is mapped to the number of metrics that it contains.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, metric in module.named_modules():
        if _is_tracker(metric):
            found[name] = {"length": len(metric)}
        if isinstance(metric, Metric):
            others = {key: vars(metric)[key] for key in METRIC_ATTRIBUTES if key in vars(metric)}
            values = {"states": metric.metric_state, "attributes": others, "count": metric._update_count}
            found[name] = apply_to_collection(values, Tensor, lambda value: value.detach().cpu().clone())
    return found


def restore_metric_states(module: nn.Module, saved: dict[str, dict[str, Any]]) -> None:
    """Restore the states of a module's metrics."""
    for name, tracker in [*module.named_modules()]:
        while _is_tracker(tracker) and len(tracker) < saved.get(name, {}).get("length", 0):
            tracker.increment()
    for name, metric in module.named_modules():
        if isinstance(metric, Metric) and name in saved:
            for state, value in saved[name]["states"].items():
                setattr(metric, state, move_data_to_device(value, metric.device))
            vars(metric).update(saved[name].get("attributes", {}))
            metric._update_count, metric._computed = saved[name]["count"], None


def _is_tracker(module: Any) -> bool:
    """Return whether a module is a `MetricTracker`, without importing this class."""
    return isinstance(module, nn.ModuleList) and hasattr(module, "increment")


# ------------------------------------------------------------------------------------------------- weight averaging


def swap_average(average: WeightAveraging, module: LightningModule) -> None:
    """Swap the averaged weights and the trained weights. Requires Lightning 2.6+."""
    average._swap_models(module)


def reset_average(average: WeightAveraging, trainer: Trainer) -> None:
    """Discard the average of an earlier fit, which may have used a different trainer. Requires Lightning 2.6+.

    Otherwise, `test` would load a checkpoint's trained weights instead of the averaged ones, and a second trainer would
    not update the average before it has trained more steps than the first one.
    """
    average._average_model, average._latest_update_step = None, trainer.global_step


def get_averaged_model(average: WeightAveraging) -> Any:
    """Return the averaged model of a WeightAveraging callback. Requires Lightning 2.6+."""
    assert average._average_model is not None
    return average._average_model


# -------------------------------------------------------------------------------------------------------- processes


def rank() -> int:
    """Return the global rank, even before a strategy has started. Requires Lightning 1.0+."""
    return getattr(rank_zero_only, "rank", 0)


def set_rank(number: int) -> None:
    """Set the global rank. Lightning reads it from environment variables on import, even for a single process."""
    setattr(rank_zero_only, "rank", number)  # noqa: B010  (mypy does not know the attribute)


def device_mesh(strategy: Any) -> Any:
    """Return the device mesh or None. Without a mesh, the public property fails. Requires Lightning 2.4+."""
    return getattr(strategy, "_device_mesh", None)


def has_layer_sync(strategy: Any) -> bool:
    """Return whether batch norm is synchronized across processes. Requires Lightning 1.6+."""
    return strategy._layer_sync is not None


def process_loaders(strategy: Any, process: Any) -> None:
    """Apply a function to each dataloader after Lightning has set the sampler. A later call replaces the function."""
    strategy.process_dataloader = lambda loader: process(type(strategy).process_dataloader(strategy, loader))


def replace_setup(strategy: Any, setup: Any) -> None:
    """Replace the method that creates a strategy's process group. `setup` must call the original method."""
    strategy.setup_environment = setup


def group_options(strategy: Any) -> tuple[str, timedelta]:
    """Return the backend and timeout that a strategy uses for a process group. Requires Lightning 1.6+."""
    return strategy._get_process_group_backend(), strategy._timeout


destroy_process_group = _destroy_dist_connection


def note_trainable(strategy: Any, module: LightningModule) -> None:
    """Record which parameters are trainable when DDP wraps the module, for use by `wrap_again`."""
    if isinstance(strategy, DDPStrategy):

        def configure() -> None:
            type(strategy).configure_ddp(strategy)
            vars(strategy.model)["trainable"] = [weight.requires_grad for weight in module.parameters()]

        strategy.configure_ddp = configure  # type: ignore[method-assign]


def wrap_again(strategy: Any, module: LightningModule) -> None:
    """Wrap the module in a new DistributedDataParallel, if the strategy uses it and the trainable parameters changed.

    DDP only averages gradients of parameters that required gradients when the wrapper was created. Without a previous
    call to `note_trainable`, these are unknown, so the first call always wraps the module again.
    """
    now = [weight.requires_grad for weight in module.parameters()]
    if isinstance(strategy, DDPStrategy) and getattr(strategy.model, "trainable", None) != now:
        note_trainable(strategy, module)
        strategy.model = module
        strategy.configure_ddp()


def restore_buffers(strategy: Any, module: LightningModule, buffers: dict[str, Tensor]) -> None:
    """Restore the buffers of this process after DDP has broadcast rank 0's buffers, and prevent another broadcast."""
    for name, buffer in module.named_buffers():
        if name in buffers and buffer.shape == buffers[name].shape:
            buffer.copy_(buffers[name])
    strategy.model.require_forward_param_sync = False


# ------------------------------------------------------------------------------------------------------------ torch


def remember_missing_cuda() -> None:
    """Keep Adam from searching for the CUDA driver on CPU-only machines. This saves 11 % of a small step's time.

    `torch.optim.Adam` checks at each step whether there is a CUDA device. Lightning sets PYTORCH_NVML_BASED_CUDA_CHECK
    at import (Lightning pull request 15110), so that the check does not initialize CUDA before a fork. There is nothing
    to initialize without a GPU. Remove this function once torch caches the result or Lightning resets the variable.
    """
    if not torch.cuda.is_available():
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def has_bfloat16_units() -> bool:
    """Return whether this CPU has bfloat16 units. Requires torch 2.6+."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def is_compiled(net: nn.Module) -> bool:
    """Return whether `nn.Module.compile` was called. Requires torch 2.2+."""
    return net._compiled_call_impl is not None


def unscales_itself(optimizer: Any) -> bool:
    """Return whether an optimizer itself divides its gradients by the loss scale, as fused optimizers do."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


def multiply_all(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiply tensors in place by a scalar tensor, in one kernel if their dtypes match. Requires torch 1.9+."""
    torch._foreach_mul_(tensors, factor.to(torch.promote_types(tensors[0].dtype.to_real(), torch.float32)))


def recurrences_as_loops() -> list[AbstractContextManager[Any]]:
    """Return context managers that let `torch.export` keep RNN lengths dynamic. The list is empty before torch 2.11."""
    with suppress(ImportError):
        from torch.export._patches import (
            register_gru_while_loop_decomposition,
            register_lstm_while_loop_decomposition,
        )

        return [register_gru_while_loop_decomposition(), register_lstm_while_loop_decomposition()]
    return []


def broadcast_all(tensors: list[Tensor]) -> None:
    """Broadcast tensors from the first process to all others, in one operation per dtype. Requires torch 1.0+."""
    if tensors:  # torch rejects an empty list
        torch.distributed._broadcast_coalesced(torch.distributed.group.WORLD, tensors, 250 * 1024**2, 0)  # type: ignore[arg-type]


def replaces_loading(module: nn.Module) -> bool:
    """Return whether a module overrides how its part of a state dict is loaded. Requires torch 0.4+."""
    return type(module)._load_from_state_dict is not nn.Module._load_from_state_dict


def replace_loader_parts(loader: Any, **parts: Any) -> None:
    """Replace attributes of a DataLoader, such as its sampler. Direct assignment may raise an error."""
    vars(loader).update(parts)


def worker_iterator(loader: Any) -> Any:
    """Return a DataLoader's iterator, which owns the worker processes, or None if there is none yet."""
    return loader._iterator


def restarts_shorter_loaders(trainer: Trainer) -> bool:
    """Return whether training loaders that are shorter than others start over. In mode `max_size`, they do not."""
    return trainer.fit_loop._combined_loader is None or trainer.fit_loop._combined_loader._mode != "max_size"


def keeps_iterator(loader: Any) -> bool:
    """Return whether a DataLoader has created its own iterator, like timm's `MultiEpochsDataLoader`."""
    return any(isinstance(one, _BaseDataLoaderIter) for name, one in vars(loader).items() if name != "_iterator")


def set_worker_iterator(loader: Any, iterator: Any) -> None:
    """Replace a DataLoader's iterator, which Lightning sets to None to stop the workers."""
    loader._iterator = iterator
