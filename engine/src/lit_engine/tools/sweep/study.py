"""Stores the queued, running and finished trials of a sweep in Optuna's storage."""

import json
import math
import platform
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning, OptunaError
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import URL
from sqlalchemy.exc import IntegrityError, ProgrammingError

from lit_engine.errors import UserError, first_of
from lit_engine.run.directory import RunDir
from lit_engine.tools.runs.differences import find_differing_options
from lit_engine.tools.sweep.config import SweepConfig

DATABASE = "study.db"
LOST_AFTER = 60  # seconds without a heartbeat before another worker takes over the trial
STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped early", TrialState.FAIL: "failed"}
warnings.simplefilter("ignore", ExperimentalWarning)  # heartbeats, retries, TPE's options and plots are experimental
warnings.filterwarnings("ignore", ".*reported value is ignored")  # a resumed trial reports its unfinished epoch again
retry = RetryHeartbeatStaleTrialCallback()


class TrialEnded(Exception):
    """An exception for a trial that ended without a result because it failed, was interrupted or was not needed."""


class Trial(NamedTuple):
    """A trial as the user sees it, with all attempts combined."""

    number: int
    state: str  # finished, stopped early (by hyperband), failed, running, stopped, killed, or not started
    value: float  # best value of the metric (nan if it was never logged)
    values: dict[str, Any]
    seconds: float | None  # duration of the last attempt
    run: Path
    host: str  # machine of the last attempt
    error: str

    @property
    def has_result(self) -> bool:
        """Whether the trial has a valid result. Failed trials never have valid results."""
        return self.state in ("finished", "stopped early") and not math.isnan(self.value)


