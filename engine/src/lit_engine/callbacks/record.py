"""Callback that writes config.yaml and provenance.json when training starts, and metrics.json at the end."""

import contextlib
import math
import re
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from torch import Tensor

from lit_engine._lightning import (
    has_validated,
    logged_steps,
    logged_values,
    scales_loss,
    set_ended,
    set_root_dir,
)
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.data.fingerprint import fingerprints
from lit_engine.data.module import accumulation_steps
from lit_engine.distributed.processes import all_gathered, measure_peak_memory, print_once, replicas, warn_once
from lit_engine.errors import NonFiniteError, RunError, UserError, first_of
from lit_engine.loggers.metrics_csv import MetricsCSV, format_significant
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import COUNTERS, INTERVAL, is_detail, is_loss, recorded_name, split_stage, strip_stage
from lit_engine.run.options import iterate_changes
from lit_engine.training.exact import totals_of
from lit_engine.training.task import Task

RATE = re.compile(r"lr([/-].*)?")  # learning rates logged by a task or by Lightning's LearningRateMonitor


class RunRecord(Callback):
    """Callback that writes the final metrics and number of samples of `fit`, `validate` and `test` to metrics.json.

    If the loss is NaN or infinite, the callback also stops training before the weights are saved in a checkpoint.

    Args:
        run: the run directory of this process. All processes will use the directory of the first process.
        config: the text of config.yaml, which must be the same in all processes.
        metrics: the logger of metrics.csv.

    Raises:
        UserError: the loss is not finite at the end of an epoch or validation, or a monitored metric is missing.

    Attributes:
        started: whether training has started. A new run directory is deleted if training never starts.
        provenance: entry for provenance.json, which is written when training starts. Neither provenance.json nor
            config.yaml changes if the run is rejected or already finished.
        hyper_parameters: hyperparameters of the model as plain data, which are stored in checkpoints.
        is_unchanged: whether the run is resumed with unchanged options.
        stopped_early: the reason why early stopping ended the run, or None.
    """

    def __init__(self, run: RunDir, config: str = "", metrics: MetricsCSV | None = None) -> None:
        self.run, self.config, self.metrics = run, config, metrics
        self.provenance: dict[str, Any] | None = None
        self.hyper_parameters: dict[str, Any] = {}
        self.started, self.is_unchanged = False, False
        self.stopped_early: str | None = None
        self._stopped = False  # whether a stop had been requested when the checkpoint was saved
        self._known: dict[str, Any] = {}  # the latest metrics stored in the checkpoint
        self._logged: set[str] = set()  # names of the logged training metrics
        self._trained: dict[str, float] = {}  # the latest training metrics; validation may log the same names
        self._validated: dict[str, float] = {}  # metrics of the latest validation, by recorded name
        self._ended: dict[str, int] = {}  # number of steps and epochs if the run ended mid-epoch
        self.changed: list[str] = []  # options whose values have changed since training
        self._start = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the same run directory in all processes.

        Raises:
            UserError: the processes have different configs.
        """
        path, config = trainer.strategy.broadcast((str(self.run.path), self.config))
        set_root_dir(trainer, path)
        self.run = RunDir(Path(path))
        for one in trainer.checkpoint_callbacks:
            # By default, Lightning saves checkpoints in the folder of the first logger.
            if isinstance(one, ModelCheckpoint):
                one.dirpath = one.dirpath or str(self.run.checkpoints)
                one.save_last = False  # Lightning's last.ckpt is the newest of the best checkpoints
        if self.metrics is not None:
            self.metrics.stage = lambda: getattr(trainer.state.stage, "dataloader_prefix", "train")
            self.metrics.step = lambda: logged_steps(trainer)
        if not trainer.strategy.reduce_boolean_decision(config == self.config):
            found = iterate_changes(yaml.safe_load(config), yaml.safe_load(self.config))
            different = [f"{key} is {here} here and {first} on rank 0" for key, first, here in found]
            raise UserError("; ".join(["the processes of this run have different configs", *different]))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the timer. If the module or early stopping had already stopped a resumed run, stop it again."""
        if not trainer.enable_validation:
            _check_watched(trainer, pl_module)
        self._start = perf_counter()
        if self._stopped and self.is_unchanged:
            trainer.should_stop = True
        for one in trainer.early_stopping_callbacks:
            exhausted = one.stopping_reason == EarlyStoppingReason.PATIENCE_EXHAUSTED
            if (one.stopped_epoch > 0 and not exhausted) or one.wait_count >= max(1, one.patience):
                trainer.should_stop = True

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._begin(trainer)  # the run may be resumed mid-epoch

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._begin(trainer)

    def _begin(self, trainer: Trainer) -> None:
        """Write config.yaml and provenance.json before the first checkpoint is saved."""
        if self.started:
            return
        if trainer.is_global_zero and self.provenance is not None:
            self.provenance["data"] = fingerprints(trainer)
            self._warn_of_changed_data(trainer)
            self.run.describe(self.config, {**self.provenance, "status": None})  # `record_exit` sets the status
            if tables := self.run.drop_evaluations():
                print_once(f"deleted predictions, which were made with earlier weights: {first_of(tables)}")
        self.started = True

    def _warn_of_changed_data(self, trainer: Trainer) -> None:
        """Warn if the splits of a resumed run have changed even though the data module's options are the same."""
        before, now = self.run.last_entry(), self.provenance or {}
        has_splits = hasattr(trainer.datamodule, "splits")  # type: ignore[attr-defined]
        if not has_splits or before.get("versions") != now.get("versions"):
            return
        changed = [name for name, found in now["data"].items() if before.get("data", {}).get(name, found) != found]
        if changed and self.run.config().get("data") == yaml.safe_load(self.config).get("data"):
            warn_once(f"warning: the data changed since the run was started: {', '.join(changed)}")

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        checkpoint["processes"], checkpoint["replicas"] = trainer.world_size, replicas(trainer).size
        checkpoint["should_stop"] = trainer.should_stop
        if self.hyper_parameters:
            checkpoint["hyper_parameters"] = self.hyper_parameters
        # Omit hyperparameters that are not plain data. They are in config.yaml.
        if not _is_plain(checkpoint.get("datamodule_hyper_parameters")):
            del checkpoint["datamodule_hyper_parameters"]
        checkpoint["logged"] = {"train": sorted(self._logged), "last": self._trained, "val": self._validated}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            for one in trainer.early_stopping_callbacks:  # a changed patience replaces the saved one
                checkpoint["callbacks"].get(one.state_key, {})["patience"] = one.patience
            self._known, self._ended = checkpoint.get("metrics", {}), checkpoint.get("ended", {})
            self._stopped = checkpoint.get("should_stop", False)
            logged = checkpoint.get("logged", {"train": [], "val": {}})
            self._logged, self._validated = set(logged["train"]), logged["val"]
            self._trained = logged.get("last", {})
            before, now = checkpoint.get("processes", trainer.world_size), trainer.world_size
            if before != now:
                samples = _describe_step_size(trainer, checkpoint.get("replicas", before))
                print_once(f"number of processes: {before} in the checkpoint, {now} now; {samples}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that the training loss is finite, unless a gradient scaler skips non-finite steps."""
        self._begin(trainer)  # the run may be resumed after the last batch
        found = logged_values(trainer)
        self._logged |= found.keys()
        self._trained = _numbers(found, "train")
        if scales_loss(trainer):
            return
        if (running := totals_of(pl_module)) is not None:
            means = running.reduce(pl_module).means()
            _check_losses(trainer, {f"train/{name}": mean for name, mean in means.items()})
        _check_losses(trainer, found)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        callbacks = trainer.early_stopping_callbacks
        reasons = [x.stopping_reason_message for x in callbacks if x.stopping_reason != EarlyStoppingReason.NOT_STOPPED]
        # Without `sync_dist`, metrics differ between processes, so any of them may trigger the stop.
        by_process = all_gathered([next(filter(None, reasons), "")], trainer)
        if self.metrics is not None and self.started:
            self.metrics.save()
        is_complete = trainer.current_epoch == trainer.max_epochs or trainer.global_step == trainer.max_steps
        if not is_complete and trainer.should_stop:  # `min_epochs` may have postponed the stop
            # such as `Monitored metric val_loss did not improve in the last 3 records. Best score: …`
            why = [one.removeprefix("Monitored metric ").partition(". ")[0] for one in by_process]
            others = (f"{one} in process {number}" for number, one in enumerate(why) if one)
            self.stopped_early = why[0] or next(others, None)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the last epoch and the best checkpoint, even if an earlier process was killed after the last epoch."""
        if not self.started and self._ended:
            set_ended(trainer, self._ended["steps"], self._ended["epochs"])
        if fast_dev_run(trainer):
            return
        if not self.started and trainer.ckpt_path is None:
            if trainer.num_training_batches == 0 and trainer.limit_train_batches != 0:
                raise UserError("the training dataloader is empty: check the number of training samples and drop_last")
            raise UserError("there are no training steps: check trainer.max_epochs, max_steps and limit_train_batches")
        if not trainer.is_global_zero:
            return
        if not self.started:
            if self.run.metrics().get("fit", {}).get("steps") == trainer.global_step:
                return
            trainer.callback_metrics.update(self._known)
        values: dict[str, Any] = {
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            # Without training, provenance.json has the duration of the process that trained the last epoch.
            **({"seconds": round(perf_counter() - self._start, 2)} if self.started else {}),
            "parameters": sum(parameter.numel() for parameter in pl_module.parameters()),
            **self._training_metrics(trainer),
            # leave out metrics of an earlier epoch if the last epoch was not validated
            **(self._validated if has_validated(trainer) else {}),
        }
        best = best_checkpoint(trainer)
        if best is not None and best.best_model_score is not None:
            path, folder = Path(best.best_model_path), self.run.checkpoints
            values["best_checkpoint"] = str(path.relative_to(folder) if path.is_relative_to(folder) else path)
            if best.best_model_score.isfinite():  # the metric may have been NaN in every epoch
                values[f"best {best.monitor}"] = best.best_model_score.item()
                values["best_mode"] = best.mode
        self.run.drop_evaluations()  # another process may have tested the run while it was being trained
        self.run.record("fit", values)

    def _training_metrics(self, trainer: Trainer) -> dict[str, float]:
        """Return the latest training metrics without learning rates."""
        metrics = trainer.callback_metrics
        # Metrics of the module's `on_train_epoch_end` are not in `_logged`, because the hooks of callbacks run first.
        names = [
            name
            for name in metrics
            if (parts := split_stage(name))[0] == "train"
            or name in self._logged
            or (not parts[0] and not {recorded_name(one, "val") for one in (name, parts[1])} & self._validated.keys())
        ]
        # Lightning adds NAME_step and NAME_epoch to a metric that is logged both per step and per epoch
        single = [name for name in names if (plain := INTERVAL.sub("", name)) == name or plain not in names]
        found = _numbers({name: metrics[name] for name in single if not RATE.fullmatch(name)}, "train")
        return {name: self._trained.get(name, value) for name, value in found.items()}

    def record_exit(self, status: int) -> None:
        """Record the exit status of `fit`, unless the run had already finished or the disk is full."""
        with contextlib.suppress(OSError, RunError):
            if self.provenance is not None and self.started:
                peak = (memory := measure_peak_memory()).get("cuda", memory["process"])
                measured = {"seconds": round(perf_counter() - self._start, 2), "peak_memory_gb": round(peak / 1e9, 3)}
                self.run.end(status, **measured, stopped_early=self.stopped_early, data=self.provenance["data"])
            elif self.provenance is not None and status == 0:  # an earlier process was killed after the last step
                self.run.end(0)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._record_evaluation(trainer, pl_module, "validate", "val")
            return
        _check_watched(trainer, pl_module)
        if not trainer.sanity_checking:
            self._validated = _numbers(logged_values(trainer), "val")
            _check_losses(trainer, self._validated)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the fingerprint of the test split, because training does not always load this split."""
        if self.provenance is not None and self.started and trainer.is_global_zero:
            self.provenance["data"] |= fingerprints(trainer, self.provenance["data"])

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._record_evaluation(trainer, pl_module, "test", "test")

    def _record_evaluation(self, trainer: Trainer, pl_module: LightningModule, section: str, split: str) -> None:
        values = _numbers(logged_values(trainer), split)
        if not trainer.is_global_zero or fast_dev_run(trainer):
            return
        size_of = getattr(trainer.datamodule, "size_of", None)  # type: ignore[attr-defined]
        samples = values.get(f"{split}/samples")
        if callable(size_of) and isinstance(samples, int) and samples != size_of(split):  # floats are sums of weights
            print(f"warning: {section}: {samples} of {size_of(split)} samples were evaluated", file=sys.stderr)
            values[f"{split}/dataset_size"] = size_of(split)
        checkpoint = str(trainer.ckpt_path) if trainer.ckpt_path else None
        changed = {"changed": self.changed} if self.changed else {}
        notes = pl_module.notes if isinstance(pl_module, Task) else {}
        self.run.record(section, {"checkpoint": checkpoint, **changed, **values, **notes})


def _describe_step_size(trainer: Trainer, before: int) -> str:
    """Describe the change in samples per step since the run used `before` model replicas."""
    now = replicas(trainer).size
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    if getattr(data, "global_batch_size", None):
        return f"a step still has {data.global_batch_size} samples"
    each = getattr(data, "batch_size", None)
    if not isinstance(each, int):
        return "the number of samples per step changes by the same factor"
    each *= accumulation_steps(trainer)
    if before == now:
        return f"a step still has {each * now} samples"
    return (
        f"a step had {each} × {before} = {each * before} samples and now has {each * now}; "
        "set data.global_batch_size to prevent this"
    )


def best_checkpoint(trainer: Trainer) -> ModelCheckpoint | None:
    """Return the first checkpoint callback that monitors a metric, or None."""
    found = (one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint) and one.monitor)
    return next(found, None)


