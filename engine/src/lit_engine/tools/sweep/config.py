"""Reads a sweep's YAML file in W&B's format, for searches without a W&B account."""

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from optuna import Study
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.trial import FrozenTrial

from lit_engine.cli.arguments import CONFIG
from lit_engine.cli.config_files import load_yaml
from lit_engine.cli.shorthand import expand
from lit_engine.errors import UserError, did_you_mean
from lit_engine.project import current, program
from lit_engine.tools.sweep.space import Parameter, list_values, parse_parameters

KEYS = ("method", "metric", "parameters", "command", "early_terminate")
OTHER_KEYS = ("run_cap", "name", "description", "program", "project", "entity")  # these may change during a sweep
ARGUMENTS_FILE = "${args_json_file}"


@dataclass(frozen=True)
class SweepConfig:
    """The search method, metric, parameters and command of a sweep."""

    method: str  # grid, random, or bayes (TPE)
    metric: str  # name in metrics.csv
    maximize: bool
    command: list[str]  # starts with `fit` and contains a macro for the parameters
    identity: dict[str, Any]  # settings that must not change during a sweep
    parameters: list[Parameter] = field(default_factory=list)
    pruner: BasePruner = field(default_factory=NopPruner)
    run_cap: int = 0

    @classmethod
    def read(cls, file: Path, overrides: Sequence[str] = ()) -> "SweepConfig":
        """Read and check a sweep file.

        Args:
            file: path of the YAML file.
            overrides: `fit` options for all trials, such as `--trainer.max_epochs=2`.

        Raises:
            UserError: the file cannot be read, or its content or an override is invalid.
        """
        try:
            return cls._from_content(load_yaml(file.read_text(encoding="utf-8")), overrides)
        except (OSError, UserError, ValueError, TypeError, yaml.YAMLError) as error:
            reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
            raise UserError(f"cannot read the sweep {file}: {reason}") from error

    @classmethod
    def _from_content(cls, content: Any, overrides: Sequence[str]) -> "SweepConfig":
        _require(isinstance(content, Mapping), "the file needs method, metric, parameters and command")
        _check_known("a sweep", content, (*KEYS, *OTHER_KEYS))
        method, metric = content.get("method"), content.get("metric")
        _require(method in ("grid", "random", "bayes"), f"method must be grid, random or bayes, got {method!r}")
        if not isinstance(metric, Mapping) or "name" not in metric:
            raise UserError("metric needs a name, such as {name: val/loss, goal: minimize}")
        _check_known("metric", metric, ("name", "goal"))
        metric = {"goal": "minimize", **metric}
        _require(
            metric["goal"] in ("minimize", "maximize"), f"goal must be minimize or maximize, got {metric['goal']!r}"
        )
        run_cap = int(content.get("run_cap") or 0)
        _require(run_cap >= 0, f"run_cap must not be negative, got {run_cap}")
        parameters = parse_parameters(content.get("parameters"))
        given: dict[str, list[str]] = {}
        for option, _, value in (word.partition("=") for word in overrides):
            swept = [p.name for p in parameters if f"{option_key(option)}.".startswith(f"{option_key(p.name)}.")]
            _require(not swept, f"{option} cannot be set, because the sweep varies {', '.join(swept)}")
            given.setdefault(option, []).append(value)
        return cls(
            method=str(method),
            metric=str(metric["name"]),
            maximize=metric["goal"] == "maximize",
            parameters=[list_values(p.name, p.values()) for p in parameters] if method == "grid" else parameters,
            command=_command(content.get("command"), overrides),
            pruner=_pruner(content.get("early_terminate")),
            run_cap=run_cap,
            identity=json.loads(json.dumps({**{key: content.get(key) for key in KEYS}, "metric": metric, **given})),
        )

    def best(self, values: list[float]) -> float:
        return max(values) if self.maximize else min(values)

    def trials(self, wanted: int | None) -> int:
        """Return the total number of trials (`wanted` or `run_cap`, limited to the grid size), or 0 if unlimited."""
        wanted = wanted or self.run_cap
        if self.method != "grid":
            return wanted
        size = math.prod(len(parameter.values()) for parameter in self.parameters)
        return min(wanted or size, size)

    def point(self, number: int) -> dict[str, Any]:
        """Return a point of the grid. The last parameter changes fastest."""
        points = itertools.product(*(parameter.values() for parameter in self.parameters))
        return dict(zip([p.name for p in self.parameters], next(itertools.islice(points, number, None)), strict=True))

    def examples(self) -> list[dict[str, Any]]:
        """Return the smallest set of points that covers all listed values and the limits of all distributions."""
        values = {parameter.name: parameter.examples() for parameter in self.parameters}
        longest = max(map(len, values.values()))
        return [{name: found[min(n, len(found) - 1)] for name, found in values.items()} for n in range(longest)]

    def words(self, values: Mapping[str, Any], file: Path) -> list[str]:
        """Return the command-line arguments of a trial. `file` is the JSON file with the trial's values."""
        macros = {
            ARGUMENTS_FILE: [str(file)],
            "${args_json}": [json.dumps(values)],
            "${args}": [f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in values.items()],
        }
        return [part for word in self.command for part in macros.get(word, [word])]


