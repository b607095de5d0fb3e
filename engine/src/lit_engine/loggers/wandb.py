"""Weights & Biases logger for the `wandb` overlay. Its errors never stop a training run."""

import contextlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from lit_engine.project import current
from lit_engine.run.directory import RunDir, write_text
from lit_engine.run.metric_names import get_stage, is_detail

# W&B should not print sparklines of per-class metrics at the end.
QUIET = {"max_end_of_run_history_metrics": 0, "max_end_of_run_summary_metrics": 0}


def guard(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method of the logger. After an error, logging to W&B is turned off and training continues."""

    @wraps(method)
    def call(self: "WandbLogger", *args: Any, **kwargs: Any) -> Any:
        try:
            return None if self.lost else method(self, *args, **kwargs)
        except Exception as error:  # wandb raises its own errors, TimeoutError, OSError and more
            print(f"note: W&B has failed ({error}); the run continues without W&B", file=sys.stderr)
            self.lost = True
            with contextlib.suppress(Exception):  # without this call, wandb prints a traceback when the process exits
                import_module("wandb").teardown()

    return call


class WandbLogger(LightningWandbLogger):
    """Lightning's W&B logger, adapted to run directories. The W&B id is stored in `wandb.json` for resuming.

    Args:
        save_dir: the run directory, written as `{run_dir}` in configs.
        project: name of the W&B project; default: the name of the package.
        name: name of the run; default: the last two parts of its path.
        entity: user or team that owns the project.
        group: group of the run; default: WANDB_RUN_GROUP, or the name of the config.
        tags: labels of the run.
        notes: description of the run.
        mode: `auto` is online if there is an API key, and offline otherwise. WANDB_MODE overrides this mode.
        init_timeout: seconds to wait for the server before the run is logged offline.
        finish_timeout: seconds to wait for uploads at the end. `wandb sync` can upload the remaining data later.
        log_checkpoints: upload the best checkpoint as an artifact when training ends.
    """

    def __init__(
        self,
        save_dir: str = ".",
        project: str | None = None,
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        mode: Literal["auto", "online", "offline"] = "auto",
        init_timeout: float = 15.0,
        finish_timeout: float = 60.0,
        log_checkpoints: bool = False,
    ) -> None:
        self.folder = Path(save_dir)
        self.mode: Any = os.environ.get("WANDB_MODE") or mode
        self.lost = self.mode == "disabled"
        self.description: dict[str, Any] = {}  # config and provenance of the run
        self.command: str | None = None  # the command that creates the run
        self.monitor: tuple[str, str] | None = None  # metric that selects the best checkpoint, and its mode
        self._validated: dict[str, Any] = {}  # the latest validation metrics
        self.record = self.folder / "wandb.json"
        self._received: dict[str, Any] | None = None  # the server's summary, kept until missing rows are resent
        options: dict[str, Any] = {
            "project": project or current().name,
            "entity": entity,
            "group": group or os.environ.get("WANDB_RUN_GROUP") or self.folder.absolute().parent.name,
            "notes": notes,
            "tags": list(tags) or None,
            "name": name or "/".join(self.folder.parts[-2:]),
        }
        if self.record.exists():
            recorded = RunDir(self.folder).read_json("wandb.json", {})
            options |= {"group": group, "name": name}  # the server keeps its value if ours is None
            options |= {key: value for key, value in recorded.items() if value}
        super().__init__(
            save_dir=save_dir,
            log_model=log_checkpoints,
            settings={"init_timeout": init_timeout, "finish_timeout": finish_timeout, **QUIET},
            **options,
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, started on first use."""
        if self._experiment is None:
            self._start()
        return DummyExperiment() if self.lost else self._experiment

    @guard
    def _start(self) -> None:
        import wandb

        (self.folder / "wandb").mkdir(parents=True, exist_ok=True)  # without this folder, wandb writes to /tmp
        self._wandb_init.pop("anonymous", None)  # wandb would warn that it is deprecated
        if not self.record.exists():
            self._wandb_init["job_type"] = self.command
        if self.mode == "auto":
            self.mode = "online" if wandb.login(prompt=False, verify=False) else "offline"
        try:
            run = wandb.init(mode=self.mode, **self._wandb_init)
        except Exception as error:
            print(f"note: W&B does not respond ({error}); upload the run later with `wandb sync`", file=sys.stderr)
            wandb.teardown()
            run = wandb.init(mode="offline", **self._wandb_init)
        self._experiment = run
        forks = "fork" in self.description.get("provenance", {})  # a fork also sends the rows of its parent
        self._received = dict(run.summary) if run.resumed else {} if forks else None
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        if self.monitor is not None:
            name, mode = self.monitor
            run.define_metric(name, step_metric="trainer/global_step", step_sync=True, summary=f"{mode},last")
        run.config.update(self.description, allow_val_change=True)
        # a W&B agent may have chosen a different entity and project
        write_text(self.record, json.dumps({"id": run.id, "entity": run.entity, "project": run.project}) + "\n")

    @rank_zero_only
    @guard
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log metrics. If `command` is None (a separate evaluation), they are logged at the run's last step."""
        if self._experiment is None:
            self._start()
        evaluates = self.command is None
        self._resend_rows(before=math.inf if evaluates or step is None else step)
        if evaluates and (rows := RunDir(self.folder).history()[1]):
            step = max(int(row["step"]) for row in rows)
            metrics = {name: value for name, value in metrics.items() if name != "epoch"}
        super().log_metrics(metrics, step)
        validated = {name: value for name, value in metrics.items() if get_stage(name) == "val" and not is_detail(name)}
        if validated:
            self._validated = {**validated, **({"epoch": metrics["epoch"]} if "epoch" in metrics else {})}

    @rank_zero_only
    @guard
    def after_save_checkpoint(self, checkpoint_callback: ModelCheckpoint) -> None:
        """Store the validation metrics of the best epoch in the summary, as `best.NAME`."""
        super().after_save_checkpoint(checkpoint_callback)
        best, value = checkpoint_callback.best_model_score, self._validated.get(str(checkpoint_callback.monitor))
        is_first = self.monitor == (str(checkpoint_callback.monitor), checkpoint_callback.mode)
        if is_first and self._experiment is not None and best is not None and _is_close(value, float(best)):
            self._experiment.summary.update({"best": self._validated})

    def _resend_rows(self, before: float) -> None:
        """Log the rows of metrics.csv that the server did not receive because the process was killed."""
        received, self._received = self._received, None
        if received is None:
            return
        last = received.get("trainer/global_step", -1)
        for row in RunDir(self.folder).history()[1]:
            step = int(row["step"])
            values = {name: float(text) for name, text in row.items() if text and name != "step"}
            # A row is logged in several parts, and the server may have received only some of them.
            complete = step == last and all(_is_close(received.get(name), value) for name, value in values.items())
            if last <= step < before and not complete:
                super().log_metrics(values, step)

    log_hyperparams = guard(LightningWandbLogger.log_hyperparams)
    log_table = guard(LightningWandbLogger.log_table)
    log_image = guard(LightningWandbLogger.log_image)
    finalize = guard(LightningWandbLogger.finalize)

    @rank_zero_only
    @guard
    def finish(self, exit_code: int) -> None:
        """Mark the W&B run as finished if the exit code is 0, and as failed otherwise."""
        if self._experiment is not None:
            # Missing rows are resent before the first new metric. If the resumed run logged nothing, resend them now.
            self._resend_rows(before=math.inf)
            run, self._experiment = self._experiment, None
            run.finish(exit_code=exit_code)


def _is_close(received: Any, value: float) -> bool:
    """Return whether the received value matches within a relative tolerance of 1e-6. W&B stores NaN as a string."""
    if isinstance(received, Mapping):  # the summary of the monitored metric contains `last` and the best value
        received = received.get("last")
    return isinstance(received, int | float) and math.isclose(received, value, rel_tol=1e-6)