def monitored_metrics(trainer: Trainer) -> list[str]:
    """Return the metrics that callbacks monitor to choose a checkpoint or to stop early."""
    callbacks = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks]
    return [str(name) for name in (getattr(callback, "monitor", None) for callback in callbacks) if name]


def _check_watched(trainer: Trainer, module: LightningModule) -> None:
    """Raise UserError if a metric is monitored but not logged in validation.

    The sanity check only reports likely typos, because its few batches may not log all metrics. If the module is not a
    task, validation also reports only typos, because the metric may be logged at the end of a training epoch.
    """
    schedules = [config for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    watching = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks, *schedules]
    for name in [str(getattr(one, "monitor", None)) for one in watching if getattr(one, "strict", True)]:
        if split_stage(name)[0] != "val" or name in trainer.callback_metrics:
            continue
        there = sorted(known for known in trainer.callback_metrics if not is_detail(known)) or ["none (no validation)"]
        slip = not is_detail(name) and get_close_matches(name, there, cutoff=0.7)
        if slip or (isinstance(module, Task) and not trainer.sanity_checking):
            message = f"monitor: {name} is not logged in validation. Logged metrics: {', '.join(there)}"
            if isinstance(module, Task) or not trainer.sanity_checking:
                raise UserError(message)
            warn_once(f"warning: {message}")  # the module may not log this metric in the sanity check


