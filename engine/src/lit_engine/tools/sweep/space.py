"""Defines the parameters of a sweep by converting W&B's distributions to Optuna's."""

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from lit_engine.errors import UserError


@dataclass(frozen=True)
class Parameter:
    """A parameter of a sweep.

    Optuna receives listed values as JSON, to preserve their types, and multiples of `q` as integers (divided by `q`).
    """

    name: str  # option name, such as `model.optimizer.lr`
    drawn: CategoricalDistribution | FloatDistribution | IntDistribution
    q: float | None = None

    def suggest(self, trial: optuna.Trial) -> Any:
        drawn = self.drawn
        if isinstance(drawn, CategoricalDistribution):
            if drawn.single():  # keeps constants out of the plots
                return self.value(drawn.choices[0])
            return self.value(trial.suggest_categorical(self.name, drawn.choices))
        if isinstance(drawn, FloatDistribution):
            return trial.suggest_float(self.name, drawn.low, drawn.high, log=drawn.log)
        label = self.name if self.q is None else f"{self.name} / {self.q}"
        return self.value(trial.suggest_int(label, drawn.low, drawn.high, log=drawn.log))

    def value(self, drawn: Any) -> Any:
        """Convert a value sampled by Optuna to the value that is passed to `fit`."""
        if isinstance(self.drawn, CategoricalDistribution):
            return json.loads(drawn)
        if self.q is None:
            return drawn
        return drawn * self.q if isinstance(self.q, int) else round(drawn * self.q, 12)  # hides rounding errors

    def values(self) -> list[Any]:
        """Return all values. Raise UserError if there are infinitely many values."""
        if isinstance(self.drawn, CategoricalDistribution):
            return [self.value(choice) for choice in self.drawn.choices]
        if isinstance(self.drawn, IntDistribution):
            return [self.value(number) for number in range(self.drawn.low, self.drawn.high + 1)]
        raise UserError(f"parameter {self.name}: a grid needs values, integer limits, or a q_ distribution")

    def examples(self) -> list[Any]:
        """Return all listed values or both limits of a range, to check that the command line accepts these values."""
        if isinstance(self.drawn, CategoricalDistribution):
            return self.values()
        return [self.value(self.drawn.low), self.value(self.drawn.high)]


def parse_parameters(section: Any) -> list[Parameter]:
    """Read the `parameters` section of a sweep. Grouped parameters get dotted names, such as `model.optimizer.lr`.

    Raises:
        UserError: an unknown distribution or key, missing or invalid limits, an empty list, or a name used twice.
    """
    found: dict[str, Parameter] = {}
    for name, content in _ungroup(section):
        if name in found:
            raise UserError(f"parameter {name} is given twice: remove one of its definitions")
        try:
            found[name] = _parameter(name, content)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise UserError(f"parameter {name}: {error}") from error
    return list(found.values())


def _ungroup(section: Any, group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and content of each parameter. As in W&B, a mapping whose only key is `parameters` is a group."""
    if not isinstance(section, Mapping) or not section:
        raise UserError(f"{group}parameters must be a mapping from names to distributions")
    for name, content in section.items():
        if isinstance(content, Mapping) and content.keys() == {"parameters"}:
            yield from _ungroup(content["parameters"], f"{group}{name}.")
        else:
            yield f"{group}{name}", content


def _parameter(name: str, content: Any) -> Parameter:
    """Read one parameter. Raise ValueError, TypeError or ArithmeticError if the parameter is invalid."""
    options = dict(content) if isinstance(content, Mapping) else {}
    whole = all(type(options.get(limit)) is int for limit in ("min", "max"))
    implied = {"value": "constant", "values": "categorical", "max": "int_uniform" if whole else "uniform"}
    kind = options.pop("distribution", None) or next((implied[key] for key in implied if key in options), None)
    if kind not in DISTRIBUTIONS:
        raise ValueError(
            f"needs value, values, both min and max, or a distribution ({', '.join(DISTRIBUTIONS)}); got {content!r}"
        )
    make = DISTRIBUTIONS[kind]
    # YAML parses 1e-4 as text.
    options = {key: float(v) if isinstance(v, str) and key != "value" else v for key, v in options.items()}
    inspect.signature(make).bind(name, **options)  # raises TypeError for missing or unknown keys
    return make(name, **options)


def list_values(name: str, values: Sequence[Any]) -> Parameter:
    """Return a search parameter that has one of the listed values."""
    return Parameter(name, CategoricalDistribution([json.dumps(value) for value in values]))


def _int_uniform(name: str, min: int, max: int) -> Parameter:
    if type(min) is not int or type(max) is not int:
        raise ValueError(f"int_uniform needs integers, got {min} and {max}")
    return Parameter(name, IntDistribution(min, max))


def _multiples(name: str, low: float, high: float, q: float, log: bool = False) -> Parameter:
    """Return a uniform or log-uniform parameter over the multiples of q within the limits."""
    first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
    return Parameter(name, IntDistribution(max(first, 1) if log else first, last, log), q)


# The argument names are the keys in W&B's YAML. The limits of log_uniform are exponents of e.
DISTRIBUTIONS: dict[str, Callable[..., Parameter]] = {
    "constant": lambda name, value: list_values(name, [value]),
    "categorical": list_values,
    "int_uniform": _int_uniform,
    "uniform": lambda name, min, max: Parameter(name, FloatDistribution(min, max)),
    "q_uniform": lambda name, min, max, q=1: _multiples(name, min, max, q),
    "log_uniform": lambda name, min, max: Parameter(name, FloatDistribution(math.exp(min), math.exp(max), True)),
    "q_log_uniform": lambda name, min, max, q=1: _multiples(name, math.exp(min), math.exp(max), q, log=True),
    "log_uniform_values": lambda name, min, max: Parameter(name, FloatDistribution(min, max, log=True)),
    "q_log_uniform_values": lambda name, min, max, q=1: _multiples(name, min, max, q, log=True),
}
