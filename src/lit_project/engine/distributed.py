"""Which of several processes this is."""

import contextlib
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException


def is_first() -> bool:
    """Whether this process has global rank 0, also before a strategy has started."""
    return getattr(rank_zero_only, "rank", 0) == 0


def first_if_alone(trainer: Any) -> None:
    """Makes this the first process if its trainer will have no other.

    Lightning takes the rank from the variables of SLURM and torchrun when it is imported, for any world size: in a
    SLURM job of several runs, a run that is not the first task would write nothing.
    """
    if is_first():
        return
    strategy = trainer.strategy if isinstance(trainer.strategy, str) else "auto"
    given = {name: trainer[name] for name in ("accelerator", "devices", "num_nodes")}
    with contextlib.suppress(RuntimeError, ValueError, MisconfigurationException):  # which the real trainer raises
        if Trainer(**given, strategy=strategy, logger=False, enable_checkpointing=False).world_size == 1:
            setattr(rank_zero_only, "rank", 0)  # noqa: B010  (mypy knows no such attribute)


def print_once(text: str) -> None:
    """Prints in the first process only."""
    if is_first():
        print(text, flush=True)
