"""The parameters of a sweep: W&B's distributions as those of Optuna."""

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ..errors import UserError, did_you_mean


@dataclass(frozen=True)
class Parameter:
    """One parameter: what Optuna draws, and the value that this stands for (it may be JSON or a quantile)."""

    name: str  # as on the command line: `model.optimizer.lr`
    drawn: CategoricalDistribution | FloatDistribution | IntDistribution
    value: Callable[[Any], Any]
    label: str  # of what Optuna draws

    def suggest(self, trial: optuna.Trial) -> Any:
        """Draws a value."""
        drawn = self.drawn
        if isinstance(drawn, CategoricalDistribution):
            return self.value(trial.suggest_categorical(self.label, drawn.choices))
        if isinstance(drawn, IntDistribution):
            return self.value(trial.suggest_int(self.label, drawn.low, drawn.high, log=drawn.log))
        return self.value(trial.suggest_float(self.label, drawn.low, drawn.high, log=drawn.log))

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
        """Values that show if the command line accepts the parameter: all of a list, the limits, or two quantiles."""
        if isinstance(self.drawn, CategoricalDistribution):
            return self.values()
        ends = (0.1, 0.9) if self.label.startswith("quantile") else (self.drawn.low, self.drawn.high)
        return [self.value(end) for end in ends]


def parameters_of(section: Any, group: str = "") -> list[Parameter]:
    """Reads the section `parameters` of a sweep; names in a nested group begin with the group's name and a dot.

    Raises:
        UserError: a distribution or key that W&B does not have, missing or wrong limits, an empty list.
    """
    if not isinstance(section, Mapping) or not section:
        raise UserError(f"{group.removesuffix('.') or 'parameters'} must be a mapping from names to distributions")
    found: list[Parameter] = []
    for key, content in section.items():
        name = f"{group}{key}"
        if isinstance(content, Mapping) and "parameters" in content:
            found += parameters_of(content["parameters"], f"{name}.")
            continue
        try:
            found.append(_parameter(name, content))
        except (ValueError, TypeError, ArithmeticError) as error:
            raise UserError(f"parameter {name}: {error}") from error
    return found


def _parameter(name: str, content: Any) -> Parameter:
    """Reads one; raises ValueError, TypeError or ArithmeticError if it is wrong."""
    options = dict(content) if isinstance(content, Mapping) else {}
    whole = all(type(options.get(limit)) is int for limit in ("min", "max"))
    implied = {"value": "constant", "values": "categorical", "max": "int_uniform" if whole else "uniform"}
    kind = options.pop("distribution", None) or next((implied[key] for key in implied if key in options), None)
    if kind not in DISTRIBUTIONS:
        hint = did_you_mean(str(kind), DISTRIBUTIONS, f" ({', '.join(DISTRIBUTIONS)})")
        raise ValueError(f"needs value, values, min and max, or a distribution of W&B, got {content!r}{hint}")
    make = DISTRIBUTIONS[kind]
    # YAML takes 1e-4 for text
    options = {key: float(v) if isinstance(v, str) and key != "value" else v for key, v in options.items()}
    inspect.signature(make).bind(name, **options)  # names the key that is missing or unknown
    return make(name, **options)


def _list(name: str, values: Sequence[Any], probabilities: Sequence[float] | None = None) -> Parameter:
    if probabilities is not None:
        return _quantile(name, _by_share(values, probabilities))
    # JSON keeps types; Optuna's own choices are scalars
    return Parameter(name, CategoricalDistribution([json.dumps(value) for value in values]), json.loads, name)


def _whole(name: str, min: int, max: int) -> Parameter:
    if type(min) is not int or type(max) is not int:
        raise ValueError(f"int_uniform needs whole numbers, got {min} and {max}")
    return Parameter(name, IntDistribution(min, max), int, name)


def _range(name: str, low: float, high: float, q: float | None = None, log: bool = False) -> Parameter:
    """Uniform, of the logarithm or not; with q over the multiples within the limits."""
    if q is None:
        return Parameter(name, FloatDistribution(low, high, log), float, name)
    first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
    drawn = IntDistribution(max(first, int(log)), last, log)
    return Parameter(name, drawn, lambda count: _multiple(count, q), f"multiple of {name}")


def _quantile(name: str, value: Callable[[float], Any], q: float | None = None) -> Parameter:
    """For what Optuna does not have: it searches over the quantile."""
    used = value if q is None else lambda share: _multiple(round(value(share) / q), q)
    used(1.0)  # can be too large for a float
    return Parameter(name, FloatDistribution(0.0, 1.0), used, f"quantile of {name}")


def _multiple(count: int, q: float) -> float:
    return count * q if isinstance(q, int) else round(count * float(q), 12)  # no noise of binary fractions


def _normal(mu: float, sigma: float, of: Callable[[float], float] = float) -> Callable[[float], float]:
    """The quantile function, whose ends are cut off: they are infinite."""
    return lambda share: of(NormalDist(mu, sigma).inv_cdf(min(max(share, 1e-9), 1 - 1e-9)))


def _beta(a: float, b: float) -> Callable[[float], float]:
    from scipy.special import betaincinv

    return lambda share: float(betaincinv(a, b, share))


def _by_share(values: Any, chances: Any) -> Callable[[float], Any]:
    if len(chances) != len(values) or min(chances) < 0 or not math.isclose(sum(chances), 1, abs_tol=1e-6):
        raise ValueError(f"probabilities must be a list of {len(values)} numbers that sum to 1, got {chances}")
    possible = [n for n, chance in enumerate(chances) if chance]
    return lambda share: values[next((n for n in possible if share < sum(chances[: n + 1])), possible[-1])]


# Arguments are the keys in W&B's YAML.
DISTRIBUTIONS: dict[str, Callable[..., Parameter]] = {
    "constant": lambda name, value: _list(name, [value]),
    "categorical": _list,
    "categorical_w_probabilities": _list,
    "int_uniform": _whole,
    "uniform": lambda name, min, max, q=None: _range(name, min, max, q),
    # limits are exponents of e
    "log_uniform": lambda name, min, max, q=None: _range(name, math.exp(min), math.exp(max), q, log=True),
    "log_uniform_values": lambda name, min, max, q=None: _range(name, min, max, q, log=True),
    # log(1/x) is uniform if log(x) is
    "inv_log_uniform": lambda name, min, max: _range(name, math.exp(-max), math.exp(-min), log=True),
    "inv_log_uniform_values": lambda name, min, max: _range(name, min, max, log=True),
    "normal": lambda name, mu=0.0, sigma=1.0, q=None: _quantile(name, _normal(mu, sigma), q),
    "log_normal": lambda name, mu=0.0, sigma=1.0, q=None: _quantile(name, _normal(mu, sigma, math.exp), q),
    "beta": lambda name, a=1.0, b=1.0, q=None: _quantile(name, _beta(a, b), q),
}
for _name in ("uniform", "log_uniform", "log_uniform_values", "normal", "log_normal", "beta"):
    DISTRIBUTIONS[f"q_{_name}"] = partial(DISTRIBUTIONS[_name], q=1)
