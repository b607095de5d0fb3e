"""A sweep's YAML in W&B's own format, read for this machine."""

import itertools
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from lit_project.config_files import load_yaml
from lit_project.errors import UserError, did_you_mean
from lit_project.sweep.hyperband import Hyperband, hyperband_of
from lit_project.sweep.parameters import parameters_of
from lit_project.sweep.space import MAX_GRID, Parameter

Method = Literal["grid", "random", "bayes"]
KEYS = {"name", "description", "program", "project", "entity", "method", "metric", "parameters", "command"} | {
    "early_terminate", "run_cap",
}  # fmt: skip
METRIC_KEYS = ("name", "goal", "target")
PACKAGE = __name__.partition(".")[0]
ARGUMENTS_FILE = "${args_json_file}"


@dataclass(frozen=True)
class SweepConfig:
    """What to search, how, and with which command.

    Args:
        method: grid, random, or bayes (TPE).
        metric: name of the metric, as in metrics.csv.
        maximize: whether more of it is better.
        parameters: the space.
        command: words after `lit-project`, among them `${args_json_file}` or another macro for the parameters.
        hyperband: rule for early ends.
        run_cap: number of trials, if the file gives one.
        target: of the metric: no trial begins after one has reached it.
    """

    method: Method
    metric: str
    maximize: bool
    parameters: tuple[Parameter, ...]
    command: tuple[str, ...]
    hyperband: Hyperband | None
    run_cap: int | None
    target: float | None = None

    @classmethod
    def read(cls, file: Path) -> "SweepConfig":
        """Reads and checks a file.

        Raises:
            UserError: it is not there, no YAML, or something in it is wrong; it names the key.
        """
        try:
            content = load_yaml(file.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
            raise UserError(f"cannot read the sweep {file}: {reason}") from error
        if not isinstance(content, Mapping):
            raise UserError(f"{file} is not a sweep: it needs method, metric, parameters and command")
        unknown = sorted(set(content) - KEYS)
        if unknown:
            raise UserError(f"{file}: a sweep has no {unknown[0]} (it has {', '.join(sorted(KEYS))})")
        method = content.get("method")
        if method not in ("grid", "random", "bayes"):
            raise UserError(f"{file}: method must be grid, random or bayes, got {method!r}")
        metric, maximize, target = _metric(content.get("metric"), file)
        run_cap = content.get("run_cap")
        if run_cap is not None and (type(run_cap) is not int or run_cap < 1):
            raise UserError(f"{file}: run_cap must be a whole number of at least 1, got {run_cap!r}")
        parameters = tuple(parameters_of(content.get("parameters")))
        config = cls(
            method=method,
            metric=metric,
            maximize=maximize,
            parameters=parameters,
            command=_command(content, file),
            hyperband=hyperband_of(content.get("early_terminate")),
            run_cap=run_cap,
            target=target,
        )
        if method == "grid":
            config.grid_size()
        return config

    def identity(self) -> str:
        """What makes a study this sweep's: everything but how many trials there are."""
        parts = {
            "method": self.method, "metric": self.metric, "maximize": self.maximize, "command": self.command,
            "parameters": [[p.name, p.distribution, p.options] for p in self.parameters],
            "early_terminate": vars(self.hyperband) if self.hyperband else None,
        }  # fmt: skip
        return json.dumps(parts, sort_keys=True)

    def grid_size(self) -> int:
        """The number of points of the grid.

        Raises:
            UserError: a parameter has infinitely many values, or there are too many points.
        """
        size = math.prod(len(parameter.grid()) for parameter in self.parameters)
        if size > MAX_GRID:
            raise UserError(f"the grid has {size:,} points: more than {MAX_GRID:,}")
        return size

    def grid(self) -> Iterator[dict[str, Any]]:
        """The points of the grid in order, the last parameter fastest."""
        names = [parameter.name for parameter in self.parameters]
        for values in itertools.product(*(parameter.grid() for parameter in self.parameters)):
            yield dict(zip(names, values, strict=True))

    def examples(self) -> list[dict[str, Any]]:
        """As few points as show every value of a list and the limits of every distribution."""
        values = {parameter.name: parameter.examples() for parameter in self.parameters}
        longest = max(map(len, values.values()))
        return [{name: found[min(n, len(found) - 1)] for name, found in values.items()} for n in range(longest)]

    def words(self, values: Mapping[str, Any], file: Path) -> list[str]:
        """The command line of a trial after `lit-project`; `file` is where its values are to be kept as JSON."""
        found: list[str] = []
        for word in self.command:
            if word == ARGUMENTS_FILE:
                found.append(str(file))
            elif word == "${args_json}":
                found.append(json.dumps(dict(values)))
            elif word == "${args}":
                found += [f"--{name}={_text(value)}" for name, value in values.items()]
            else:
                found.append(word)
        return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _metric(section: Any, file: Path) -> tuple[str, bool, float | None]:
    """The name of the metric, whether more of it is better, and its target if there is one."""
    if not isinstance(section, Mapping) or not isinstance(section.get("name"), str):
        raise UserError(f"{file}: metric needs a name, such as {{name: val/loss, goal: minimize}}")
    for key in section:
        if key in ("impute", "impute_while_running"):
            raise UserError(f"{file}: {key} of the metric is not supported here")
        if key not in METRIC_KEYS:
            hint = did_you_mean(str(key), METRIC_KEYS, f" (it has {', '.join(METRIC_KEYS)})")
            raise UserError(f"{file}: metric has no {key}{hint}")
    goal, target = section.get("goal", "minimize"), section.get("target")
    if goal not in ("minimize", "maximize"):
        raise UserError(f"{file}: the goal of the metric must be minimize or maximize, got {goal!r}")
    if "target" in section and (isinstance(target, bool) or not isinstance(target, int | float)):
        raise UserError(f"{file}: the target of the metric must be a number, got {target!r}")
    return section["name"], goal == "maximize", target


def _command(content: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """The words of the command after what starts `lit-project`."""
    given = content.get("command") or ["${env}", "${interpreter}", "${program}", "${args}"]
    if not isinstance(given, list) or not all(isinstance(word, str | int | float) for word in given):
        raise UserError(f"{file}: command must be a list of words")
    words: list[str] = []
    for word in map(str, given):
        if word.startswith("${envvar:"):
            name = word.removeprefix("${envvar:").removesuffix("}")
            if name not in os.environ:
                raise UserError(f"{file}: the command needs the environment variable {name}, which is not set")
            words.append(os.environ[name])
        elif word == "${program}":
            if "program" not in content:
                raise UserError(f"{file}: the command names ${{program}}, but there is no key program")
            words.append(str(content["program"]))
        elif word != "${env}":
            words.append(sys.executable if word == "${interpreter}" else word)
    start = next((n for n, word in enumerate(words) if word == "fit"), None)
    program = words[:start]
    if start is None or not program or Path(program[-1]).name.replace("-", "_") != PACKAGE:
        raise UserError(f"{file}: on this machine the command must be `lit-project fit …`, got: {' '.join(words)}")
    rest = words[start:]
    known = {ARGUMENTS_FILE, "${args_json}", "${args}"}
    macros = [word for word in rest if word.startswith("${")]
    for word in macros:
        if word not in known:
            raise UserError(f"{file}: {word} is not supported here (write {ARGUMENTS_FILE}, which keeps types)")
    if not macros:
        raise UserError(f"{file}: the command must end with --config {ARGUMENTS_FILE}, which hands over the parameters")
    return tuple(rest)
