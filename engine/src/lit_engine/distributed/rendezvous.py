"""Connects the processes of a run, and stops all processes if one of them fails."""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from textwrap import shorten
from threading import Thread
from typing import Any
from uuid import uuid4

import torch.distributed as dist
from jsonargparse import Namespace
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from lit_engine._lightning import destroy_process_group, group_options, replace_setup
from lit_engine.errors import UserError
from lit_engine.project import current, program
from lit_engine.run.provenance import versions

# Packages that must have the same version in all processes. The version of the project must also match.
SAME = ("torch", "lightning", "lit-engine")
JOIN_SECONDS = 600.0  # how long a process waits for the others
REPORT_SECONDS = 3.0  # how long a failed process waits for rank 0 to report the same error


def follow_launcher(trainer: Namespace) -> None:
    """Copy `devices` and `num_nodes` from torchrun or `srun` if they are unset. If `devices` is set, `srun` is ignored.

    Raises:
        UserError: if the options contradict the launcher, or MASTER_PORT is invalid.
    """
    if not ((port := os.environ.get("MASTER_PORT", "0")).isdecimal() and int(port) < 2**16):
        raise UserError(f"MASTER_PORT must be a number below 65536, got {port!r}")
    unset = str(trainer.devices) in ("auto", "-1")
    # SLURM_STEP_… is only set in tasks, not in the batch script that starts them. Lightning requires --ntasks-per-node.
    if TorchElasticEnvironment.detect():
        launcher, sizes = "torchrun", ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    elif unset and SLURMEnvironment.detect() and {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS_PER_NODE"} <= os.environ.keys():
        launcher, sizes = "srun", ("SLURM_NTASKS_PER_NODE", "SLURM_NNODES")
    else:
        return
    devices, nodes = (int(os.environ[name]) for name in sizes)
    for name, started, given, what, default in (
        ("devices", devices, None if unset else _count(trainer.devices), "processes per node", "auto"),
        ("num_nodes", nodes, None if trainer.num_nodes == 1 else trainer.num_nodes, "nodes", "1"),
    ):
        if given is None:
            trainer[name] = started
        elif given != started:
            raise UserError(
                f"trainer.{name} is {given}, but {launcher} started {started} {what}: "
                f"let {launcher} decide (--trainer.{name}={default}), or set both to the same number"
            )


def _count(devices: Any) -> Any:
    if isinstance(devices, str) and "," in devices:
        devices = [one for one in devices.split(",") if one]
    return len(devices) if isinstance(devices, list) else int(devices) if str(devices).isdecimal() else devices


class Connection:
    """Connection between the processes of a strategy.

    A connection replaces `setup_environment` of Lightning's multi-process strategies, and initializes torch.distributed
    before Lightning does. Other strategies are not changed.
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.children: list[subprocess.Popen] = []
        self.store: dist.Store | None = None  # set when all processes are connected

    @classmethod
    def of(cls, strategy: Strategy) -> "Connection | None":
        """Attach a connection to one of Lightning's multi-process strategies. Return None for other strategies."""
        if not isinstance(strategy, DDPStrategy | FSDPStrategy | ModelParallelStrategy):
            return None
        connection = cls(strategy)
        replace_setup(strategy, connection)
        return connection

    def __call__(self) -> None:
        """Wait for all processes, create their process group, and call Lightning's `setup_environment`."""
        strategy = self.strategy
        if not dist.is_initialized():
            strategy.accelerator.setup_device(strategy.root_device)
            strategy.set_world_ranks()
            rank, size, (backend, timeout) = strategy.global_rank, strategy.world_size, group_options(strategy)
            environment, known = strategy.cluster_environment, versions()
            here = {"host": socket.gethostname(), **{name: str(known.get(name)) for name in (*SAME, program())}}
            store = Rendezvous(environment.main_address, environment.main_port, rank, size, here).all_here()
            store.set_timeout(timeout)
            self.store = store
            device = None if strategy.root_device.type == "cpu" else strategy.root_device
            dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout, device_id=device)
            if backend == "nccl":
                atexit.register(destroy_process_group)
        type(strategy).setup_environment(strategy)

    def report(self, error: Exception, message: str | None) -> None:
        """Print the message or traceback of the error that is being handled, and kill the launched processes.

        A process that waited for a failed or slow process prints only one line, because a failed process reports the
        cause. If several processes fail with the same error, only rank 0 reports it.
        """
        self.stop_watching()
        rank, key = self.strategy.global_rank, f"reported {type(error).__name__}: {error}"
        if message is None and (isinstance(error, dist.DistError) or "gloo/transport" in str(error)):
            why = "did not respond in time" if "timed out" in str(error).lower() else "disconnected"
            message = shorten(f"rank {rank} ended because another rank {why}: {error}", 300)
        elif rank and self._is_set(key):
            return
        if message is None:
            traceback.print_exc()
        else:
            print(f"error: {message}", file=sys.stderr, flush=True)
        if self.store is not None and rank == 0:
            with contextlib.suppress(RuntimeError):  # torchrun's agent has already exited
                self.store.set(key, "")
        for child in self.children:
            child.kill()

    def _is_set(self, key: str) -> bool:
        """Wait a few seconds for a key in the store, and return whether it was set."""
        if self.store is None:
            return False
        try:
            self.store.wait([key], timedelta(seconds=REPORT_SECONDS))
        except RuntimeError:  # timed out, or rank 0 has already exited
            return False
        return True

    def stop_watching(self) -> None:
        """Remove the launched processes from Lightning's observer. Stop them if they are not connected yet.

        When a launched process fails, the observer kills the main process before it can write files and report errors.
        """
        launched = getattr(self.strategy.launcher, "procs", [])
        self.children += launched
        launched.clear()
        if self.store is None:
            for child in self.children:
                child.terminate()


