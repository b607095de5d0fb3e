"""The trials of a sweep in Optuna's SQLite storage: what was tried, what came of it, what is next."""

import contextlib
import json
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.exceptions import OptunaError
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from lit_project.errors import UserError
from lit_project.sweep.config import SweepConfig

DATABASE = "study.db"
NAME = "sweep"


class Job(NamedTuple):
    """A trial to run.

    Args:
        number: from 0.
        values: parameter → value.
    """

    number: int
    values: dict[str, Any]


class Row(NamedTuple):
    """A trial as users see it.

    Args:
        number: from 0.
        state: finished, stopped (by hyperband), failed, unfinished.
        value: the best that the metric was, None if it was never logged.
        values: parameter → value.
        seconds: that its last attempt took; None before it has ended.
        run: its run directory.
        error: why it failed.
    """

    number: int
    state: str
    value: float | None
    values: dict[str, Any]
    seconds: float | None
    run: str
    error: str

    @property
    def good(self) -> bool:
        """Whether its value counts: a trial that failed is never the best."""
        return self.state in ("finished", "stopped")


STATES = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "stopped", TrialState.FAIL: "failed"}


class Study:
    """The stored study of one sweep.

    Args:
        folder: of the sweep.
        config: of the sweep.
        seed: of the search. Each draw depends on it and on the number of the trial, so that a search that went on after
            a crash does not repeat itself.
        create: make the study where there is none.

    Raises:
        UserError: the file is of another sweep, no study, or cannot be read or written.
    """

    def __init__(self, folder: Path, config: SweepConfig, seed: int = 0, create: bool = True) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.config, self.seed = config, seed
        self.file = folder / DATABASE
        missing = UserError(f"{folder} holds no sweep: {self.file} is missing")
        if not create and not self.file.exists():
            raise missing
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{self.file}")
            with _storage("write", self.file):
                self.optuna = self._created(storage) if create else optuna.load_study(study_name=NAME, storage=storage)
            stored = self.optuna.user_attrs.get("sweep")
        except KeyError as error:
            raise missing from error
        except (SQLAlchemyError, RuntimeError, AssertionError) as error:
            raise UserError(f"{self.file} cannot be used as the study of a sweep: {_reason(error)}") from error
        if stored is not None and stored != config.identity():
            before, now = json.loads(stored), json.loads(config.identity())
            changed = ", ".join(key for key in now if now[key] != before.get(key))
            raise UserError(f"{folder} holds another sweep (its {changed} differ): choose another --dir")
        self._trials: dict[int, optuna.Trial] = {}

    def _created(self, storage: optuna.storages.BaseStorage) -> optuna.Study:
        """The study that is there, or a new one."""
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if self.config.maximize else directions.MINIMIZE
        study = optuna.create_study(storage=storage, study_name=NAME, direction=direction, load_if_exists=True)
        if "sweep" not in study.user_attrs:
            study.set_user_attr("sweep", self.config.identity())
        return study

    def trials(self) -> list[FrozenTrial]:
        """All trials that were begun: those that a crash left without values do not count."""
        with _storage("read", self.file):
            return [trial for trial in self.optuna.get_trials(deepcopy=False) if "values" in trial.user_attrs]

    def unfinished(self) -> list[Job]:
        """Trials that a crash or an interruption left."""
        return [
            Job(trial.number, json.loads(trial.user_attrs["values"]))
            for trial in self.trials()
            if trial.state == TrialState.RUNNING
        ]

    def next(self, most: int) -> Job | None:
        """Draws and stores the next trial; None when there are `most`, no point is left or the target is reached."""
        begun = self.trials()
        if len(begun) >= most or self.reached() is not None:
            return None
        point: dict[str, Any] | None = None
        if self.config.method == "grid":
            tried = {trial.user_attrs["values"] for trial in begun}
            point = next((p for p in self.config.grid() if json.dumps(p) not in tried), None)
            if point is None:
                return None
        # unlike a sum, seeds next to each other share no draw
        seed = int(np.random.SeedSequence((self.seed, len(begun))).generate_state(1)[0])
        if self.config.method == "bayes":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                # trials that run at the same time are kept apart
                self.optuna.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        else:
            self.optuna.sampler = optuna.samplers.RandomSampler(seed=seed)
        with _storage("write", self.file):
            trial, values = self._drawn() if point is None else self._placed(point)
            trial.set_user_attr("values", json.dumps(values))
        self._trials[trial.number] = trial
        return Job(trial.number, values)

    def _drawn(self) -> tuple[optuna.Trial, dict[str, Any]]:
        trial = self.optuna.ask()
        return trial, {parameter.name: parameter.suggest(trial) for parameter in self.config.parameters}

    def _placed(self, point: dict[str, Any]) -> tuple[optuna.Trial, dict[str, Any]]:
        """A trial at a point of the grid."""
        self.optuna.enqueue_trial({p.name: json.dumps(point[p.name]) for p in self.config.parameters})
        trial = self.optuna.ask()
        for p in self.config.parameters:
            trial.suggest_categorical(p.name, [json.dumps(value) for value in p.grid()])
        return trial, point

    def note(self, number: int, **attributes: Any) -> None:
        """Keeps `run`, `seconds`, `error` or other facts of a trial."""
        with _storage("write", self.file):
            for name, value in attributes.items():
                self._trial(number).set_user_attr(name, value)

    def finish(self, number: int, history: Sequence[float], state: str) -> None:
        """Ends a trial as `finished`, `stopped` or `failed`, with the values that the metric had."""
        best = None
        if history:
            best = max(history) if self.config.maximize else min(history)
        with _storage("write", self.file):
            trial = self._trial(number)
            reported = self.optuna.get_trials(deepcopy=False)[number].intermediate_values
            for step, value in enumerate(history):
                if step not in reported:
                    trial.report(value, step)
            if best is not None:
                trial.set_user_attr("best", best)
            ended = next(key for key, name in STATES.items() if name == state)
            self.optuna.tell(number, best if ended == TrialState.COMPLETE else None, state=ended)

    def _trial(self, number: int) -> optuna.Trial:
        """To write to a trial, which an earlier process may have begun."""
        if number not in self._trials:
            self._trials[number] = optuna.Trial(self.optuna, self.optuna.get_trials(deepcopy=False)[number]._trial_id)
        return self._trials[number]

    def rows(self) -> list[Row]:
        """All trials, best first; those that failed or have not ended last."""
        found = []
        for trial in self.trials():
            facts = trial.user_attrs
            run = (
                self.file.parent.joinpath(*Path(facts["run"]).parts[-2:]) if "run" in facts else ""
            )  # it may have moved
            found.append(
                Row(trial.number, STATES.get(trial.state, "unfinished"), facts.get("best"),
                    json.loads(facts["values"]), facts.get("seconds"), str(run), facts.get("error", ""))
            )  # fmt: skip
        sign = -1 if self.config.maximize else 1
        return sorted(
            found, key=lambda row: (sign * row.value if row.good and row.value is not None else math.inf, row.number)
        )

    def reached(self) -> Row | None:
        """The best trial, if it has reached the target of the metric."""
        target = self.config.target
        best = next(iter(self.rows()), None) if target is not None else None
        if target is None or best is None or best.value is None or not best.good:
            return None
        return best if (best.value >= target if self.config.maximize else best.value <= target) else None

    def histories(self) -> list[list[float]]:
        """The values of the metric of all trials that have ended, lower is better."""
        sign = -1 if self.config.maximize else 1
        ended = [trial for trial in self.trials() if trial.state.is_finished()]
        return [[sign * value for _, value in sorted(trial.intermediate_values.items())] for trial in ended]


@contextlib.contextmanager
def _storage(what: str, file: Path) -> Iterator[None]:
    """Raises UserError where the file cannot be read or written: no space, no permission."""
    try:
        yield
    except (OptunaError, SQLAlchemyError) as error:
        raise UserError(f"cannot {what} {file}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What SQLite has said, in one line."""
    inner = error.__cause__ if isinstance(error, OptunaError) and error.__cause__ is not None else error
    return (str(getattr(inner, "orig", None) or inner) or type(inner).__name__).splitlines()[0]
