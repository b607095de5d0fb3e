"""The length of a run, for the schedulers that have to end with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from lit_project.errors import UserError

_horizon: ContextVar[int | None] = ContextVar("horizon", default=None)


class ScheduleError(UserError):
    """A learning rate schedule contradicts itself or the length of the run."""


def horizon() -> int:
    """How often the scheduler under construction will be stepped until the end of the run.

    Call it in the constructor of a scheduler of your own that must end with the run.

    Raises:
        ScheduleError: the run has no end, or the scheduler is built outside `configure`.
    """
    steps = _horizon.get()
    if steps is None:
        raise ScheduleError("a scheduler that ends with the run needs a run with an end: set trainer.max_epochs or max_steps")
    return steps


@contextmanager
def horizon_is(steps: int | None) -> Iterator[None]:
    """Within it, `horizon()` is `steps` (None: without end)."""
    token = _horizon.set(steps)
    try:
        yield
    finally:
        _horizon.reset(token)


def known_horizon() -> int | None:
    """`horizon()`, or None where there is none."""
    return _horizon.get()