class Rendezvous:
    """Key-value store in which the processes of a run find each other, served by rank 0 or by torchrun's agent.

    The agent's store survives a restart and keeps the data of earlier processes. No torchrun variable counts
    restarts across several nodes (pytorch issue 135712). Rank 0 therefore creates a new namespace in the store, and the
    others join the newest namespace that has not started. `here` contains this process's host and package versions.
    """

    def __init__(self, host: str, port: int, rank: int, size: int, here: Mapping[str, str]) -> None:
        self.address, self.rank, self.size, self.here = (host, port), rank, size, here
        self.began, self.told = time.monotonic(), False
        self.where, self.who = f"{host}:{port}", f"rank {rank} ({here['host']})"
        self.serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self.store: Any = None
        self.part: Any = None  # namespace for this run
        self.name = ""  # name of the namespace

    def all_here(self) -> dist.Store:
        """Wait for all processes, and return the store namespace that only this run uses.

        Raises:
            UserError: if the port is taken, a process does not join in time, or installed package versions differ.
        """
        found: list[Any] = []
        if not self.serves:
            self._wait(lambda: is_reachable(self.address))
        # Connect in a thread, because another program on this port might never answer.
        Thread(target=lambda: found.append(self._connect()), daemon=True).start()
        self._wait(lambda: found)
        if isinstance(found[0], Exception):
            taken = "EADDRINUSE" in str(found[0])
            why = "is taken by another program: set MASTER_PORT to a free port" if taken else f"is unusable: {found[0]}"
            raise UserError(f"{self.where} {why}")
        self.store = dist.PrefixStore(current().name, found[0])
        if self.rank == 0:
            self.store.set("newest", uuid4().hex)
            self._join()
            try:
                self._wait(lambda: self.part.add("joined", 0) == self.size)
                refusal = describe_version_mismatch(self._describe_ranks(range(self.size)))
            except UserError as error:
                refusal = str(error)
            self.part.set("started", refusal)
        self._wait(self._join)
        if refusal := self.part.get("started").decode():
            self.part.add("left", 1)
            until = time.monotonic() + 5
            while self.rank == 0 and self.part.add("left", 0) < self.part.add("joined", 0) and time.monotonic() < until:
                time.sleep(0.05)  # the store may shut down when this process ends
            raise UserError(refusal)
        return self.part

    def _connect(self) -> Any:
        try:
            return dist.TCPStore(*self.address, None, self.serves, wait_for_workers=False, multi_tenant=True)
        except (RuntimeError, ValueError) as error:
            return error

    def _join(self) -> bool:
        """Join the newest store namespace. Return True if rank 0 either confirmed the start or reported a failure."""
        name = self.store.get("newest").decode() if self.store.check(["newest"]) else ""
        if name != self.name:
            self.name, self.part = name, dist.PrefixStore(name, self.store)
            if self.part.check(["started"]):  # processes that ran before the restart used this namespace
                self.part = None
            else:
                self.part.set(str(self.rank), json.dumps(self.here))
                self.part.add("joined", 1)
        return self.part is not None and self.part.check(["started"])

    def _wait(self, ready: Callable[[], Any]) -> None:
        while True:
            try:
                if ready():
                    return
            except RuntimeError as error:
                raise UserError(f"{self.who} ended because rank 0 at {self.where} is unreachable") from error
            waited = time.monotonic() - self.began
            # Wait 5 s longer than rank 0, so that rank 0 reports the missing processes.
            if waited > JOIN_SECONDS + (5 if self.rank and self.part is not None else 0):
                raise UserError(f"{self.who} has waited {JOIN_SECONDS:g} s for {self._describe_missing_ranks()}")
            if waited > min(30, JOIN_SECONDS / 2) and not self.told:
                self.told = True
                print(f"{self.who} waits for {self._describe_missing_ranks()}", file=sys.stderr, flush=True)
            time.sleep(0.05)

    def _describe_missing_ranks(self) -> str:
        if self.part is None:
            return f"rank 0 at {self.where}"
        there = [rank for rank in range(self.size) if self.part.check([str(rank)])]
        known = [f"{rank} ({info['host']})" for rank, info in zip(there, self._describe_ranks(there), strict=True)]
        lacking = [str(rank) for rank in range(self.size) if rank not in there]
        return (
            f"rank {shorten(', '.join(lacking), 200)} of {self.size} at {self.where}; "
            f"connected: {shorten(', '.join(known), 400)}"
        )

    def _describe_ranks(self, ranks: Iterable[int]) -> list[dict[str, str]]:
        return [json.loads(info) for info in self.part.multi_get([str(rank) for rank in ranks])]


def is_reachable(address: tuple[str, int]) -> bool:
    """Return whether a program is listening on a host and port."""
    with contextlib.suppress(OSError), socket.create_connection(address, 2):
        return True
    return False


def describe_version_mismatch(processes: Sequence[Mapping[str, str]]) -> str:
    """Return an error message if package versions differ between `processes` (by rank), or "" if they match."""
    first = processes[0]
    for rank, other in enumerate(processes):
        for name in (*SAME, program()):
            if other[name] != first[name]:
                return (
                    f"the processes of this run have different versions: {name} {first[name]} on rank 0 "
                    f"({first['host']}) and {other[name]} on rank {rank} ({other['host']}): "
                    "install the same version everywhere"
                )
    return ""
