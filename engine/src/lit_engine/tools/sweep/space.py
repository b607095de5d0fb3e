"""The parameters of a sweep: W&B's distributions as those of Optuna."""

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
    """One parameter. Optuna draws JSON for one of a list, which keeps types, and how many `q` for a multiple of it."""

    name: str  # as on the command line: `model.optimizer.lr`
    drawn: CategoricalDistribution | FloatDistribution | IntDistribution
    q: float | None = None

    def suggest(self, trial: optuna.Trial) -> Any:
        drawn = self.drawn
        if isinstance(drawn, CategoricalDistribution):
            if drawn.single():  # a constant is in no plot
                return self.value(drawn.choices[0])
            return self.value(trial.suggest_categorical(self.name, drawn.choices))
        if isinstance(drawn, FloatDistribution):
            return trial.suggest_float(self.name, drawn.low, drawn.high, log=drawn.log)
        label = self.name if self.q is None else f"{self.name} / {self.q}"
        return self.value(trial.suggest_int(label, drawn.low, drawn.high, log=drawn.log))

    def value(self, drawn: Any) -> Any:
        """What `fit` is given for what Optuna has drawn."""
        if isinstance(self.drawn, CategoricalDistribution):
            return json.loads(drawn)
        if self.q is None:
            return drawn
        return drawn * self.q if isinstance(self.q, int) else round(drawn * self.q, 12)  # no noise of binary fractions

    def values(self) -> list[Any]:
        """All values; raises UserError if there are infinitely many."""
        if isinstance(self.drawn, CategoricalDistribution):
            return [self.value(choice) for choice in self.drawn.choices]
        if isinstance(self.drawn, IntDistribution):
            return [self.value(number) for number in range(self.drawn.low, self.drawn.high + 1)]
        raise UserError(f"parameter {self.name}: a grid needs values, or whole or q_ numbers")

    def listed(self) -> "Parameter":
        """The same as a list of values, for a grid."""
        return _list(self.name, self.values())

    def examples(self) -> list[Any]:
        """Values that show if the command line accepts the parameter: all of a list, or the limits."""
        if isinstance(self.drawn, CategoricalDistribution):
            return self.values()
        return [self.value(self.drawn.low), self.value(self.drawn.high)]


def parameters_of(section: Any) -> list[Parameter]:
    """Reads the section `parameters` of a sweep; parameters in groups get dotted names, such as `model.optimizer.lr`.

    Raises:
        UserError: an unknown distribution or key, missing or wrong limits, an empty list, or a name that occurs twice.
    """
    found: dict[str, Parameter] = {}
    for name, content in _ungrouped(section):
        if name in found:
            raise UserError(f"parameter {name} is given twice: remove one of the two")
        try:
            found[name] = _parameter(name, content)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise UserError(f"parameter {name}: {error}") from error
    return list(found.values())


def _ungrouped(section: Any, group: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the name and content of each parameter; `{NAME: {parameters: {…}}}` is a group, as in W&B."""
    if not isinstance(section, Mapping) or not section:
        raise UserError(f"{group}parameters must be a mapping from names to distributions")
    for name, content in section.items():
        if isinstance(content, Mapping) and content.keys() == {"parameters"}:
            yield from _ungrouped(content["parameters"], f"{group}{name}.")
        else:
            yield f"{group}{name}", content


def _parameter(name: str, content: Any) -> Parameter:
    """Reads one; raises ValueError, TypeError or ArithmeticError if it is wrong."""
    options = dict(content) if isinstance(content, Mapping) else {}
    whole = all(type(options.get(limit)) is int for limit in ("min", "max"))
    implied = {"value": "constant", "values": "categorical", "max": "int_uniform" if whole else "uniform"}
    kind = options.pop("distribution", None) or next((implied[key] for key in implied if key in options), None)
    if kind not in DISTRIBUTIONS:
        raise ValueError(f"needs value, values, min and max, or one of {', '.join(DISTRIBUTIONS)}; got {content!r}")
    make = DISTRIBUTIONS[kind]
    # YAML takes 1e-4 for text
    options = {key: float(v) if isinstance(v, str) and key != "value" else v for key, v in options.items()}
    inspect.signature(make).bind(name, **options)  # names the key that is missing or unknown
    return make(name, **options)


def _list(name: str, values: Sequence[Any]) -> Parameter:
    return Parameter(name, CategoricalDistribution([json.dumps(value) for value in values]))


def _whole(name: str, min: int, max: int) -> Parameter:
    if type(min) is not int or type(max) is not int:
        raise ValueError(f"int_uniform needs whole numbers, got {min} and {max}")
    return Parameter(name, IntDistribution(min, max))


def _range(name: str, low: float, high: float, log: bool = False) -> Parameter:
    """Uniform, of the logarithm or not."""
    return Parameter(name, FloatDistribution(low, high, log))


def _multiples(name: str, low: float, high: float, q: float, log: bool = False) -> Parameter:
    """The same over the multiples of q within the limits."""
    first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
    return Parameter(name, IntDistribution(max(first, 1) if log else first, last, log), q)


# Arguments are the keys in W&B's YAML; limits of log_uniform are exponents of e.
DISTRIBUTIONS: dict[str, Callable[..., Parameter]] = {
    "constant": lambda name, value: _list(name, [value]),
    "categorical": _list,
    "int_uniform": _whole,
    "uniform": lambda name, min, max: _range(name, min, max),
    "q_uniform": lambda name, min, max, q=1: _multiples(name, min, max, q),
    "log_uniform": lambda name, min, max: _range(name, math.exp(min), math.exp(max), log=True),
    "q_log_uniform": lambda name, min, max, q=1: _multiples(name, math.exp(min), math.exp(max), q, log=True),
    "log_uniform_values": lambda name, min, max: _range(name, min, max, log=True),
    "q_log_uniform_values": lambda name, min, max, q=1: _multiples(name, min, max, q, log=True),
}
