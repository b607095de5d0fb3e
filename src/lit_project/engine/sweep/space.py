"""The parameters of a sweep: W&B's distributions as those of Optuna."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from ..errors import UserError, did_you_mean

LIMITS = ("min", "max")
KEYS = {
    "constant": ("value",), "categorical": ("values",), "categorical_w_probabilities": ("values", "probabilities"),
    "int_uniform": LIMITS, "uniform": LIMITS, "log_uniform": LIMITS, "log_uniform_values": LIMITS,
    "inv_log_uniform": LIMITS, "inv_log_uniform_values": LIMITS,
    "normal": ("mu", "sigma"), "log_normal": ("mu", "sigma"), "beta": ("a", "b"),
}  # fmt: skip
KEYS |= {
    f"q_{name}": (*KEYS[name], "q")
    for name in ("uniform", "log_uniform", "log_uniform_values", "normal", "log_normal", "beta")
}
DEFAULTS = {"q": 1, "mu": 0.0, "sigma": 1.0, "a": 1.0, "b": 1.0}


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
        except (ValueError, TypeError, OverflowError) as error:
            raise UserError(f"parameter {name}: {error}") from error
    return found


def _parameter(name: str, content: Any) -> Parameter:
    """Reads one; raises ValueError, TypeError or OverflowError if it is wrong."""
    options = dict(content) if isinstance(content, Mapping) else {}
    kind = options.pop("distribution", None) or _implied(options)
    if kind is None:
        raise ValueError(f"needs value, values, min and max, or a distribution, got {content!r}")
    if kind == "categorical" and "probabilities" in options:
        kind = "categorical_w_probabilities"
    if kind not in KEYS:
        raise ValueError(f"W&B has no distribution {kind}" + did_you_mean(str(kind), KEYS, f" ({', '.join(KEYS)})"))
    if unknown := [key for key in options if key not in KEYS[kind]]:
        raise ValueError(f"{kind} has no {unknown[0]} (it has {', '.join(KEYS[kind])})")
    if missing := [key for key in KEYS[kind] if key not in options and key not in DEFAULTS]:
        raise ValueError(f"{kind} needs {missing[0]}")
    if "probabilities" in options:
        return _quantile(name, _by_share(options["values"], options["probabilities"]))
    if "value" in options or "values" in options:
        return _list(name, options["values"] if "values" in options else [options["value"]])
    options = {key: options.get(key, DEFAULTS.get(key)) for key in KEYS[kind]}
    for key, value in options.items():
        options[key] = float(value) if isinstance(value, str) else value  # YAML takes 1e-4 for text
        if not math.isfinite(options[key]) or (key in ("q", "sigma", "a", "b") and options[key] <= 0):
            raise ValueError(f"{key} must be a number{' above 0' if key not in (*LIMITS, 'mu') else ''}, got {value!r}")
    if kind == "int_uniform":
        if not all(type(limit) is int for limit in options.values()):
            raise ValueError(f"int_uniform needs whole numbers, got {options['min']} and {options['max']}")
        return Parameter(name, IntDistribution(options["min"], options["max"]), int, name)
    q = options.pop("q", None)

    def multiple(count: int) -> float:
        return count * q if isinstance(q, int) else round(count * float(q), 12)  # no noise of binary fractions

    if "min" not in options:
        continuous = _inverse(kind.removeprefix("q_"), *options.values())
        continuous(1.0)  # can be too large for a float
        return _quantile(name, (lambda share: multiple(round(continuous(share) / q))) if q else continuous)
    low, high = options["min"], options["max"]
    if kind.endswith("log_uniform"):  # the limits are exponents of e; log(1/x) is uniform if log(x) is
        low, high = (math.exp(-high), math.exp(-low)) if kind == "inv_log_uniform" else (math.exp(low), math.exp(high))
    log = "log" in kind
    if q:  # multiples within the limits
        first, last = math.ceil(low / q - 1e-9), math.floor(high / q + 1e-9)
        return Parameter(name, IntDistribution(max(first, int(log)), last, log), multiple, f"multiple of {name}")
    return Parameter(name, FloatDistribution(low, high, log), float, name)


def _implied(options: Mapping[str, Any]) -> str | None:
    if all(limit in options for limit in LIMITS):
        return "int_uniform" if all(type(options[limit]) is int for limit in LIMITS) else "uniform"
    return "constant" if "value" in options else "categorical" if "values" in options else None


def _list(name: str, values: Sequence[Any]) -> Parameter:
    """As JSON, which keeps types; Optuna's own choices are scalars."""
    return Parameter(name, CategoricalDistribution([json.dumps(value) for value in values]), json.loads, name)


def _quantile(name: str, value: Callable[[float], Any]) -> Parameter:
    """For what Optuna does not have: it searches over the quantile."""
    return Parameter(name, FloatDistribution(0.0, 1.0), value, f"quantile of {name}")


def _inverse(kind: str, first: float, second: float) -> Callable[[float], float]:
    """The quantile function of normal, log_normal or beta, whose ends are cut off if they are infinite."""
    if kind == "beta":
        from scipy.special import betaincinv

        return lambda share: float(betaincinv(first, second, share))
    normal = lambda share: NormalDist(first, second).inv_cdf(min(max(share, 1e-9), 1 - 1e-9))  # noqa: E731
    return normal if kind == "normal" else lambda share: math.exp(normal(share))


def _by_share(values: Any, chances: Any) -> Callable[[float], Any]:
    if len(chances) != len(values) or min(chances) < 0 or not math.isclose(sum(chances), 1, abs_tol=1e-6):
        raise ValueError(f"probabilities must be a list of {len(values)} numbers that sum to 1, got {chances}")
    possible = [n for n, chance in enumerate(chances) if chance]
    return lambda share: values[next((n for n in possible if share < sum(chances[: n + 1])), possible[-1])]