def get_headline_metric(module: Any) -> str | None:
    """Return the main metric of a task, which is the last of its `headline_metrics`, or None for other modules."""
    return next(reversed(getattr(module, "headline_metrics", ())), None)


def join_metrics(values: Mapping[str, float], module: Any) -> str:
    """Format values as one line. The validation or test value of the task's main metric comes first.

    Values have four decimals, or seven significant digits if they are at least 1000.
    """
    headline = get_headline_metric(module)
    names = sorted(values, key=lambda name: strip_stage(name) != headline or split_stage(name)[0] == "train")
    return "  ".join(f"{n} {values[n]:.4f}" if abs(values[n]) < 1000 else f"{n} {values[n]:.7g}" for n in names)


def format_metrics(metrics: Mapping[str, Tensor], module: Any) -> str:
    """Format the metrics of an evaluation as one line, without per-class metrics."""
    # some tasks log `epoch` or `step` to set the step of their other metrics
    values = {name: value.item() for name, value in metrics.items() if not is_detail(name) and name not in COUNTERS}
    samples = values.pop(next((name for name in values if name.endswith("/samples")), ""), None)
    count = "" if samples is None else f"  ({samples:.0f} samples)"
    return join_metrics(values, module) + count


def _check_losses(trainer: Trainer, metrics: Mapping[str, Any]) -> None:
    for name, value in metrics.items():
        if is_loss(name) and not math.isfinite(value):
            raise NonFiniteError(
                f"epoch {trainer.current_epoch}: {name} is {float(value)}. "
                "Start a new run with a lower learning rate, a warm-up or trainer.gradient_clip_val. "
                "The NaNGuard callback reports the step and the samples"
            )


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of numbers, strings, None, lists, tuples and dicts."""
    if type(value) in (dict, list, tuple):
        return all(map(_is_plain, [*value, *value.values()] if isinstance(value, dict) else value))
    return value is None or type(value) in (bool, int, float, str)


def _numbers(metrics: Mapping[str, Tensor], stage: str) -> dict[str, float]:
    values = {recorded_name(name, stage): value.item() for name, value in metrics.items() if name not in COUNTERS}
    # Round to six digits, because further digits differ between machines.
    return {
        name: int(value) if name.endswith("/samples") and value % 1 == 0 else float(format_significant(value, 6))
        for name, value in values.items()
    }
