"""A sweep's YAML in W&B's own format, read for a search without an account."""

import itertools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner

from ..cli import load_yaml
from ..errors import UserError, did_you_mean
from ..project import PROGRAM
from .space import MAX_GRID, Parameter, parameters_of

KEYS = ("method", "metric", "parameters", "command", "early_terminate")
OTHER_KEYS = ("run_cap", "name", "description", "program", "project", "entity")  # may change while a sweep goes on
ARGUMENTS_FILE = "${args_json_file}"


@dataclass(frozen=True)
class SweepConfig:
    """What to search, how, and with which command."""

    method: str  # grid, random, or bayes (TPE)
    metric: str  # as in metrics.csv
    maximize: bool
    parameters: list[Parameter]
    command: list[str]  # from `fit` on, with a macro for the parameters
    pruner: BasePruner
    strict: bool  # the pruner sees the last value of the metric; otherwise the best so far
    run_cap: int | None
    target: float | None  # no trial begins after one has reached it
    identity: dict[str, Any]  # what may not change while a sweep goes on

    @classmethod
    def read(cls, file: Path) -> "SweepConfig":
        """Reads and checks a file.

        Raises:
            UserError: it is not there, no YAML, or something in it is wrong; it names the key.
        """
        try:
            return cls._of(load_yaml(file.read_text()))
        except UserError as error:
            raise UserError(f"{file}: {error}") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
            raise UserError(f"cannot read the sweep {file}: {reason}") from error

    @classmethod
    def _of(cls, content: Any) -> "SweepConfig":
        _need(isinstance(content, Mapping), "is not a sweep: it needs method, metric, parameters and command")
        _known("a sweep", content, (*KEYS, *OTHER_KEYS))
        method, metric, run_cap = content.get("method"), content.get("metric"), content.get("run_cap")
        _need(method in ("grid", "random", "bayes"), f"method must be grid, random or bayes, got {method!r}")
        if not isinstance(metric, Mapping) or not isinstance(metric.get("name"), str):
            raise UserError("metric needs a name, such as {name: val/loss, goal: minimize}")
        _known("metric", metric, ("name", "goal", "target"))
        metric = {"goal": "minimize", **metric}
        target = metric.pop("target", None)
        _need(metric["goal"] in ("minimize", "maximize"), f"goal must be minimize or maximize, got {metric['goal']!r}")
        _need(type(target) in (int, float, type(None)), f"target must be a number, got {target!r}")
        _need(run_cap is None or (type(run_cap) is int and run_cap > 0), f"run_cap must be above 0, got {run_cap!r}")
        config = cls(
            str(method), metric["name"], metric["goal"] == "maximize", parameters_of(content.get("parameters")),
            _command(content.get("command")), *_early_ends(content.get("early_terminate")), run_cap, target,
            json.loads(json.dumps({**{key: content.get(key) for key in KEYS}, "metric": metric})),
        )  # fmt: skip
        size = config.grid_size() if method == "grid" else 0
        _need(size <= MAX_GRID, f"the grid has {size:,} points: more than {MAX_GRID:,}")
        return config

    def best(self, values: list[float]) -> float:
        """The best of some values of the metric."""
        return max(values) if self.maximize else min(values)

    def grid_size(self) -> int:
        """The number of points of the grid; raises UserError if a parameter has infinitely many values."""
        return math.prod(len(parameter.grid()) for parameter in self.parameters)

    def trials(self, wanted: int | None) -> int:
        """How many trials there are to be: those wanted or `run_cap`, at most the whole grid; 0 if nothing tells."""
        size = self.grid_size() if self.method == "grid" else 0
        wanted = wanted or self.run_cap or size
        return min(wanted, size) if size else wanted

    def point(self, number: int) -> dict[str, Any]:
        """A point of the grid; the last parameter changes fastest."""
        points = itertools.product(*(parameter.grid() for parameter in self.parameters))
        return dict(zip([p.name for p in self.parameters], next(itertools.islice(points, number, None)), strict=True))

    def examples(self) -> list[dict[str, Any]]:
        """As few points as show every value of a list and the limits of every distribution."""
        values = {parameter.name: parameter.examples() for parameter in self.parameters}
        longest = max(map(len, values.values()))
        return [{name: found[min(n, len(found) - 1)] for name, found in values.items()} for n in range(longest)]

    def words(self, values: Mapping[str, Any], file: Path) -> list[str]:
        """The command line of a trial after the program; `file` is where its values are kept as JSON."""
        macros = {
            ARGUMENTS_FILE: [str(file)],
            "${args_json}": [json.dumps(values)],
            "${args}": [f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in values.items()],
        }
        return [part for word in self.command for part in macros.get(word, [word])]


def _need(right: bool, message: str) -> None:
    if not right:
        raise UserError(message)


def _known(what: str, section: Mapping[str, Any], keys: tuple[str, ...]) -> None:
    for key in map(str, section):
        _need(key in keys, f"{what} has no {key}" + did_you_mean(key, keys, f" here (it has {', '.join(keys)})"))


def _early_ends(section: Any) -> tuple[BasePruner, bool]:
    """W&B's hyperband is Optuna's successive halving.

    At `min_iter` values of the metric, and at `eta`, `eta²`, … times as many, the best `1 / eta` of the trials go on.
    With `max_iter`, the first of `s` comparisons is at `max_iter / eta^s`.
    """
    if section is None:
        return NopPruner(), False
    hyperband = isinstance(section, Mapping) and section.get("type") == "hyperband"
    _need(hyperband, f"early_terminate: the type must be hyperband, got {section!r}")
    _known("hyperband", section, ("type", "min_iter", "max_iter", "s", "eta", "strict"))
    wanted = [{"min_iter"}, {"max_iter", "s"}]
    _need(section.keys() - {"type", "eta", "strict"} in wanted, "hyperband needs min_iter, or max_iter and s")
    options = {"eta": 3, **section}
    for key in options.keys() - {"type", "strict"}:
        least = 2 if key == "eta" else 1
        right = type(options[key]) is int and options[key] >= least
        _need(right, f"early_terminate: {key} must be a whole number of at least {least}, got {options[key]!r}")
    first = options.get("min_iter") or max(1, options["max_iter"] // options["eta"] ** options["s"])
    return SuccessiveHalvingPruner(first, options["eta"], 0), bool(options.get("strict"))


def _command(given: Any) -> list[str]:
    """The words from `fit` on: what stands before it is how W&B is to start this program."""
    words = [str(word) for word in given] if isinstance(given, list) else []
    _need("fit" in words[1:], f"command must be a list such as [{PROGRAM}, fit, ...], got {given}")
    words = words[words.index("fit") :]
    for n, word in enumerate(words):
        if word.startswith("${envvar:"):
            name = word.removeprefix("${envvar:").removesuffix("}")
            _need(name in os.environ, f"the command needs the environment variable {name}, which is not set")
            words[n] = os.environ[name]
    macros = [word for word in words if word.startswith("${")]
    _need(bool(macros), f"the command must end with --config {ARGUMENTS_FILE}, which hands over the parameters")
    for word in macros:
        known = word in (ARGUMENTS_FILE, "${args_json}", "${args}")
        _need(known, f"{word} is not supported here (write {ARGUMENTS_FILE}, which keeps types)")
    return words
