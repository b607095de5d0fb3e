"""The trials of a sweep in Optuna's SQLite storage: what was tried, what came of it, what is next."""

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
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
        file = folder / DATABASE
        if not create and not file.exists():
            raise UserError(f"{folder} holds no sweep: {file} is missing")
        try:
            storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
            directions = optuna.study.StudyDirection
            direction = directions.MAXIMIZE if config.maximize else directions.MINIMIZE
            self.optuna = optuna.create_study(
                storage=storage, study_name=NAME, direction=direction, load_if_exists=True
            )
            stored = self.optuna.user_attrs.get("sweep")
            if stored is None:
                self.optuna.set_user_attr("sweep", config.identity())
        except (SQLAlchemyError, RuntimeError, AssertionError) as error:
            raise UserError(f"{file} cannot be used as the study of a sweep: {str(error).splitlines()[0]}") from error
        if stored is not None and stored != config.identity():
            before, now = json.loads(stored), json.loads(config.identity())
            changed = ", ".join(key for key in now if now[key] != before.get(key))
            raise UserError(f"{folder} holds another sweep (its {changed} differ): choose another --dir")
        self._trials: dict[int, optuna.Trial] = {}

    def trials(self) -> list[FrozenTrial]:
        """All trials that were begun: those that a crash left without values do not count."""
        return [trial for trial in self.optuna.get_trials(deepcopy=False) if "values" in trial.user_attrs]

    def unfinished(self) -> list[Job]:
        """Trials that a crash or an interruption left."""
        return [
            Job(trial.number, json.loads(trial.user_attrs["values"]))
            for trial in self.trials()
            if trial.state == TrialState.RUNNING
        ]

    def next(self, most: int) -> Job | None:
        """Draws and stores the next trial; None when there are `most`, or no point of the grid is left."""
        begun = self.trials()
        if len(begun) >= most:
            return None
        point: dict[str, Any] | None = None
        if self.config.method == "grid":
            tried = {trial.user_attrs["values"] for trial in begun}
            point = next((p for p in self.config.grid() if json.dumps(p) not in tried), None)
            if point is None:
                return None
        seed = self.seed + len(begun)
        if self.config.method == "bayes":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                # trials that run at the same time are kept apart
                self.optuna.sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        else:
            self.optuna.sampler = optuna.samplers.RandomSampler(seed=seed)
        if point is None:
            trial = self.optuna.ask()
            values = {parameter.name: parameter.suggest(trial) for parameter in self.config.parameters}
        else:
            fixed = {p.name: json.dumps(point[p.name]) for p in self.config.parameters}
            self.optuna.enqueue_trial(fixed)
            trial, values = self.optuna.ask(), point
            for p in self.config.parameters:
                trial.suggest_categorical(p.name, [json.dumps(value) for value in p.grid()])
        trial.set_user_attr("values", json.dumps(values))
        self._trials[trial.number] = trial
        return Job(trial.number, values)

    def note(self, number: int, **attributes: Any) -> None:
        """Keeps `run`, `seconds`, `error` or other facts of a trial."""
        trial = self._trial(number)
        for name, value in attributes.items():
            trial.set_user_attr(name, value)

    def finish(self, number: int, history: Sequence[float], state: str) -> None:
        """Ends a trial as `finished`, `stopped` or `failed`, with the values that the metric had."""
        best = None
        if history:
            best = max(history) if self.config.maximize else min(history)
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
        """All trials, best first; those without a value last."""
        found = []
        for trial in self.trials():
            facts = trial.user_attrs
            found.append(
                Row(trial.number, STATES.get(trial.state, "unfinished"), facts.get("best"),
                    json.loads(facts["values"]), facts.get("seconds"), facts.get("run", ""), facts.get("error", ""))
            )  # fmt: skip
        sign = -1 if self.config.maximize else 1
        return sorted(found, key=lambda row: (math.inf if row.value is None else sign * row.value, row.number))

    def histories(self) -> list[list[float]]:
        """The values of the metric of all trials that have ended, lower is better."""
        sign = -1 if self.config.maximize else 1
        ended = [trial for trial in self.trials() if trial.state.is_finished()]
        return [[sign * value for _, value in sorted(trial.intermediate_values.items())] for trial in ended]