class Study:
    """The study of one sweep, stored in a database at `url` or in the sweep's folder.

    When a trial is retried, Optuna stores a new trial with the same attributes `number`, `run` and `values`.

    Raises:
        UserError: the study belongs to a different sweep.
    """

    def __init__(
        self, folder: Path, config: SweepConfig, seed: int = 0, url: str | None = None, lost_after: int | None = None
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.folder, self.config, self.seed = folder, config, seed
        self.name = folder.name if url else "sweep"  # a fixed name, because the folder may be moved
        url = url or URL.create("sqlite", database=str(folder / DATABASE)).render_as_string()
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(folder / f"{DATABASE}.lock")
        with self.lock:  # two processes must not create the tables at the same time
            self.storage = _storage(url, lost_after or LOST_AFTER)
            study = optuna.create_study(
                storage=self.storage,
                study_name=self.name,
                load_if_exists=True,
                direction="maximize" if config.maximize else "minimize",
            )
            stored = study.user_attrs.get("sweep", config.identity)
            study.set_user_attr("sweep", stored)
        changed = [key for key in {**stored, **config.identity} if config.identity.get(key) != stored.get(key)]
        differing = find_differing_options([stored, config.identity])  # without options that are new in this version
        if changed := [key for key in changed if key.startswith("--") or key in differing]:
            raise UserError(f"{folder} was started with different {', '.join(changed)}: choose another --dir")

    def require_same(self, options: Mapping[str, Any]) -> None:
        """Raise UserError if options that all trials share have changed, for example because a config was edited."""
        study, now = self.connect(), json.loads(json.dumps(options, default=str))
        with self.lock:
            before = study.user_attrs.get("options", now)
            study.set_user_attr("options", before)
        if changed := find_differing_options([before, now]):
            raise UserError(
                f"the trials in {self.folder} used different values of {first_of(changed)}: choose another --dir"
            )

    def connect(self) -> optuna.Study:
        """Return the Optuna study. Each thread needs its own object, because `draw` replaces the sampler."""
        return optuna.load_study(study_name=self.name, storage=self.storage, pruner=self.config.pruner)

    def attempts(self) -> list[FrozenTrial]:
        return self.storage.get_all_trials(self.storage.get_study_id_from_name(self.name), deepcopy=False)

    def begin(self, trial: optuna.Trial, name: str, most: float = math.inf) -> int:
        """Assign a trial number, parameter values and a run directory to a new attempt. Return the trial number.

        The trial number is the number of trials that were stored earlier. The directory is in the folder `name`.

        Raises:
            TrialEnded: `most` trials already exist. Locks do not prevent other machines from adding trials.
        """
        if "values" not in trial.user_attrs:
            attempts = self.attempts()
            own = next(other for other in attempts if other.number == trial.number)
            origin = own.system_attrs.get("failed_trial", own.number)
            number = sum(is_first_attempt(other) and other.number < origin for other in attempts)
            if number >= most:
                trial.set_user_attr("surplus", True)
                raise TrialEnded
            trial.set_user_attr("number", number)
            trial.set_user_attr("run", f"{name}/trial-{number:04d}")
            trial.set_user_attr("values", draw(self.config, self.seed, number, trial))
        trial.set_user_attr("host", platform.node())
        return trial.user_attrs["number"]

    def rows(self) -> list[Trial]:
        """Return all trials, best first. Failed and unfinished trials come last."""
        found = {}
        for trial in self.attempts():  # later attempts replace earlier attempts
            facts, reported = trial.user_attrs, [*trial.intermediate_values.values()]
            if "values" in facts:
                found[facts["number"]] = Trial(
                    number=facts["number"],
                    state=STATES.get(trial.state) or self._state(trial),
                    value=self.config.best(reported) if reported else math.nan,
                    values=facts["values"],
                    seconds=round(trial.duration.total_seconds(), 1) if trial.duration else None,
                    run=self.folder / facts["run"],
                    host=facts.get("host", ""),
                    error=facts.get("error", ""),
                )
        sign = -1 if self.config.maximize else 1
        return sorted(
            found.values(), key=lambda row: (not row.has_result, sign * row.value if row.has_result else 0, row.number)
        )

    def _state(self, trial: FrozenTrial) -> str:
        """Return the state of an unfinished attempt, read from the run directory if it is on this machine."""
        run = RunDir(self.folder / trial.user_attrs["run"])
        if run.config_file.exists():
            state = run.state()
            return state if state in ("running", "killed") else "stopped"
        return "running" if trial.state == TrialState.RUNNING else "not started"


def is_first_attempt(trial: FrozenTrial) -> bool:
    """Return whether this is the first attempt at a trial."""
    return "failed_trial" not in trial.system_attrs and "surplus" not in trial.user_attrs


def _storage(url: str, lost_after: int) -> RDBStorage:
    # SQLite waits 60 s for locks. Connections to other databases are tested, because they may be lost during a trial.
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    beat: Any = {"heartbeat_interval": max(1, lost_after // 6), "grace_period": lost_after}
    attempts = 10
    while True:
        try:
            return RDBStorage(url, options, **beat, heartbeat_stale_trial_callback=retry)
        except (ValueError, RuntimeError) as error:  # an invalid URL, or a different Optuna version's database
            raise OptunaError(str(error)) from error
        except (IntegrityError, ProgrammingError):  # another machine is creating the tables
            attempts -= 1
            if not attempts:
                raise
            time.sleep(0.2)


def draw(config: SweepConfig, seed: int, number: int, trial: optuna.Trial) -> dict[str, Any]:
    """Sample the values of a trial with Optuna."""
    # If `seed` and `number` were added instead, adjacent seeds would produce the same random numbers.
    seed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    sampler: BaseSampler = RandomSampler(seed)
    if config.method == "grid":
        fixed = {name: json.dumps(value) for name, value in config.point(number).items()}
        sampler = PartialFixedSampler(fixed, sampler)
    elif config.method == "bayes":  # with constant_liar, concurrent trials try different values
        sampler = TPESampler(seed=seed, multivariate=True, constant_liar=True)
    trial.study.sampler = sampler
    return {parameter.name: parameter.suggest(trial) for parameter in config.parameters}
