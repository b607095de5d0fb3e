"""The Weights & Biases logger of the overlay `wandb`: Lightning's, for which training neither waits nor ends."""

import contextlib
import csv
import json
import netrc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from .errors import UserError
from .project import PACKAGE
from .run import write_text


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the logger whose errors end the logging, not the training."""

    @wraps(method)
    def call(self: "WandbLogger", *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except UserError:
            raise
        except Exception as error:  # wandb raises its own errors, TimeoutError, OSError and more
            if not self.lost:
                print(f"note: W&B has failed ({_line(error)}); the run goes on without it", file=sys.stderr)
            self.lost = True

    return call


class WandbLogger(LightningWandbLogger):
    """Lightning's logger for one run directory.

    The id of the W&B run is kept in `wandb.json`, so that a resumed run goes on with it. Steps since its checkpoint are
    logged again, with the same values.

    Args:
        save_dir: the run directory, `{run_dir}` in a config.
        project: of W&B.
        name: of the run; default: the last two parts of its path.
        entity: user or team of W&B; default: that of the key.
        group: of the run.
        tags: of the run.
        notes: on the run.
        mode: `auto` is online with a key and offline without; the environment variable WANDB_MODE overrides it.
        init_timeout: seconds to wait for the server; then the run is logged offline.
        finish_timeout: seconds to wait for uploads at the end; `wandb sync` sends the rest.
        log_checkpoints: upload the best checkpoint as an artifact when training ends.

    Raises:
        UserError: when logging begins: `online` was asked for without a key.
    """

    def __init__(
        self,
        save_dir: str = ".",
        project: str = PACKAGE,
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
        self.folder, self.mode, self.lost = Path(save_dir), mode, False
        self.description: dict[str, Any] = {}  # config and provenance of a training
        self.timeouts: dict[str, Any] = {"init_timeout": init_timeout, "finish_timeout": finish_timeout}
        self.record = self.folder / "wandb.json"
        known = json.loads(self.record.read_text()) if self.record.exists() else {}
        own: dict[str, Any] = {
            "entity": known.get("entity") or entity,
            "group": group,
            "notes": notes,
            "tags": list(tags) or None,
        }
        super().__init__(
            name=name or "/".join(self.folder.parts[-2:]),
            save_dir=save_dir,
            project=known.get("project", project),
            id=known.get("id"),
            log_model=log_checkpoints,
            **{key: value for key, value in own.items() if value is not None},
        )

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The W&B run, started on first use."""
        if self._experiment is None and not self.lost:
            self._start()
        return DummyExperiment() if self.lost else self._experiment

    @guarded
    def _start(self) -> None:
        import wandb

        mode: Any = os.environ.get("WANDB_MODE") or self.mode
        key = has_key()
        if mode == "online" and not key:
            raise UserError("online W&B needs a key: `wandb login`, or WANDB_API_KEY; or mode: offline")
        own = self.folder / "wandb"
        own.mkdir(parents=True, exist_ok=True)  # without it wandb writes to /tmp
        for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # artifacts are staged there, not at home
            os.environ.setdefault(variable, str(own.resolve()))
        if mode == "auto":
            mode = "online" if key else "offline"
        options: dict[str, Any] = {**self._wandb_init, "settings": wandb.Settings(**self.timeouts)}
        try:
            run = wandb.init(mode=mode, **options)
        except Exception as error:
            if mode != "online":
                raise
            later = "the run is logged offline, and `wandb sync` sends it later"
            print(f"note: W&B does not answer ({_line(error)}); {later}", file=sys.stderr)
            with contextlib.suppress(Exception):
                wandb.teardown()
            run = wandb.init(mode="offline", **options)
        self._experiment = run
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        run.config.update(self.description, allow_val_change=True)
        # an agent of W&B chooses entity and project
        write_text(self.record, json.dumps({"id": run.id, "entity": run.entity, "project": run.project}) + "\n")

    @rank_zero_only
    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Logs the metrics; an evaluation by itself, to which Lightning gives step 0, at the last step of the run."""
        if not step and (last := self._last_step()):
            metrics, step = {name: value for name, value in metrics.items() if name != "epoch"}, last
        super().log_metrics(metrics, step)

    def _last_step(self) -> int:
        file = self.folder / "metrics.csv"
        lines = file.read_text().splitlines() if file.exists() else []
        return max((int(row["step"]) for row in csv.DictReader(lines)), default=0)

    log_hyperparams = guarded(LightningWandbLogger.log_hyperparams)
    log_table = guarded(LightningWandbLogger.log_table)
    log_image = guarded(LightningWandbLogger.log_image)
    finalize = guarded(LightningWandbLogger.finalize)

    @rank_zero_only
    def finish(self, exit_code: int) -> None:
        """Ends the W&B run: as finished with 0, otherwise as failed."""
        run, self._experiment = self._experiment, None
        if run is not None:
            guarded(lambda _: run.finish(exit_code=exit_code))(self)
        if self.lost:
            import wandb

            with contextlib.suppress(Exception):  # else it prints a traceback when the process ends
                wandb.teardown(exit_code)


def _line(error: BaseException) -> str:
    """The first line of an error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def has_key() -> bool:
    """Whether wandb would find a key; asks neither the user nor the server."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    import wandb

    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(file).authenticators(urlparse(wandb.Settings().base_url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