def _require(right: bool, message: str) -> None:
    if not right:
        raise UserError(message)


def _check_known(what: str, section: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in map(str, section):
        _require(key in keys, f"{what} has no key {key}" + did_you_mean(key, keys, f" (supported: {', '.join(keys)})"))


def _pruner(section: Any) -> BasePruner:
    """Return Optuna's pruner for successive halving, which is equivalent to W&B's hyperband.

    Trials are compared after `min_iter`, `eta · min_iter`, `eta² · min_iter`, … metric values. Each time, only the best
    `1 / eta` of the trials continue.
    """
    if section is None:
        return NopPruner()
    hyperband = isinstance(section, Mapping) and section.get("type") == "hyperband"
    _require(hyperband, f"early_terminate: the type must be hyperband, got {section!r}")
    _require("min_iter" in section, "hyperband needs min_iter: replace max_iter and s with min_iter = max_iter / eta^s")
    _check_known("hyperband", section, ("type", "min_iter", "eta"))
    return Halving(section["min_iter"], section.get("eta", 3), 0)


class Halving(SuccessiveHalvingPruner):
    """Successive halving that counts a retried trial only once, although each attempt reports the metric again."""

    def prune(self, study: Study, trial: FrozenTrial) -> bool:
        """Return whether the trial should be stopped early."""
        trials = study.get_trials(deepcopy=False)
        retried = {number for one in trials for number in one.system_attrs.get("retry_history", ())}
        view = copy(study)
        view.get_trials = lambda **_: [one for one in trials if one.number not in retried]  # type: ignore[method-assign]
        return super().prune(view, trial)


def _command(given: Any, overrides: Sequence[str]) -> list[str]:
    """Return the part of the command that starts with `fit`. Only W&B needs the words before `fit`.

    Overrides are moved to the end, followed by the parameter macro, so that swept values take precedence over overlays.
    """
    words = [str(word) for word in given] if isinstance(given, list) else []
    _require("fit" in words[1:], f"command must be a list such as [{program()}, fit, ...], got {given}")
    words = words[words.index("fit") :]
    macros = [word for word in words if word.startswith("${")]
    is_supported = len(macros) == 1 and macros[0] in (ARGUMENTS_FILE, "${args_json}", "${args}")
    _require(is_supported, f"the command must end with --config {ARGUMENTS_FILE}, got the macros {macros}")
    place = words.index(macros[0])
    start = place - 1 if words[place - 1] in ("-c", CONFIG) else place
    fixed = [*words[:start], *words[place + 1 :], *overrides]
    # If the values were the only config, each trial's run would be stored in a folder named after its values file.
    if macros[0] != "${args}" and not any(word.startswith(CONFIG) for word in expand(current(), fixed)):
        return [*fixed, "${args}"]
    return [*fixed, *words[start : place + 1]]


def option_key(option: str) -> str:
    """Return an option's key in the format of `options_of`."""
    return re.sub(r"^--|\.init_args\b|\+$", "", option)
