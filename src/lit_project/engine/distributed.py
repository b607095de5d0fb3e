"""Which of several processes this is, and what the others have."""

import contextlib
from typing import Any

import torch.distributed
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


def of_all(items: list[Any], trainer: Trainer) -> list[Any]:
    """The items of all processes, in the order of their ranks; to be called in all."""
    if trainer.world_size == 1:
        return items
    shares: list[Any] = [None] * trainer.world_size
    torch.distributed.all_gather_object(shares, items)
    return [item for share in shares for item in share]
