"""The length of a run, for the schedulers that have to end with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from lit_project.errors import UserError


class ScheduleError(UserError):
    """A learning rate schedule contradicts itself or the length of the run."""


@dataclass
class Horizon:
    """Steps until the end (None: without end), and whether a scheduler asked for them."""

    steps: int | None
    used: bool = False


_horizon: ContextVar[Horizon] = ContextVar("horizon")


def horizon() -> int:
    """How often the scheduler under construction will be stepped until the end of the run.

    Call it in the constructor of a scheduler of your own that must end with the run.

    Raises:
        ScheduleError: the run has no end, or the scheduler is built outside `configure`.
    """
    steps = known_horizon()
    if steps is None:
        raise ScheduleError(
            "a scheduler that ends with the run needs a run with an end: set trainer.max_epochs or max_steps"
        )
    _horizon.get().used = True
    return steps


def known_horizon() -> int | None:
    """`horizon()`, or None where there is none."""
    current = _horizon.get(None)
    return current.steps if current else None


@contextmanager
def horizon_is(steps: int | None) -> Iterator[Horizon]:
    """Within it, `horizon()` is `steps` (None: without end)."""
    outer = _horizon.get(None)
    current = Horizon(steps)
    token = _horizon.set(current)
    try:
        yield current
    finally:
        _horizon.reset(token)
        if outer is not None:
            outer.used |= current.used
