"""The section `parameters` of a sweep: reads it, names each mistake with its parameter."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from lit_project.errors import UserError, did_you_mean
from lit_project.sweep.space import DEFAULTS, KEYS, Parameter

MAX_POWER = 700  # e^709 is about the largest number that a float holds, e^-708 the smallest


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
        hint = did_you_mean(str(distribution), KEYS, f" (one of: {', '.join(KEYS)})")
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
    _check_powers(distribution, options, wrong)
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
    for key in ("value", "values"):
        try:
            json.dumps(options.get(key))
        except (TypeError, ValueError) as error:
            raise wrong(
                f"{key} must be text, numbers, lists or mappings: {error} (quotes make text of a date)"
            ) from error
    if "probabilities" in options:
        _check_probabilities(options["probabilities"], len(options["values"]), wrong)
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


def _check_probabilities(chances: Any, count: int, wrong: Callable[[str], UserError]) -> None:
    numbers = isinstance(chances, list) and all(type(chance) in (int, float) for chance in chances)
    if not numbers or len(chances) != count or min(chances) < 0 or not math.isclose(sum(chances), 1, abs_tol=1e-6):
        raise wrong(f"probabilities must be a list of {count} numbers that sum to 1, got {chances}")


def _check_powers(distribution: str, options: Mapping[str, Any], wrong: Callable[[str], UserError]) -> None:
    """Limits that are exponents of e must give numbers."""
    kind = distribution.removeprefix("q_")
    if kind in ("log_uniform", "inv_log_uniform"):
        sign = -1 if kind == "inv_log_uniform" else 1
        low, high = sorted(sign * options[key] for key in ("min", "max"))
    elif kind == "log_normal":
        low, high = options["mu"], options["mu"] + 6 * options["sigma"]
    else:
        return
    hint = f" (for the limits themselves: {distribution}_values)" if "min" in options else ""
    for power in (low, high):
        if not abs(power) < MAX_POWER:
            raise wrong(f"{distribution} takes exponents of e, and e^{power:g} is out of range{hint}")
