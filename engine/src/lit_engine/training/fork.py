"""Continues a run as a new run with different options (`fit --fork RUN`).

The new run resumes from the checkpoint of its parent, in which `Fork` replaces the state that does not fit the options.
"""

import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, WeightAveraging
from torch.optim import Optimizer

from lit_engine._lightning import epochs_in
from lit_engine.checkpoints.warm_start import FROM_CHECKPOINT, warm_start
from lit_engine.classes.names import resolve_class_paths
from lit_engine.distributed.processes import is_first, print_once
from lit_engine.errors import CheckpointError, UserError
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.options import iterate_changes
from lit_engine.training.schedules import steps_of_epochs
from lit_engine.training.task import Task

LENGTHS = ("planned_length", "T_max", "total_steps", "total_iters")  # attributes of schedulers that end with the run


class Fork(Callback):
    """Callback that adapts the checkpoint of a parent run before Lightning restores it.

    - Weights, optimizer state, epoch, step and random numbers continue. State that does not fit is dropped, with a
      message.
    - Options of the optimizer that have changed win over the saved ones.
    - If the learning rate, a schedule or its length has changed, the schedules are built from the new options and moved
      to the position. Otherwise, their state is restored.
    - The best checkpoint and early stopping only consider the epochs of the new run.

    Args:
        parent: the parent run, which does not change.
        checkpoint: path of its checkpoint.
        content: content of the checkpoint, which is changed in place.

    Raises:
        CheckpointError: the checkpoint contains only weights.
    """

    def __init__(self, parent: RunDir, checkpoint: Path, content: dict[str, Any]) -> None:
        if "optimizer_states" not in content:
            raise CheckpointError(f"{checkpoint} contains only weights: use --init_from instead of --fork")
        self.parent, self.content, self.checkpoint = parent, content, checkpoint
        self.finished, self.trained = epochs_in(content)
        epochs = self.finished if self.trained is None else self.trained
        self.origin = {"run": str(parent.path), "checkpoint": checkpoint.name, "epochs": epochs,
                       "step": content["global_step"]}  # fmt: skip
        self._config: Any = resolve_class_paths(yaml.safe_load(parent.config_file.read_text(encoding="utf-8")))
        self._changed: list[str] = []  # options that determine the optimizer and the schedules

    def adapt(self, run: Path, config: Mapping[str, Any], trainer: Trainer, model: LightningModule, data: Any) -> None:
        """Copy the metrics up to the checkpoint to the new run, and adapt weights, callbacks and data.

        Args:
            run: the directory of the new run.
            config: the config of the new run.
            trainer: the trainer of the new run.
            model: the model of the new run.
            data: the data module of the new run.

        Raises:
            CheckpointError: no weight fits the model.
        """
        content, callbacks = self.content, trainer.callbacks  # type: ignore[attr-defined]
        if is_first() and (rows := self.parent.history()[1]) and (history := content.get("metrics_csv")):
            lines = (self.parent.path / "metrics.csv").read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(run / "metrics.csv", "".join(lines[: 1 + history["rows"]]))
            history["last"] = rows[: history["rows"]][-1:]  # may have received the means of the epoch after the save
        found = iterate_changes(self._config["model"], config["model"], "model")
        # any option of other modules may concern the optimizer that they create
        owns = FROM_CHECKPOINT if isinstance(model, Task) else ()
        self._changed = [key for key, _, _ in found if not owns or key.split(".")[1].partition("[")[0] in owns]
        restored = [one for one in callbacks if not isinstance(one, ModelCheckpoint | EarlyStopping)]
        content["callbacks"] = {
            one.state_key: content["callbacks"][one.state_key]
            for one in restored
            if one.state_key in content["callbacks"]
        }
        if not any(isinstance(one, WeightAveraging) for one in callbacks) and "current_model_state" in content:
            content["state_dict"] = content["current_model_state"]  # the trained weights instead of their average
        if self.trained is not None:  # in a new epoch, the data may change
            content.pop("batches", None)
            if "samples" in (state := content.get(type(data).__qualname__, {})):
                state["may_change"] = True
        weights = warm_start(model, self.checkpoint, content=content)
        if not weights.complete:
            _report(f"some weights do not fit, so the optimizer starts without state:\n{weights}")
            content["state_dict"], content["optimizer_states"] = model.state_dict(), []
            for name in ("current_model_state", "averaging_state"):
                content.pop(name, None)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Adapt the states of optimizers and schedules, which Lightning restores after this hook.

        Raises:
            UserError: there are no steps left to train.
        """
        content, configs = self.content, trainer.lr_scheduler_configs
        epochs, step = self.origin["epochs"], self.origin["step"]
        which = f"{self.checkpoint} after {epochs} epochs ({step} steps)"
        if 0 < (trainer.max_epochs or 0) <= epochs or 0 < trainer.max_steps <= step:
            raise UserError(f"--fork {which}: increase --epochs or trainer.max_steps to continue training")
        saved = content["optimizer_states"]
        fits = len(saved) == len(trainer.optimizers) and all(map(_fits, trainer.optimizers, saved))
        if saved and (not fits or any(key.endswith("optimizer.class_path") for key in self._changed)):
            _report("the optimizer or its parameter groups differ, so the optimizer starts without state")
            saved = []
        options = {key.rpartition(".")[2] for key in self._changed}
        alike = all(key.startswith("model.optimizer.") for key in self._changed) and "lr" not in options
        before, now = content["lr_schedulers"], [config.scheduler.state_dict() for config in configs]
        restores = bool(saved) and alike and [[*_lengths(one)] for one in before] == [[*_lengths(one)] for one in now]
        if not restores:
            self._move_schedules(trainer, pl_module)
            content["lr_schedulers"] = [config.scheduler.state_dict() for config in configs]
        states = [optimizer.state_dict() for optimizer in trainer.optimizers]
        content["optimizer_states"] = [
            _merged(state, old, options if restores else None) for state, old in zip(states, saved, strict=True)
        ] if saved else states  # fmt: skip
        schedule = "continue" if restores else "are built from the new options and moved to this position"
        print_once(f"forked {which}; learning rates {schedule}")

    def _move_schedules(self, trainer: Trainer, module: LightningModule) -> None:
        """Step the new schedules to the position. A changed batch size moves them to the same epoch."""
        configs, task = trainer.lr_scheduler_configs, module if isinstance(module, Task) else None
        epochs = steps_of_epochs(trainer, task.accumulate if task else None)
        by_epoch = epochs is not None and self.trained is not None and trainer.max_steps <= 0
        steps = sum(epochs[: self.trained]) if by_epoch and epochs else self.content["global_step"]
        schedules: Any = task.all_schedules if task else configs
        for config, schedule in zip(configs, schedules, strict=True):
            if config.monitor is not None:  # ReduceLROnPlateau starts with the new rate
                continue
            done = steps if config.interval == "step" else self.finished
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
                for _ in range(done // schedule.frequency):
                    config.scheduler.step()  # type: ignore[call-arg]


def _fits(optimizer: Optimizer, saved: Mapping[str, Any]) -> bool:
    """Return whether a saved state has the options and the number of parameters of an optimizer."""
    pairs = [*zip(optimizer.param_groups, saved["param_groups"], strict=False)]
    sizes = len(saved["param_groups"]) == len(optimizer.param_groups)
    return sizes and all(
        len(own["params"]) == len(other["params"]) and optimizer.defaults.keys() <= other.keys() for own, other in pairs
    )


def _merged(state: Mapping[str, Any], saved: Mapping[str, Any], changed: Collection[str] | None) -> dict[str, Any]:
    """Return a saved optimizer state with the options in `changed`, or all options if it is None, of a new one."""
    groups = [
        group if changed is None else {**old, **{name: group[name] for name in changed if name in group}}
        for group, old in zip(state["param_groups"], saved["param_groups"], strict=True)
    ]
    return {**saved, "param_groups": groups}


def _lengths(scheduler: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the lengths in the state of a scheduler and of the schedulers inside it."""
    yield [scheduler.get(name) for name in LENGTHS]
    for one in scheduler.get("_schedulers", ()):
        yield from _lengths(one)


def _report(message: str) -> None:
    if is_first():
        print(f"note: {message}", file=sys.stderr)
