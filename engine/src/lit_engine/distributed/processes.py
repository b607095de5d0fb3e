"""Ranks of processes, sums over them, and the signals that end them."""

import contextlib
import signal
from typing import Any, NamedTuple

import torch.distributed
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lit_engine._lightning import device_mesh, rank, set_rank

# SIGUSR1 comes from SLURM, before the time of a job is up
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]


def is_first() -> bool:
    """Whether this process has global rank 0, also before a strategy has started."""
    return rank() == 0


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
            set_rank(0)


def print_once(text: str) -> None:
    """Prints in the first process only."""
    if is_first():
        print(text, flush=True)


class Replicas(NamedTuple):
    """Nets that are trained on batches of their own: one per process, or per group of them with tensor parallelism.

    Attributes:
        size: how many.
        rank: which of them is here.
        group: of one process of each, over which counts are summed; None for all processes.
    """

    size: int = 1
    rank: int = 0
    group: Any = None


def replicas(trainer: Trainer | None) -> Replicas:
    """Those of a trainer whose strategy has started."""
    if trainer is None or trainer.world_size == 1:
        return Replicas()
    mesh = device_mesh(trainer.strategy)
    if mesh is None:
        return Replicas(trainer.world_size, trainer.global_rank)
    axis = mesh["data_parallel"]
    return Replicas(axis.size(), axis.get_local_rank(), axis.get_group())


def all_reduced(tensor: Tensor, by: str = "SUM", group: Any = None) -> Tensor:
    """The sum of the tensors of all processes, or `by` MAX; to be called in all.

    Lightning's `strategy.reduce` waits at a barrier before, which doubles what it costs in each step.
    """
    tensor = tensor.clone()
    torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, by), group)
    return tensor


def all_gathered(items: list[Any], trainer: Trainer) -> list[Any]:
    """The items of all replicas, in the order of their ranks; to be called in all processes."""
    size, _, group = replicas(trainer)
    if size == 1:
        return items
    shares: list[Any] = [None] * size
    torch.distributed.all_gather_object(shares, items, group)
    return [item for share in shares for item in share]
