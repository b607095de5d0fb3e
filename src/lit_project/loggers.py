"""The Weights & Biases logger of the overlay `wandb`: training never waits for it, and never ends because of it."""

import json
import netrc
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse

import yaml
from lightning.pytorch.loggers import WandbLogger as LightningWandbLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only

from lit_project.errors import UserError
from lit_project.run import write_text

Mode = Literal["auto", "online", "offline"]
RECORD = "wandb.json"  # in the run directory: which run of W&B it is


class WandbLogger(LightningWandbLogger):
    """Lightning's logger with a short signature, for one run directory.

    Without a key it works offline, and `wandb sync` sends the run later. Where the server does not answer in time, too,
    with a note. The id of the W&B run is kept in `wandb.json` of the run directory, so that a resumed run goes on with
    it. All files of wandb are in `wandb/` of the run directory. The complete config and the provenance are the config
    of the W&B run; figures of the run are logged as images.

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
        UserError: when the run begins: `online` is asked for without a key, or wandb is not installed.
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
        self.missing = find_spec("wandb") is None
        if not self.missing:  # an error in here would be shown as one of the config
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

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run of W&B, which begins when it is first asked for."""
        if self._experiment is None:
            self._experiment = self._start()
        return self._experiment

    def _start(self) -> Any:
        if self.missing:
            raise UserError("the logger of W&B needs wandb: pip install 'lit-project[wandb]'")
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
        try:
            run = wandb.init(**self._wandb_init, mode=self.mode, settings=settings)  # type: ignore[arg-type]
        except wandb.errors.Error as error:
            print(
                f"note: W&B does not answer ({str(error).splitlines()[0]}); the run is logged offline, and "
                "`wandb sync` sends it later",
                file=sys.stderr,
            )
            wandb.teardown()
            self.mode = "offline"
            run = wandb.init(**self._wandb_init, mode="offline", settings=settings)
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        run.config.update(self._description(), allow_val_change=True)
        # of the sweep, where an agent of W&B has started this
        record = {"id": run.id, "entity": run.entity, "project": run.project, "mode": self.mode}
        write_text(self.folder / RECORD, json.dumps(record) + "\n")
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
    def finish(self, exit_code: int) -> None:
        """Ends the run of W&B: with 0 as finished, otherwise as failed."""
        if self._experiment is None:
            return
        if self.log_checkpoints:
            self._log_checkpoints()
        self._experiment.finish(exit_code=exit_code)
        self._experiment = None

    def _log_checkpoints(self) -> None:
        import wandb

        artifact = wandb.Artifact(f"checkpoints-{self.experiment.id}", type="model")
        for file in sorted((self.folder / "checkpoints").glob("*.ckpt")):
            if file.name.startswith("best") or file.name == "last.ckpt":
                artifact.add_file(str(file), name=file.name)
        self.experiment.log_artifact(artifact)


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
