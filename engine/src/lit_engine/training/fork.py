"""Callback that continues a run as a new run with different options (`fit --fork RUN`)."""

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, Timer, WeightAveraging
from torch import Tensor
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from lit_engine._lightning import epochs_in
from lit_engine.checkpoints.choose import checkpoint_to_fork
from lit_engine.checkpoints.io import read
from lit_engine.checkpoints.warm_start import FROM_CHECKPOINT, warm_start
from lit_engine.classes.names import resolve_class_paths
from lit_engine.data.fingerprint import fingerprint
from lit_engine.distributed.processes import is_first, print_once, warn_once
from lit_engine.errors import CheckpointError, UserError
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.options import iterate_changes
from lit_engine.training.plain import adds_weights_later
from lit_engine.training.schedules import has_other_factors, iterate_steps, lengths_in, steps_of_epochs
from lit_engine.training.task import Task, overrides


class Fork(Callback):
    """Callback that resumes a new run from its parent's checkpoint, after replacing state that no longer applies.

    - Changed optimizer options replace the saved options.
    - If the learning rate, a schedule or its length has changed, the schedules are built from the new options and moved
      to the checkpoint's position. Otherwise, the saved state of the schedules is restored.
    - Early stopping, `max_time` and the selection of the best checkpoint only consider the epochs of the new run.

    Args:
        source: parent run and checkpoint, in the format of `--fork`. Neither is modified.
        runs: folder that contains the runs, used if the source is `latest`.

    Raises:
        UserError: if the run or the checkpoint does not exist, or the checkpoint contains only weights.
    """

    def __init__(self, source: str, runs: str) -> None:
        self.parent, which = RunDir.to_fork(source, runs)
        self.checkpoint = checkpoint_to_fork(self.parent, which)
        self.content = content = read(self.checkpoint)
        if "optimizer_states" not in content:
            raise CheckpointError(f"{self.checkpoint} contains only weights: use --init_from instead of --fork")
        self.finished, self.trained = epochs_in(content)
        epochs, step = self.finished if self.trained is None else self.trained, content["global_step"]
        path = str(self.parent.path)
        self.origin = {"run": path, "checkpoint": self.checkpoint.name, "epochs": epochs, "step": step}
        self.origin["rows"] = content.get("metrics_csv", {}).get("rows", 0)  # number of copied rows of metrics.csv
        self._changed: list[str] = []  # options that determine the optimizer and the schedules

    def adapt(self, run: Path, config: Mapping[str, Any], trainer: Trainer, model: LightningModule, data: Any) -> None:
        """Adapt the saved weights and the states of callbacks and data, and copy earlier metrics to the new run.

        Raises:
            CheckpointError: if no weight fits the model.
        """
        content, callbacks = self.content, trainer.callbacks  # type: ignore[attr-defined]
        if is_first() and (rows := self.parent.history()[1]) and (history := content.get("metrics_csv")):
            # Unlike `splitlines`, this splits only at newlines. Metric names may contain other line separators.
            lines = re.findall(r".*\n", (self.parent.path / "metrics.csv").read_text(encoding="utf-8"))
            write_text(run / "metrics.csv", "".join(lines[: 1 + history["rows"]]))
            history["last"] = rows[: history["rows"]][-1:]  # this row may include means logged after the save
        found = iterate_changes(resolve_class_paths(self.parent.config())["model"], config["model"], "model")
        # Modules that are not tasks create their own optimizer, so any of their options may affect the optimizer.
        owns = FROM_CHECKPOINT if isinstance(model, Task) else ()
        self._changed = [key for key, _, _ in found if not owns or key.split(".")[1].partition("[")[0] in owns]
        kept = {one.state_key for one in callbacks if not isinstance(one, ModelCheckpoint | EarlyStopping | Timer)}
        content["callbacks"] = {key: state for key, state in content["callbacks"].items() if key in kept}
        use_trained_weights(content, callbacks)
        if self.trained is not None:  # between epochs, the data may change
            content.pop("batches", None)
            if "samples" in (state := content.get(type(data).__qualname__, {})):
                state["may_change"] = True
        if not adds_weights_later(model, callbacks):
            self._load_weights(model)
            return
        hook = model.on_load_checkpoint

        def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
            """Match the weights just before Lightning loads them, once all layers exist."""
            del model.on_load_checkpoint
            hook(checkpoint)
            self._load_weights(model)

        model.on_load_checkpoint = on_load_checkpoint  # type: ignore[method-assign]

    def _load_weights(self, model: LightningModule) -> None:
        content = self.content
        weights = warm_start(model, self.checkpoint, content=content)
        if not getattr(model, "strict_loading", True):  # the checkpoint may omit frozen weights
            weights = replace(weights, missing=[], unexpected=[])
        if not weights.complete:
            warn_once(f"note: some weights do not fit, so the state of the optimizer is not restored:\n{weights}")
            content.update(state_dict=model.state_dict(), optimizer_states=[])
            content.pop("current_model_state", None)  # averages start from the new weights

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adapt the saved states of optimizers and schedules, which Lightning restores after this hook.

        Raises:
            UserError: if no steps are left to train.
        """
        content = self.content
        saved = [state for state in content["optimizer_states"] if state]  # the state is empty if there is no optimizer
        epochs, step = self.origin["epochs"], self.origin["step"]
        place = f"{self.checkpoint} after {epochs} epoch{'s' * (epochs != 1)} ({step} steps)"
        if 0 < (trainer.max_epochs or 0) <= epochs or 0 < trainer.max_steps <= step:
            raise UserError(f"--fork {place}: increase --epochs or trainer.max_steps to continue training")
        fits = len(saved) == len(trainer.optimizers) and all(map(_fits, trainer.optimizers, saved))
        # groups of different parameters may have the same sizes
        regrouped = any(key.endswith("optimizer.class_path") or ".match" in key for key in self._changed)
        if saved and (not fits or regrouped):
            warn_once("note: the optimizer or its parameter groups differ, so its state is not restored")
            saved = []
        options = {key.rpartition(".")[2].partition("[")[0] for key in self._changed}  # `betas[0]` becomes `betas`
        alike = all(key.startswith("model.optimizer.") for key in self._changed) and "lr" not in options
        if (before := content.get("optimization")) is not None and before == describe_optimization(trainer):
            alike, options = True, set()
        schedulers: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
        lengths = [lengths_in(one) for one in content["lr_schedulers"]]
        restores = saved and alike and lengths == [lengths_in(one.state_dict()) for one in schedulers]
        restores = restores and not any(map(has_other_factors, schedulers, content["lr_schedulers"]))
        if not restores:
            self._move_schedules(trainer, pl_module)
            content["lr_schedulers"] = [one.state_dict() for one in schedulers]
        content["optimizer_states"] = [optimizer.state_dict() for optimizer in trainer.optimizers]
        for state, before in zip(content["optimizer_states"], saved, strict=False):
            state["state"] = before["state"]
            for group, old in zip(state["param_groups"], before["param_groups"], strict=True):
                group.update({name: value for name, value in old.items() if restores and name not in options})
        how = "continue" if restores else "follow the new options from this position on"
        print_once(f"forked {place}; learning rates {how}")

    def _move_schedules(self, trainer: Trainer, module: LightningModule) -> None:
        """Advance the new schedules to the checkpoint's step, or to its epoch if the batch size has changed.

        Raises:
            UserError: if the module overrides `lr_scheduler_step`.
        """
        configs, own = trainer.lr_scheduler_configs, module.schedules if isinstance(module, Task) else []
        if configs and overrides(module, "lr_scheduler_step"):
            raise UserError(
                f"--fork cannot move the schedules to step {self.origin['step']}, because the module overrides "
                "lr_scheduler_step: fork with unchanged options and length, or start from the weights with --init_from"
            )
        steps, epochs = self.content["global_step"], steps_of_epochs(trainer)
        if epochs is not None and self.trained is not None and trainer.max_steps <= 0:
            steps = sum(epochs[: self.trained])
        schedules: Any = own or configs
        # With automatic optimization, the schedules are stepped before the validation at the end of an epoch.
        whole = self.origin["epochs"] if module.automatic_optimization else self.finished
        saved = [state.get("last_epoch", 0) for state in self.content["lr_schedulers"]]
        for number, (config, schedule) in enumerate(zip(configs, schedules, strict=True)):
            done, every = steps if config.interval == "step" else whole, schedule.frequency
            if config.interval == "step" and epochs is not None:
                counts = islice(iterate_steps(trainer, epochs, since_start=bool(own)), steps)
                done, every = sum(one["step"] % every == 0 for one in counts), 1
            if not module.automatic_optimization and number < len(saved):  # the module steps its schedules itself
                done, every = saved[number], 1
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
                # ReduceLROnPlateau needs metrics, so it starts with the new rate.
                waits = config.reduce_on_plateau or isinstance(config.scheduler, ReduceLROnPlateau)
                for _ in range(0 if waits else done // every):
                    config.scheduler.step()  # type: ignore[call-arg]


def describe_optimization(trainer: Trainer) -> str | None:
    """Return a hash of the initial options of optimizers and schedules, or None if the module is a task."""
    if isinstance(trainer.lightning_module, Task):
        return None
    groups = [{**group, "params": type(one).__name__} for one in trainer.optimizers for group in one.param_groups]
    return fingerprint([groups, [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]])


def _fits(optimizer: Optimizer, saved: Mapping[str, Any]) -> bool:
    """Return whether a saved state matches an optimizer's options and parameters."""
    names = optimizer.defaults.keys()
    return has_same_parameters(optimizer, saved) and all(names <= group.keys() for group in saved["param_groups"])


