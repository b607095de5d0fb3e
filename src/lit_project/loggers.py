"""The Weights & Biases logger of the overlay `wandb`: training never waits for it, and never ends because of it."""

import contextlib
import json
import netrc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import wraps
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import yaml
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.loggers.logger import DummyExperiment, rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from lit_project.errors import UserError
from lit_project.run import write_text
from lit_project.wandb_files import STEP, Reached, reached

Mode = Literal["auto", "online", "offline"]
RECORD = "wandb.json"  # in the run directory: which run of W&B it is, and how far it was logged


def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of the logger whose errors end what goes to W&B, and not the training."""

    @wraps(method)
    def call(self: "WandbLogger", *args: Any, **kwargs: Any) -> Any:
        if self.lost:
            return None
        try:
            return method(self, *args, **kwargs)
        except UserError:
            raise
        except Exception as error:  # wandb raises its own errors, TimeoutError, OSError and more
            self.give_up(error)
            return None

    return call


class WandbLogger(LightningWandbLogger):
    """Lightning's logger with a short signature, for one run directory.

    Without a key it works offline, and `wandb sync` sends the run later. Where the server does not answer in time, too,
    with a note. Where W&B breaks later, that is a note too, and the run goes on without. The id of the W&B run is kept
    in `wandb.json` of the run directory, so that a resumed run goes on with it; the steps that it repeats, as they came
    after its checkpoint, are not logged again. All files of wandb are in `wandb/` of the run directory. The complete
    config and the provenance are the config of the W&B run; figures of the run are logged as images.

    Args:
        save_dir: the run directory, `{run_dir}` in a config.
        project: of W&B.
        name: of the run; default: the last two parts of its path.
        entity: user or team of W&B; default: that of the key.
        group: of the run.
        tags: of the run.
        notes: on the run.
        mode: `auto` is online with a key and offline without; the environment variable WANDB_MODE comes before it.
        init_timeout: seconds to wait for the server at first.
        finish_timeout: seconds to wait for uploads at the end; what is not sent then, `wandb sync` sends.
        log_checkpoints: the best and the last checkpoint become an artifact when the run ends.

    Raises:
        UserError: when the run begins: `online` is asked for without a key.
    """

    _experiment: Any = None

    def __init__(
        self,
        save_dir: str = ".",
        project: str = "lit_project",
        name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        tags: Sequence[str] = (),
        notes: str | None = None,
        mode: Mode = "auto",
        init_timeout: float = 15.0,
        finish_timeout: float = 60.0,
        log_checkpoints: bool = False,
    ) -> None:
        folder = Path(save_dir)
        record = folder / RECORD
        known = json.loads(record.read_text()) if record.exists() else {}
        self._record = known
        self.before, self._logged = Reached(), Reached()  # by earlier processes, and by all
        self.take_up(trains=True)
        self.lost = False  # W&B broke
        super().__init__(
            name=name or "/".join(folder.parts[-2:]),
            save_dir=save_dir,
            project=known.get("project", project),
            version=known.get("id"),
        )
        own = {"entity": known.get("entity") or entity, "group": group, "notes": notes, "tags": list(tags) or None}
        # what is None is left to wandb
        self._wandb_init = {key: value for key, value in {**self._wandb_init, **own}.items() if value is not None}
        self.folder = folder
        self.mode = os.environ.get("WANDB_MODE") or mode
        self.init_timeout, self.finish_timeout = init_timeout, finish_timeout
        self.log_checkpoints = log_checkpoints

    def take_up(self, trains: bool, resume_step: int | None = None) -> None:
        """The run is trained, from this step on; or it is evaluated, in steps that begin with 0."""
        self.trains, self.resume_step = trains, resume_step or 0

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of W&B, which begins when it is first asked for."""
        if self._experiment is None and not self.lost:
            self._experiment = self._start()
        return DummyExperiment() if self.lost else self._experiment

    def give_up(self, error: BaseException) -> None:
        """Goes on without W&B; says so once."""
        if not self.lost:
            print(f"note: W&B has failed ({_line(error)}); the run goes on without it", file=sys.stderr)
        self.lost = True

    @guarded
    def _start(self) -> Any:
        import wandb

        if self.mode == "auto":
            self.mode = "online" if has_key() else "offline"
        if self.mode == "online" and not has_key():
            raise UserError("online W&B needs a key: `wandb login`, or WANDB_API_KEY; or mode: offline")
        own = self.folder / "wandb"
        own.mkdir(parents=True, exist_ok=True)  # wandb falls back to /tmp where it is missing
        for variable in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR"):  # staging of artifacts, not in the home folder
            os.environ.setdefault(variable, str(own.resolve()))
        settings = wandb.Settings(init_timeout=self.init_timeout, finish_timeout=self.finish_timeout)
        settings.x_transaction_log_flush_interval = 1.0  # seconds that are lost if the process is killed
        try:
            run = wandb.init(**self._wandb_init, mode=self.mode, settings=settings)  # type: ignore[arg-type]
        except Exception as error:
            if self.mode != "online":
                raise
            later = "the run is logged offline, and `wandb sync` sends it later"
            print(f"note: W&B does not answer ({_line(error)}); {later}", file=sys.stderr)
            with contextlib.suppress(Exception):
                wandb.teardown()
            self.mode = "offline"
            run = wandb.init(**self._wandb_init, mode="offline", settings=settings)
        self._experiment = run  # what fails from here on does not keep it from being finished
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP, step_sync=True)
        run.config.update(self._description(), allow_val_change=True)
        if self._record:
            self.before = reached(run, self._record, own, self.mode == "online")
        self._logged = deepcopy(self.before)
        for step, values in self.before.missing(self.folder / "metrics.csv", self.resume_step):
            run.log({**values, STEP: step})
        # entity and project are those of the sweep, where an agent of W&B has started this
        self._record = {"id": run.id, "entity": run.entity, "project": run.project, "mode": self.mode}
        write_text(self.folder / RECORD, json.dumps(self._record) + "\n")
        return run

    def _description(self) -> dict[str, Any]:
        """The config of the run and where it comes from, as far as they have been written."""
        found: dict[str, Any] = {}
        config, provenance = self.folder / "config.yaml", self.folder / "provenance.json"
        if config.exists():
            found |= yaml.safe_load(config.read_text())
        if provenance.exists():
            found["provenance"] = json.loads(provenance.read_text())[-1]
        return found

    @rank_zero_only
    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Logs what earlier processes of this run have not; an evaluation belongs to the last step."""
        _ = self.experiment  # finds out what they have
        if not self.trains:
            values = {name: value for name, value in metrics.items() if name != "epoch"}  # which is 0 again
            super().log_metrics(values, step if self.before.step < 0 else self.before.step)
        elif step is None:
            super().log_metrics(metrics)
        elif new := self.before.beyond(metrics, step):
            super().log_metrics(new, step)
            self._logged.add(step, new)

    log_hyperparams = guarded(LightningWandbLogger.log_hyperparams)
    log_table = guarded(LightningWandbLogger.log_table)
    log_image = guarded(LightningWandbLogger.log_image)
    log_audio = guarded(LightningWandbLogger.log_audio)
    log_video = guarded(LightningWandbLogger.log_video)
    watch = guarded(LightningWandbLogger.watch)

    @rank_zero_only
    def finish(self, exit_code: int) -> None:
        """Ends the run of W&B: with 0 as finished, otherwise as failed."""
        if self._experiment is None:
            return
        if self.log_checkpoints:
            self._log_checkpoints()
        run, self._experiment = self._experiment, None
        try:
            run.finish(exit_code=exit_code)  # also of a run that has failed: it may be there yet
            if not self.lost:
                end = {"step": self._logged.step, "names": sorted(self._logged.names)}
                write_text(self.folder / RECORD, json.dumps({**self._record, **end}) + "\n")
        except Exception as error:
            self.give_up(error)
        if self.lost:
            import wandb

            with contextlib.suppress(Exception):  # otherwise it prints a traceback when the process ends
                wandb.teardown(exit_code)

    @guarded
    def _log_checkpoints(self) -> None:
        import wandb

        artifact = wandb.Artifact(f"checkpoints-{self.experiment.id}", type="model")
        for file in sorted((self.folder / "checkpoints").glob("*.ckpt")):
            if file.name.startswith("best") or file.name == "last.ckpt":
                artifact.add_file(str(file), name=file.name)
        self.experiment.log_artifact(artifact)


def _line(error: BaseException) -> str:
    """Of an error, the first line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def has_key() -> bool:
    """Whether wandb would find a key, looked for where it does and without asking the server."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    import wandb

    host = urlparse(wandb.Settings().base_url).hostname or ""
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(file).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
