"""One trial: `lit-project fit` in a process of its own, followed through its run directory."""

import contextlib
import csv
import fcntl
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lit_project.errors import RunError
from lit_project.run import RunDir, write_text
from lit_project.sweep.config import SweepConfig
from lit_project.sweep.study import Job

PROGRAM = [sys.executable, "-m", "lit_project"]
PATIENCE = 60.0  # seconds for a trial to end in order before it is killed


class Process:
    """A trial at work. Its output is kept in `logs/`, its values in `values/`.

    A lock that the process inherits tells whether it lives, even to a sweep that did not start it: where a sweep was
    killed and its trials went on, the next one waits for them, and can end them by the process id in the lock's file.

    Args:
        job: what to run.
        folder: of the sweep.
        run: the run directory of the trial.
    """

    def __init__(self, job: Job, folder: Path, run: Path) -> None:
        self.job, self.run = job, RunDir(run)
        self.stopped = False  # by hyperband
        self.started = time.monotonic()
        self.log = folder / "logs" / f"{job.number:04d}.log"
        self._values = folder / "values" / f"{job.number:04d}.json"
        self._lock = folder / "logs" / f"{job.number:04d}.lock"
        self._popen: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._seen = 0
        self._history: list[float] = []
        self._asked = 0.0

    def start(self, config: SweepConfig, options: Sequence[str], environment: Mapping[str, str]) -> str:
        """Starts it, or goes on from its last checkpoint; says which: `started`, `resumed`, or `found running`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        lock = self._lock.open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with lock:
                lock.seek(0)
                self._pid = _local_pid(lock.read())
            return "found running"
        lock.truncate(0)  # whoever had it before may be another process by now
        words, what = self._words(config, options)
        with lock, self.log.open("ab") as log:
            self._popen = subprocess.Popen(
                [*PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                pass_fds=[lock.fileno()],
                start_new_session=True,  # Ctrl-C is the sweep's, which then ends its trials
            )
            self._pid = self._popen.pid
            with contextlib.suppress(OSError):  # a trial that runs is worth more than the means to end it
                os.write(lock.fileno(), f"{self._pid} {platform.node()}\n".encode())
        return what

    def _words(self, config: SweepConfig, options: Sequence[str]) -> tuple[list[str], str]:
        if self.run.path.exists():
            with contextlib.suppress(RunError):
                self.run.newest()
                return ["fit", "--run", str(self.run.path)], "resumed"
            shutil.rmtree(self.run.path)  # it was cut before its first checkpoint
        write_text(self._values, json.dumps(self.job.values, indent=2) + "\n")
        return [*config.words(self.job.values, self._values), *options], "started"

    def exit_status(self) -> int | None:
        """None while it runs; a process that another sweep started ends with 0 if its training came to its end."""
        if self._popen is not None:
            return self._popen.poll()
        with self._lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
        return 0 if self.trained() else 1

    @property
    def can_be_stopped(self) -> bool:
        """Whether its process is known: that of a trial found running is not if it is on another machine."""
        return self._pid is not None

    def trained(self) -> bool:
        """Whether training came to its end."""
        return "fit" in self.run.metrics()

    def history(self, metric: str) -> list[float]:
        """The finite values of the metric so far, in order."""
        size = _size(self.run.path / "metrics.csv")
        if size != self._seen:
            with (self.run.path / "metrics.csv").open(newline="") as file:
                self._history = _numbers(file, metric)
            self._seen = size
        return self._history

    def columns(self) -> list[str]:
        """The names in metrics.csv."""
        file = self.run.path / "metrics.csv"
        if not file.exists():
            return []
        with file.open(newline="") as lines:
            return next(csv.reader(lines), [])

    def seconds(self) -> float:
        """Since it was started here."""
        return time.monotonic() - self.started

    def stop(self) -> None:
        """Asks it to end in order; kills it where it does not within a minute. To be called until it has ended."""
        if self._pid is None or self.exit_status() is not None:
            return
        now = time.monotonic()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if not self._asked:
                self._asked = now
                os.kill(self._pid, signal.SIGTERM)
            elif now - self._asked > PATIENCE:
                os.killpg(self._pid, signal.SIGKILL)  # with the processes that hold its lock

    def error(self) -> str:
        """Why it failed: the error that it printed last, or its last line."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        status = self.exit_status()
        if status is not None and status < 0 and not errors:
            return f"killed by signal {signal.Signals(-status).name}"
        return (errors or lines or ["no output"])[-1].removeprefix("error: ")


def _local_pid(text: str) -> int | None:
    """The process id in a lock's file, if it is one of this machine: folders are shared between machines."""
    pid, _, host = text.strip().partition(" ")
    return int(pid) if pid.isdigit() and host == platform.node() else None


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _numbers(file: IO[str], metric: str) -> list[float]:
    found = []
    for row in csv.DictReader(file):
        with contextlib.suppress(ValueError):  # a row that is being written
            value = float(row.get(metric) or "nan")
            if math.isfinite(value):
                found.append(value)
    return found


def environment_of(slot: int, workers: int, devices: int = 0) -> dict[str, str]:
    """The environment of a trial: its part of the cores, and one of the GPUs where there are several.

    Args:
        slot: which of the workers it is, from 0.
        workers: trials at a time.
        devices: GPUs of this machine, of which CUDA_VISIBLE_DEVICES may show some.
    """
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // workers)))
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [name for name in shown.split(",") if name] if shown is not None else [str(n) for n in range(devices)]
    if workers > 1 and len(gpus) > 1:
        environment["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return environment
