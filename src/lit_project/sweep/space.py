"""The parameters of a sweep: every distribution of W&B, drawn by Optuna."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol

from lit_project.errors import UserError

MAX_GRID = 100_000  # points


class Trial(Protocol):
    """What is used of Optuna's trials."""

    def suggest_float(self, name: str, low: float, high: float, *, log: bool = False) -> float:
        """A number."""

    def suggest_int(self, name: str, low: int, high: int) -> int:
        """A whole number."""

    def suggest_categorical(self, name: str, choices: list[str]) -> str:
        """One of several."""


# distribution → keys that it must have, keys that it may have
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "constant": (("value",), ()),
    "categorical": (("values",), ()),
    "categorical_w_probabilities": (("values", "probabilities"), ()),
    "int_uniform": (("min", "max"), ()),
    "uniform": (("min", "max"), ()),
    "q_uniform": (("min", "max"), ("q",)),
    "log_uniform": (("min", "max"), ()),
    "log_uniform_values": (("min", "max"), ()),
    "q_log_uniform": (("min", "max"), ("q",)),
    "q_log_uniform_values": (("min", "max"), ("q",)),
    "inv_log_uniform": (("min", "max"), ()),
    "inv_log_uniform_values": (("min", "max"), ()),
    "normal": ((), ("mu", "sigma")),
    "q_normal": ((), ("mu", "sigma", "q")),
    "log_normal": ((), ("mu", "sigma")),
    "q_log_normal": ((), ("mu", "sigma", "q")),
    "beta": (("a", "b"), ()),
    "q_beta": (("a", "b"), ("q",)),
}
DEFAULTS = {"q": 1.0, "mu": 0.0, "sigma": 1.0}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a sweep, in W&B's terms.

    Distributions are those of W&B: `log_uniform` has exponents of e as its limits and `log_uniform_values` the values
    themselves; `inv_log_uniform` is the exponential of a uniform number between -max and -min; `q_…` rounds to
    multiples of `q`. Those that Optuna knows are Optuna's own; the others are drawn by their quantile function, and
    Optuna searches over the quantile.

    Args:
        name: as on the command line: `model.optimizer.lr`.
        distribution: one of `KEYS`.
        options: what it takes, complete and checked.
    """

    name: str
    distribution: str
    options: dict[str, Any]

    def suggest(self, trial: Trial) -> Any:
        """Draws a value."""
        options = self.options
        kind = self.distribution.removeprefix("q_")
        value: Any
        if kind == "constant":
            return options["value"]
        if kind == "categorical":
            return json.loads(trial.suggest_categorical(self.name, [json.dumps(v) for v in options["values"]]))
        if kind == "int_uniform":
            return trial.suggest_int(self.name, options["min"], options["max"])
        if limits := self._limits(kind):
            value = trial.suggest_float(self.name, *limits, log="log" in kind)
        else:
            value = self._quantile(kind)(trial.suggest_float(f"quantile of {self.name}", 0.0, 1.0))
        return _rounded(value, options["q"]) if "q" in options else value

    def _limits(self, kind: str) -> tuple[float, float] | None:
        low, high = self.options.get("min"), self.options.get("max")
        if low is None or high is None:
            return None
        if kind == "log_uniform":
            return math.exp(low), math.exp(high)
        if kind == "inv_log_uniform":
            return math.exp(-high), math.exp(-low)
        return low, high  # log(1/x) is uniform where log(x) is: inv_log_uniform_values too

    def _quantile(self, kind: str) -> Callable[[float], Any]:
        options = self.options
        if kind == "categorical_w_probabilities":
            return lambda share: _by_share(options["values"], options["probabilities"], share)
        from scipy import stats  # a second to import

        if kind == "beta":
            distribution = stats.beta(options["a"], options["b"])
        elif kind == "normal":
            distribution = stats.norm(options["mu"], options["sigma"])
        else:  # log_normal
            distribution = stats.lognorm(options["sigma"], scale=math.exp(options["mu"]))
        # the ends of an unbounded distribution are infinite
        return lambda share: float(distribution.ppf(min(max(share, 1e-9), 1 - 1e-9)))

    def grid(self) -> list[Any]:
        """All values, for a grid.

        Raises:
            UserError: there are infinitely many.
        """
        options = self.options
        if self.distribution == "constant":
            return [options["value"]]
        if self.distribution in ("categorical", "categorical_w_probabilities"):
            return list(options["values"])
        if self.distribution == "int_uniform" and options["max"] - options["min"] < MAX_GRID:
            return list(range(options["min"], options["max"] + 1))
        if self.distribution == "q_uniform" and (options["max"] - options["min"]) / options["q"] < MAX_GRID:
            first, last = round(options["min"] / options["q"]), round(options["max"] / options["q"])
            return [_rounded(n * options["q"], options["q"]) for n in range(first, last + 1)]
        raise UserError(
            f"parameter {self.name}: a grid needs values, int_uniform or q_uniform (fewer than {MAX_GRID:,} of them), "
            f"not {self.distribution}"
        )

    def examples(self) -> list[Any]:
        """Values that show whether the command line accepts the parameter: all of a list, else about the extremes."""
        if self.distribution in ("constant", "categorical", "categorical_w_probabilities"):
            return self.grid()
        if self.distribution == "int_uniform":
            return [self.options["min"], self.options["max"]]
        kind = self.distribution.removeprefix("q_")
        values = self._limits(kind) or tuple(self._quantile(kind)(share) for share in (0.1, 0.9))
        return [_rounded(value, self.options["q"]) if "q" in self.options else value for value in values]


def _rounded(value: float, quantum: float) -> float:
    """The nearest multiple of `quantum`, without the noise of binary fractions; an int if the quantum is one."""
    count = round(value / quantum)
    return count * quantum if isinstance(quantum, int) else round(count * quantum, 12)


def _by_share(values: list[Any], probabilities: list[float], share: float) -> Any:
    total = 0.0
    for value, probability in zip(values, probabilities, strict=True):
        total += probability
        if share < total:
            return value
    return next(value for value, probability in reversed(list(zip(values, probabilities, strict=True))) if probability)


def parameters_of(section: Any) -> list[Parameter]:
    """Reads the section `parameters` of a sweep.

    Raises:
        UserError: a distribution or key that W&B does not have, missing or wrong limits, an empty list.
    """
    if not isinstance(section, Mapping) or not section:
        raise UserError("parameters must be a mapping from names to distributions")
    return [_parameter(str(name), content) for name, content in section.items()]


def _parameter(name: str, content: Any) -> Parameter:
    def wrong(reason: str) -> UserError:
        return UserError(f"parameter {name}: {reason}")

    if not isinstance(content, Mapping):
        raise wrong(f"needs value, values, or min and max, got {content!r}")
    options = dict(content)
    if "parameters" in options:
        raise wrong(f"is nested: write flat names, such as {name}.{next(iter(options['parameters'] or ['x']))}")
    distribution = options.pop("distribution", None) or _implied(options)
    if distribution is None:
        raise wrong("needs value, values, min and max, or a distribution")
    if distribution == "categorical" and "probabilities" in options:
        distribution = "categorical_w_probabilities"
    if distribution not in KEYS:
        near = get_close_matches(str(distribution), KEYS, n=1)
        hint = f"; did you mean {near[0]}?" if near else f" (one of: {', '.join(KEYS)})"
        raise wrong(f"W&B has no distribution {distribution}{hint}")
    required, optional = KEYS[distribution]
    for key in required:
        if key not in options:
            raise wrong(f"{distribution} needs {key}")
    for key in options:
        if key not in (*required, *optional):
            raise wrong(f"{distribution} has no {key} (it has {', '.join((*required, *optional))})")
    options = {**{key: DEFAULTS[key] for key in optional}, **options}
    _check(distribution, options, wrong)
    return Parameter(name, distribution, options)


def _implied(options: Mapping[str, Any]) -> str | None:
    if "value" in options:
        return "constant"
    if "values" in options:
        return "categorical"
    if "min" in options and "max" in options:
        whole = all(type(options[key]) is int for key in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    return None


def _check(distribution: str, options: dict[str, Any], wrong: Callable[[str], UserError]) -> None:
    if "values" in options and (not isinstance(options["values"], list) or not options["values"]):
        raise wrong(f"values must be a list of at least one, got {options['values']!r}")
    if "probabilities" in options:
        chances = options["probabilities"]
        if (
            len(chances) != len(options["values"])
            or min(chances) < 0
            or not math.isclose(sum(chances), 1, abs_tol=1e-6)
        ):
            raise wrong(f"probabilities must be {len(options['values'])} numbers that sum to 1, got {chances}")
    for key in ("min", "max", "q", "mu", "sigma", "a", "b"):
        value = options.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            hint = f": YAML takes {value} for text, write 1.0e-4 for 1e-4" if isinstance(value, str) else ""
            raise wrong(f"{key} must be a number, got {value!r}{hint}")
    for key in ("q", "sigma", "a", "b"):
        if options.get(key, 1) <= 0:
            raise wrong(f"{key} must be above 0, got {options[key]}")
    if "min" not in options:
        return
    if options["min"] >= options["max"]:
        raise wrong(f"min must be below max, got {options['min']} and {options['max']}")
    if distribution == "int_uniform" and not all(type(options[key]) is int for key in ("min", "max")):
        raise wrong(f"int_uniform needs whole numbers, got {options['min']} and {options['max']}")
    if distribution.endswith("log_uniform_values") and options["min"] <= 0:
        raise wrong(f"min of {distribution} must be above 0, got {options['min']}")
