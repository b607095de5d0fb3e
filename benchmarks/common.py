"""Utilities shared by the benchmarks: timed command-line fits, interleaved rounds, tables and JSON results."""

import atexit
import gc
import json
import os
import platform
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from lit_engine._lightning import remember_missing_cuda
from lit_engine.cli.main import keep_freed_memory
from lit_project.__main__ import main as lit_project
from lit_project.text.vocabulary import PAD

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DATA = ROOT / "data"


def as_the_program(threads: int) -> None:
    """Apply the command line's performance settings to this process, so that hand-written loops benefit as well."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    remember_missing_cuda()
    gc.freeze()
    atexit.register(gc.unfreeze)


class Times(NamedTuple):
    """Wall-clock seconds, and CPU seconds of all threads of this process.

    For a single-threaded program on an idle machine, both are the same. On a busy machine, CPU seconds vary less. They
    exclude child processes.
    """

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> "Times":
        """Read both clocks."""
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: "Times") -> "Times":
        """Return the time elapsed since `other`."""
        return Times(self.wall - other.wall, self.cpu - other.cpu)

    @classmethod
    def mean(cls, times: Sequence["Times"]) -> "Times":
        """Return the mean of several times."""
        return cls(statistics.mean(t.wall for t in times), statistics.mean(t.cpu for t in times))


class EpochClock(Callback):
    """Callback that times each epoch of a fit, from its start to the start of the next epoch or the end of training.

    This includes the iterator, steps, validation, logging, figures and checkpoints. The clock must be the first
    callback, so that the epoch includes what the other callbacks do at its start.

    Attributes:
        epochs: Times of the epochs of the latest fit.
        metrics: Metrics at the end of the latest fit.
    """

    epochs: ClassVar[list[Times]] = []  # class attributes, because the command line creates the instance
    metrics: ClassVar[dict[str, float]] = {}

    def __init__(self) -> None:
        self._mark: Times | None = None
        EpochClock.epochs = []

    def _lap(self) -> None:
        now = Times.now()
        if self._mark is not None:
            EpochClock.epochs.append(now - self._mark)
        self._mark = now

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the time of the previous epoch."""
        self._lap()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the time of the last epoch."""
        self._lap()
        EpochClock.metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}


class StepClock(Callback):
    """Callback that records when steps, validations and predictions end, in class attributes like `EpochClock`."""

    start: ClassVar[float] = 0.0  # start time of the latest fit or prediction
    steps: ClassVar[list[tuple[float, int]]] = []  # in the latest epoch: time, number of images or target tokens
    ends: ClassVar[list[tuple[float, list[str]]]] = []  # seconds from the start, translations

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        StepClock.start, StepClock.ends = time.perf_counter(), []

    def on_train_batch_end(self, trainer: Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            StepClock.steps = []
        size = int((batch.target[:, 1:] != PAD).sum()) if hasattr(batch, "target") else len(batch[0])
        StepClock.steps.append((time.perf_counter(), size))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        hypotheses = [row.hypothesis for row in getattr(pl_module, "rows", ())]
        StepClock.ends.append((time.perf_counter() - StepClock.start, hypotheses))

    on_predict_start, on_predict_end = on_train_start, on_validation_end


@contextmanager
def terminal() -> Iterator[None]:
    """Redirect output to a pseudo terminal with 120 columns, so that progress bars are drawn."""
    master, slave = pty.openpty()
    drain = subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(master)
    os.environ.update(TERM="xterm-256color", COLUMNS="120", LINES="40")
    try:
        with os.fdopen(slave, "w", buffering=1) as screen, redirect_stdout(screen), redirect_stderr(screen):
            yield
    finally:
        drain.wait(timeout=10)


def command(*words: str | Path) -> None:
    """Run `lit-project WORDS` in this process on a pseudo terminal. Raise RuntimeError if the command fails."""
    with terminal():
        status = lit_project([str(word) for word in words])
    if status != 0:
        raise RuntimeError(f"lit-project {' '.join(map(str, words))} exited with status {status}")


def fit(*args: str) -> Times:
    """Return the mean time per epoch of `lit-project fit ARGS`, excluding the first epoch. See `command`."""
    with TemporaryDirectory() as runs:
        clock = f"--trainer.callbacks+={json.dumps({'class_path': 'common.EpochClock'})}"
        command("fit", *args, clock, "--runs_dir", runs, f"--data.init_args.root={DATA}")
    return Times.mean(EpochClock.epochs[1:])


def interleave(variants: Mapping[str, Callable[[], Times]], rounds: int) -> dict[str, list[Times]]:
    """Run all variants in each round, and return the times of each variant by round.

    Each round starts with a different variant.
    """
    names = list(variants)
    values: dict[str, list[Times]] = {name: [] for name in names}
    for number in range(rounds):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            values[name].append(variants[name]())
            print(f"\r\033[Kround {number + 1}/{rounds}: {name} {values[name][-1].wall:.3f} s", end="", file=sys.stderr)
    print("\r\033[K", end="", file=sys.stderr)
    return values


def ratio(times: Sequence[Times], base: Sequence[Times], clock: str = "wall") -> dict[str, float]:
    """Return the median, minimum and maximum of the ratios of `times` to `base` over the rounds."""
    ratios = [getattr(a, clock) / getattr(b, clock) for a, b in zip(times, base, strict=True)]
    return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}


def show_ratio(ratios: Mapping[str, float]) -> str:
    """Format ratios as `1.08 (1.05 to 1.11)`."""
    return f"{ratios['median']:.2f} ({ratios['min']:.2f} to {ratios['max']:.2f})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. The first column is left-aligned, the others are right-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    print(f"\n{title}")
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = [row[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())


def machine() -> dict[str, Any]:
    """Return the hardware, the library versions and the date."""
    info = Path("/proc/cpuinfo")
    models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")
              ] if info.exists() else []  # fmt: skip
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY"),
        "load average": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


def stored(name: str) -> dict[str, Any]:
    """Return the content of `benchmarks/results/NAME.json`, or an empty dict if there is no such file."""
    file = RESULTS / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def save(name: str, content: Mapping[str, Any]) -> None:
    """Write results and machine information to `benchmarks/results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    rounded = json.loads(json.dumps(content), parse_float=lambda text: round(float(text), 5))
    file = RESULTS / f"{name}.json"
    file.write_text(json.dumps({"machine": machine(), **rounded}, indent=2) + "\n")
    print(f"\n{file.relative_to(ROOT)}")
