"""Ranks of processes, reductions over processes, and the signals that stop processes."""

import contextlib
import os
import resource
import signal
import sys
from typing import Any, NamedTuple

import torch.distributed
from lightning.pytorch import Trainer
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor

from lit_engine._lightning import device_mesh, rank, set_rank

# SLURM can send SIGUSR1 shortly before the time limit of a job.
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


def is_first() -> bool:
    """Return whether this process has global rank 0, even before a strategy has started."""
    return rank() == 0


def set_rank_if_alone(trainer: Any) -> None:
    """Set the rank to 0 if the trainer will run in a single process.

    On import, Lightning reads the rank from environment variables of SLURM and torchrun, even for a single process. In
    a SLURM job with several such runs, only the first task's run would write files. Lightning does not read NODE_RANK,
    which is set if the user starts one process on each node.
    """
    if is_first() and "RANK" not in os.environ and os.environ.get("NODE_RANK", "0") not in ("", "0"):
        set_rank(1)  # The trainer will set the exact rank.
    if is_first():
        return
    strategy = trainer.strategy if isinstance(trainer.strategy, str) else "auto"
    given = {name: trainer[name] for name in ("accelerator", "devices", "num_nodes")}
    with contextlib.suppress(RuntimeError, ValueError, MisconfigurationException):  # the run's trainer raises the error
        if Trainer(**given, strategy=strategy, logger=False, enable_checkpointing=False).world_size == 1:
            set_rank(0)


def measure_peak_memory() -> dict[str, int]:
    """Return the peak memory in bytes of this process and, if CUDA is in use, of tensors on its device."""
    unit = 1 if sys.platform == "darwin" else 1024
    found = {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.max_memory_allocated()
    return found


def print_once(text: str) -> None:
    """Print text in the first process only."""
    if is_first():
        print(text, flush=True)


def warn_once(text: str) -> None:
    """Print a note, warning or error to stderr in the first process only."""
    if is_first():
        print(text, file=sys.stderr, flush=True)


class Replicas(NamedTuple):
    """Model replicas, each with its own batches. Each process or tensor-parallel group of processes is a replica.

    Attributes:
        size: number of replicas.
        rank: index of this process's replica.
        group: process group with one process per replica, used to sum counts. None means all processes.
    """

    size: int = 1
    rank: int = 0
    group: Any = None


def replicas(trainer: Trainer | None) -> Replicas:
    """Return the replicas of a trainer whose strategy has started."""
    if trainer is None or trainer.world_size == 1:
        return Replicas()
    mesh = device_mesh(trainer.strategy)
    if mesh is None:
        return Replicas(trainer.world_size, trainer.global_rank)
    axis = mesh["data_parallel"]
    return Replicas(axis.size(), axis.get_local_rank(), axis.get_group())


def all_reduced(tensor: Tensor, group: Any = None) -> Tensor:
    """Return the sum of a tensor over all processes, which must all call this.

    Lightning's `strategy.reduce` waits at a barrier first, which doubles its cost in each step.
    """
    tensor = tensor.clone()
    torch.distributed.all_reduce(tensor, group=group)
    return tensor


class Maximum:
    """Maximum of an integer over all processes, computed in the background. All processes must create this object.

    Reading the maximum in a later step does not wait for the device.
    """

    def __init__(self, value: int, device: torch.device) -> None:
        self._value = torch.full((), value, device=device)  # `torch.tensor` would copy the value and wait for the GPU
        work: Any = torch.distributed.all_reduce(self._value, torch.distributed.ReduceOp.MAX, async_op=True)
        self._wait = work.wait
        if device.type != "cpu":
            work.wait()  # only the stream waits, not this process
        self._value = self._value.to("cpu", non_blocking=True)
        if device.type != "cpu":
            copied = torch.Event(device)
            copied.record()
            self._wait = copied.synchronize

    def read(self) -> int:
        """Return the maximum."""
        self._wait()
        return int(self._value)


def all_gathered(items: list[Any], trainer: Trainer) -> list[Any]:
    """Return the items of all replicas, in the order of their ranks. All processes must call this."""
    size, _, group = replicas(trainer)
    if size == 1:
        return items
    shares: list[Any] = [None] * size
    torch.distributed.all_gather_object(shares, items, group)
    return [item for share in shares for item in share]
