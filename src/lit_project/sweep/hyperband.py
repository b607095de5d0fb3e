"""Early ends of bad trials by W&B's rule of hyperband (Li et al. 2018, arXiv:1603.06560)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lit_project.errors import UserError

ENDLESS = 100  # brackets where `max_iter` does not end them


@dataclass(frozen=True)
class Hyperband:
    """At each bracket, an iteration number, only the best `1 / eta` of the trials that got there go on.

    Args:
        brackets: ascending iteration numbers; an iteration is one logged value of the metric.
        eta: the part that goes on is `1 / eta`.
        strict: a trial is judged by its value at the bracket; otherwise by its best so far.
    """

    brackets: tuple[int, ...]
    eta: float = 3.0
    strict: bool = False

    def is_over(self, history: Sequence[float], histories: Sequence[Sequence[float]]) -> bool:
        """Whether a trial should end.

        The threshold of a bracket is the value at the border of the best `1 / eta` of the values that all trials had
        at that iteration; a trial ends when it is worse than the threshold of the last bracket that it has reached.

        Args:
            history: finite values of the trial so far, lower is better.
            histories: of all trials, running or ended, this one too.
        """
        reached = [bracket for bracket in self.brackets if bracket <= len(history)]
        if not reached:
            return False
        values = sorted(other[reached[-1] - 1] for other in histories if len(other) >= reached[-1])
        threshold = values[int(len(values) / self.eta)]
        return (history[reached[-1] - 1] if self.strict else min(history)) > threshold


def hyperband_of(section: Any) -> Hyperband | None:
    """Reads the section `early_terminate` of a sweep: brackets from `min_iter`, or from `max_iter` and `s`.

    `min_iter` gives min_iter, min_iter·eta, min_iter·eta², …; `max_iter` gives max_iter / eta, max_iter / eta², …, `s`
    of them.

    Raises:
        UserError: another type, both or neither of the two, or no bracket.
    """
    if section is None:
        return None
    if not isinstance(section, Mapping) or section.get("type") != "hyperband":
        raise UserError(f"early_terminate: the type must be hyperband, got {section!r}")
    options = {"eta": 3, "s": None, "strict": False, **section}
    unknown = sorted(set(options) - {"type", "min_iter", "max_iter", "s", "eta", "strict"})
    if unknown:
        raise UserError(f"early_terminate: hyperband has no {unknown[0]} (min_iter, max_iter, s, eta, strict)")
    if ("min_iter" in options) == ("max_iter" in options):
        raise UserError("early_terminate: hyperband needs min_iter, or max_iter and s, not both")
    eta = options["eta"]
    if not isinstance(eta, int | float) or eta <= 1:
        raise UserError(f"early_terminate: eta must be above 1, got {eta!r}")
    for key in ("min_iter", "max_iter", "s"):
        if options.get(key) is not None and (type(options[key]) is not int or options[key] < 1):
            raise UserError(f"early_terminate: {key} must be a whole number of at least 1, got {options[key]!r}")
    if "min_iter" in options:
        brackets = [int(options["min_iter"] * eta**n) for n in range(ENDLESS)]
    else:
        if options["s"] is None:
            raise UserError("early_terminate: max_iter needs s, the number of brackets")
        brackets = sorted(
            math.floor(band) for n in range(options["s"]) if (band := options["max_iter"] / eta ** (n + 1)) >= 1
        )
    if not brackets:
        raise UserError("early_terminate: no bracket is left: raise max_iter or lower eta")
    return Hyperband(tuple(brackets), float(eta), bool(options["strict"]))
