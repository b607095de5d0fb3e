"""What a run writes down of itself: metrics.csv while it trains, metrics.json at the end, with what belongs to it."""

import contextlib
import csv
import io
import math
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, TextIO

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from lit_engine._lightning import has_validated, logged_values, scales_loss, set_ended, set_root_dir, set_should_stop
from lit_engine.distributed.processes import print_once
from lit_engine.errors import RunError, UserError
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.metric_names import INTERVAL, base_of, is_detail, recorded_name, split_stage
from lit_engine.run.options import iterate_changes
from lit_engine.training.exact import totals_of

SAVE_SECONDS = 10.0
COUNTERS = ("epoch", "step")
RATE = re.compile(r"lr([/-].*)?")  # learning rates, of tasks and of Lightning's LearningRateMonitor


class MetricsCSV(Logger):
    """Writes `metrics.csv`; what is logged at one step (training, then validation) becomes one row.

    Lightning saves at the end of epochs; in longer ones what is logged is in the file within about ten seconds.

    Lightning's CSVLogger deletes the file of an earlier run in the same folder, and so the history of a resumed run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.file = Path(folder) / "metrics.csv"
        self._columns: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._written = 0  # rows that are in the file and final
        self._end = 0  # where they end in the file, in bytes
        self._saved = monotonic()
        self._changed = False  # a run that has ended stays as it is
        self.stage: Callable[[], str] = lambda: "train"  # that logs now

    def state_dict(self) -> dict[str, Any]:
        """What belongs to a checkpoint: the number of rows, and the last one, which may still grow."""
        return {"rows": len(self._rows), "last": self._rows[-1:]}

    def read(self) -> None:
        """Takes up the file of a run that is resumed.

        Raises:
            RunError: it is broken.
        """
        self._columns, rows = RunDir(self.file.parent).history()
        self._rows = [{**row, "step": int(row["step"])} for row in rows]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes back to where a checkpoint was saved: the training repeats the later rows."""
        self._rows = [*self._rows[: state["rows"] - 1], *state["last"]] if state["rows"] else []
        known = [name for row in self._rows[-1:] for name in row]
        self._columns = list(dict.fromkeys([*self._columns, *known]))

    @property
    def name(self) -> str:
        return ""  # the run directory is the folder itself

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.file.parent)

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They are in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        step, self._changed, stage = step or 0, True, self.stage()
        metrics = {n if n in COUNTERS else recorded_name(n, stage): value for n, value in metrics.items()}
        if not self._rows or int(self._rows[-1]["step"]) != step:
            self._rows.append({"step": step})
        self._rows[-1].update({k: _rounded(v, 7) if isinstance(v, float) else v for k, v in metrics.items()})
        new = [name for name in metrics if name not in self._columns]
        if new or not self._columns:
            leading = [c for c in COUNTERS if c not in self._columns]
            self._columns += leading + [name for name in new if name not in COUNTERS]
            self._written = self._end = 0  # another header: the whole file is written
        if monotonic() - self._saved >= SAVE_SECONDS:
            with contextlib.suppress(OSError):  # a full disk: it is told when the run is saved
                self.save()

    @rank_zero_only
    def save(self) -> None:
        """Writes what is new; the last row may still grow and is overwritten then."""
        self._saved = monotonic()
        if not self._changed:
            return
        self._changed = False
        if not self._end:
            header = io.StringIO()
            csv.DictWriter(header, self._columns, lineterminator="\n").writeheader()
            self._write(header, self._rows[:-1])
            write_text(self.file, header.getvalue())  # whole or not at all: no earlier row is lost
            self._written, self._end = len(self._rows) - 1, len(header.getvalue().encode())
        with self.file.open("r+", newline="", encoding="utf-8") as file:
            file.seek(self._end)
            file.truncate()
            self._write(file, self._rows[self._written : -1])
            file.flush()
            self._end, self._written = file.tell(), len(self._rows) - 1
            self._write(file, self._rows[-1:])

    def _write(self, file: TextIO, rows: list[dict[str, Any]]) -> None:
        csv.DictWriter(file, self._columns, restval="", lineterminator="\n").writerows(rows)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


