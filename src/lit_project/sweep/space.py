"""Every distribution of W&B, drawn by Optuna."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
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
    "beta": ((), ("a", "b")),
    "q_beta": ((), ("a", "b", "q")),
}
DEFAULTS = {"q": 1.0, "mu": 0.0, "sigma": 1.0, "a": 1.0, "b": 1.0}


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
        options: what it takes, complete and checked (parameters.py).
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
        """Values that show whether the command line accepts the parameter.

        All of a list; the limits; where there are none, the quantiles of 10 and 90 %.
        """
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