def has_same_parameters(optimizer: Optimizer, saved: Mapping[str, Any]) -> bool:
    """Return whether a saved state matches the sizes of an optimizer's groups and the shapes of its weights.

    torch only compares the sizes. If shapes differ, fused optimizers on a CPU write beyond the end of the state.
    """
    own, others = optimizer.param_groups, saved.get("param_groups", [])
    if [len(group["params"]) for group in own] != [len(group["params"]) for group in others]:
        return False
    if isinstance(optimizer, LBFGS):  # the state of LBFGS consists of vectors of all weights
        return True
    weights, keys = ([one for group in groups for one in group["params"]] for groups in (own, others))
    states = [saved["state"].get(key, {}).values() for key in keys]
    return all(_has_shape(value, weight) for weight, found in zip(weights, states, strict=True) for value in found)


def _has_shape(value: Any, weight: Tensor) -> bool:
    """Return whether a state may belong to a weight. Some optimizers, such as Adafactor, reduce axes to length 1."""
    if not isinstance(value, Tensor) or value.ndim != weight.ndim:
        return True
    return all(size in (1, own) for size, own in zip(value.shape, weight.shape, strict=True))


def use_trained_weights(content: dict[str, Any], callbacks: Iterable[Callback]) -> None:
    """Replace the averaged weights in a checkpoint with the trained weights if no callback continues the averaging.

    For example, SWA cannot continue an EMA, because SWA counts epochs and an EMA counts steps.
    """
    averages = {one.state_key for one in callbacks if isinstance(one, WeightAveraging)}
    if "current_model_state" in content and not averages & content["callbacks"].keys():
        content["state_dict"] = content.pop("current_model_state")