class RunRecord(Callback):
    """Writes the final numbers of `fit`, `validate` and `test` to metrics.json, with the number of samples.

    Ends a training whose loss is no longer a number, before a checkpoint of such weights is saved.

    Args:
        run: the run directory of this process; all processes use that of the first.
        config: text of config.yaml, which must be the same in all processes.
        metrics: metrics.csv, which checkpoints are in step with.

    Raises:
        UserError: from the end of an epoch or validation, see above.

    Attributes:
        started: whether training began, so that the run holds something.
        provenance: is added to the run once it has begun, with the config: a run that is refused, or that has ended,
            keeps what it has.
        hyper_parameters: of the model, as plain data for its checkpoints.
    """

    def __init__(self, run: RunDir, config: str = "", metrics: MetricsCSV | None = None) -> None:
        self.run, self.config, self.metrics = run, config, metrics
        self.provenance: dict[str, Any] | None = None
        self.hyper_parameters: dict[str, Any] = {}
        self.started = False
        # in the checkpoint: the newest metrics, and the state of metrics.csv
        self._known: dict[str, Any] = {}
        self._logged: set[str] = set()  # names of metrics that the training has logged
        self._validated: dict[str, float] = {}  # the metrics of the newest validation, as they are recorded
        self._ended: dict[str, int] = {}  # steps and epochs that loggers knew, if the run ended within an epoch
        self._resumed: dict[str, Any] | None = None
        self.checkpoint: Path | None = None  # whose weights are evaluated
        self.changed: list[str] = []  # in the model since its training
        self._start = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Agrees on one directory.

        Raises:
            UserError: the processes were given different configs.
        """
        path, config = trainer.strategy.broadcast((str(self.run.path), self.config))
        set_root_dir(trainer, path)
        self.run = RunDir(Path(path))
        if self.metrics is not None:
            self.metrics.stage = lambda: stage_now(trainer)
        if not trainer.strategy.reduce_boolean_decision(config == self.config):
            found = iterate_changes(yaml.safe_load(config), yaml.safe_load(self.config))
            different = [f"{key.lstrip('.')} is {here} here and {first} in the first" for key, first, here in found]
            raise UserError("; ".join(["the processes of this run have different configs", *different]))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock; a run that was resumed after it had been stopped early has nothing more to do."""
        if not trainer.enable_validation:
            _check_watched(trainer)
        self._start = perf_counter()
        for one in trainer.early_stopping_callbacks:
            if one.stopped_epoch > 0 or one.wait_count >= max(1, one.patience):
                set_should_stop(trainer, True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self.started:  # of a run that is resumed within an epoch
            self._begin(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._begin(trainer)

    def _begin(self, trainer: Trainer) -> None:
        """Describes the run before its first checkpoint is saved."""
        if not self.started and trainer.is_global_zero:
            if self.provenance is not None:
                self.run.describe(self.config, {**self.provenance, "status": None})  # until it ends: `ended`
            if self.metrics is not None and self._resumed is not None:
                self.metrics.load_state_dict(self._resumed)
        self.started = True

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Writes metrics.csv up to here."""
        if self.metrics is not None:
            self.metrics.save()
            checkpoint["metrics_csv"] = self.metrics.state_dict()
        checkpoint["processes"] = trainer.world_size
        if self.hyper_parameters:
            checkpoint["hyper_parameters"] = self.hyper_parameters
        checkpoint.pop("datamodule_hyper_parameters", None)  # config.yaml has them; they may contain objects
        checkpoint["logged"] = {"train": sorted(self._logged), "val": self._validated}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == "fit":
            self._known, self._ended = checkpoint.get("metrics", {}), checkpoint.get("ended", {})
            logged = checkpoint.get("logged", {"train": [], "val": {}})
            self._logged, self._validated = set(logged["train"]), logged["val"]
            self._resumed = checkpoint.get("metrics_csv")  # None of a run without the file
            if self.metrics is not None and trainer.is_global_zero:
                self.metrics.read()
            before, now = checkpoint.get("processes", trainer.world_size), trainer.world_size
            if before != now:
                print_once(f"processes: {before} when it was saved, {now} now; {_samples(trainer, before)}")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Looks at the training loss; a gradient scaler leaves out the steps of one that is not finite."""
        found = logged_values(trainer)
        self._logged |= found.keys()
        if scales_loss(trainer):
            return
        if (running := totals_of(pl_module)) is not None:
            _check_finite(trainer, "train/loss", running.reduce(pl_module).means().get("loss"))
        for name, value in found.items():
            if base_of(name) == "loss":
                _check_finite(trainer, name, value)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.metrics is not None and self.started:
            self.metrics.save()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Records the last epoch and which checkpoint is best, also of a run that was killed after its last epoch."""
        if not self.started and self._ended:
            set_ended(trainer, self._ended["steps"], self._ended["epochs"])
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if not self.started and trainer.ckpt_path is None:
            raise UserError("no step to train: see trainer.max_epochs, max_steps and limit_train_batches")
        if not trainer.is_global_zero:
            return
        if not self.started:
            if self.run.metrics().get("fit", {}).get("steps") == trainer.global_step:
                return
            trainer.callback_metrics.update(self._known)
        values: dict[str, Any] = {
            "epochs": trainer.current_epoch,
            "steps": trainer.global_step,
            "seconds": round(perf_counter() - self._start, 2),
            "parameters": sum(parameter.numel() for parameter in pl_module.parameters()),
            **self._trained(trainer),
            # without those of an earlier epoch, where the last one was cut short
            **(self._validated if has_validated(trainer) else {}),
        }
        best = best_checkpoint(trainer)
        if best is not None and best.best_model_score is not None:
            values["best_checkpoint"] = Path(best.best_model_path).name
            values[f"best {best.monitor}"] = best.best_model_score.item()
        self.run.record("fit", values)

    def _trained(self, trainer: Trainer) -> dict[str, float]:
        """The newest metrics of the training, but for learning rates."""
        metrics = trainer.callback_metrics
        names = [name for name in metrics if split_stage(name)[0] == "train" or name in self._logged]
        # Lightning adds NAME_step and NAME_epoch to a metric that is logged by step and by epoch
        single = [name for name in names if (plain := INTERVAL.sub("", name)) == name or plain not in names]
        return _numbers({name: metrics[name] for name in single if not RATE.fullmatch(name)}, "train")

    def ended(self, status: int) -> None:
        """Records how the `fit` ended; does nothing if it had ended before, or the disk is full."""
        with contextlib.suppress(OSError, RunError):
            if self.provenance is not None and self.started:
                self.run.end(status, round(perf_counter() - self._start, 2))
            elif self.provenance is not None and status == 0:  # of one killed after its last step: nothing was left
                self.run.end(0)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._evaluated(trainer, pl_module, "validate", "val")
            return
        _check_watched(trainer)
        if not trainer.sanity_checking:
            self._validated = _numbers(logged_values(trainer), "val")
            for name, value in self._validated.items():
                if base_of(name) == "loss":
                    _check_finite(trainer, name, value)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._evaluated(trainer, pl_module, "test", "test")

    def _evaluated(self, trainer: Trainer, pl_module: LightningModule, section: str, split: str) -> None:
        values = _numbers(logged_values(trainer), split)
        if not trainer.is_global_zero:
            return
        size_of = getattr(trainer.datamodule, "size_of", None)  # type: ignore[attr-defined]
        samples = values.get(f"{split}/samples")
        if size_of is not None and samples is not None and samples != size_of(split):
            print(f"warning: {section}: {samples:.0f} of {size_of(split)} samples were evaluated", file=sys.stderr)
            values[f"{split}/dataset_size"] = size_of(split)
        checkpoint = str(self.checkpoint) if self.checkpoint else None
        changed = {"changed": self.changed} if self.changed else {}
        self.run.record(section, {"checkpoint": checkpoint, **changed, **values, **getattr(pl_module, "notes", {})})


def _samples(trainer: Trainer, before: int) -> str:
    """What becomes of the samples of a step if there were another number of processes `before`."""
    data: Any = trainer.datamodule  # type: ignore[attr-defined]
    if getattr(data, "global_batch_size", None):
        return f"a step keeps its {data.global_batch_size} samples"
    each = getattr(data, "batch_size", None)
    if not isinstance(each, int):
        return "a step has as many times more or fewer samples"
    each *= trainer.accumulate_grad_batches
    return (
        f"a step had {each} × {before} = {each * before} samples and has {each * trainer.world_size}; "
        "data.global_batch_size would keep them"
    )


def best_checkpoint(trainer: Trainer) -> ModelCheckpoint | None:
    """The callback that follows a metric, if there is one."""
    callbacks = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.monitor]
    return callbacks[0] if callbacks else None


def monitored(trainer: Trainer) -> list[str]:
    """The metrics that callbacks follow: a checkpoint is chosen by them, or the training stopped."""
    callbacks = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks]
    return [str(name) for name in (getattr(callback, "monitor", None) for callback in callbacks) if name]


def _check_watched(trainer: Trainer) -> None:
    """Refuses a metric that the validation does not log.

    Before the first epoch only a slip of the pen: the few batches that are looked at then may lack others.
    """
    watching = [*trainer.checkpoint_callbacks, *trainer.early_stopping_callbacks, *trainer.lr_scheduler_configs]
    for name in [str(getattr(one, "monitor", None)) for one in watching if getattr(one, "strict", True)]:
        if split_stage(name)[0] != "val" or name in trainer.callback_metrics:
            continue
        there = sorted(known for known in trainer.callback_metrics if not is_detail(known)) or ["none (no validation)"]
        slip = not is_detail(name) and get_close_matches(name, there, cutoff=0.7)
        if slip or not trainer.sanity_checking:
            raise UserError(f"monitor: {name} is no metric of the validation; there are: {', '.join(there)}")


def one_line(metrics: Mapping[str, Tensor]) -> str:
    """The metrics of an evaluation as one line, without those of each class."""
    # some tasks log epoch or step to set the step of the other values
    values = {name: value.item() for name, value in metrics.items() if not is_detail(name) and name not in COUNTERS}
    samples = values.pop(next((name for name in values if name.endswith("/samples")), ""), None)
    count = "" if samples is None else f"  ({samples:.0f} samples)"
    return "  ".join(f"{name} {in_short(value)}" for name, value in values.items()) + count


def in_short(value: float) -> str:
    """Returns the value with four decimals, or from 1000 on with seven digits."""
    return f"{value:.4f}" if abs(value) < 1000 else f"{value:.7g}"


def _rounded(value: float, digits: int) -> str:
    """Returns the value with this many significant digits, or all digits if it is a whole number, such as a count."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:.{digits}g}"


def _check_finite(trainer: Trainer, name: str, value: Any) -> None:
    if value is not None and not math.isfinite(value):
        raise UserError(
            f"epoch {trainer.current_epoch}: {name} is {float(value)}. Start a new run with a lower learning rate, a "
            "warm-up or trainer.gradient_clip_val; the callback NaNGuard names the step and the samples"
        )


def stage_now(trainer: Trainer) -> str:
    """Return the stage that logs now: `train`, `val` or `test`."""
    return "val" if trainer.validating or trainer.sanity_checking else "test" if trainer.testing else "train"


def _numbers(metrics: Mapping[str, Tensor], stage: str) -> dict[str, float]:
    values = {recorded_name(name, stage): value.item() for name, value in metrics.items() if name not in COUNTERS}
    # six digits, because the last ones differ between machines
    return {
        name: int(value) if name.endswith("/samples") else float(_rounded(value, 6)) for name, value in values.items()
    }
