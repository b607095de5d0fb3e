"""Measure the overhead of a training step in addition to computation, in one process and in two.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py --where        one process; writes results/overhead.json
    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py --processes    two processes; writes results/processes.json

`--where` starts from a hand-written loop and adds the parts of the template one by one. The net is a single linear
layer, so that computation does not hide the overhead. An epoch consists of 860 steps of 64 Fashion-MNIST images and a
validation. The cost of work done once per epoch is divided by the number of steps.

`--processes` compares `fit` on two processes with `ddp` (gloo over loopback) to one process, with one thread and the
same batch size per process, interleaved. The tiny net shows the cost that DDP adds to a step. The CNN shows the
speedup, which is the samples per second of two processes relative to one. CPU time per sample includes both processes.
There is no validation.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import DATA, LARGER_CNN, ROOT, EpochClock, Times, interleave, ratio, save, show_ratio, table, terminal
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from lit_engine.callbacks.progress import TerminalProgress
from lit_engine.callbacks.record import MetricsCSV, RunRecord
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import SafeCheckpointIO
from lit_engine.cli.main import quiet_lightning
from lit_engine.run.directory import RunDir
from lit_engine.training.saver import Signals
from lit_project.data.mnist import FashionMNIST
from lit_project.models.mlp import MLP
from lit_project.tasks.classification import ImageClassifier
from plain import MEAN, STD, Plain

BATCH = 64


class Bare(LightningModule):
    """Minimal LightningModule, with the fused Adam if requested."""

    def __init__(self, net: nn.Module, fused: bool = False) -> None:
        super().__init__()
        self.net, self.fused = net, fused

    def _loss(self, batch: Sequence[Tensor]) -> Tensor:
        images, targets = batch[0], batch[1]
        if images.dtype == torch.uint8:
            images = images.float().div_(255)
        return F.cross_entropy(self.net(images.sub(MEAN).div_(STD)), targets)

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Tensor:
        """Return the loss."""
        return self._loss(batch)

    def validation_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Compute the loss and discard it."""
        self._loss(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.001, fused=self.fused)


class Batches:
    """Minimal dataloader.

    Args:
        images: Images, uint8 `(N, C, H, W)`.
        targets: Targets, int64 `(N,)`.
        size: Batch size.
        shuffle: Whether to shuffle the samples in each epoch.
    """

    def __init__(self, images: Tensor, targets: Tensor, size: int, shuffle: bool) -> None:
        self.images, self.targets, self.size, self.shuffle = images, targets, size, shuffle

    def __len__(self) -> int:
        """Return the number of batches."""
        return -(-len(self.targets) // self.size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches."""
        order = torch.randperm(len(self.targets)) if self.shuffle else torch.arange(len(self.targets))
        for indices in order.split(self.size):
            yield self.images.index_select(0, indices), self.targets.index_select(0, indices)


def run(module: LightningModule, data: Any, *, csv: bool = False, record: bool = False,
        bar: Callback | None = None, epochs: int = 2) -> Times:  # fmt: skip
    """Return the mean time per epoch of a fit with these parts, without the first epoch."""
    with TemporaryDirectory() as folder, nullcontext() if bar is None else terminal():
        callbacks: list[Callback] = [EpochClock()]
        if record:
            callbacks += [RunRecord(RunDir(Path(folder))), Checkpoint("val/accuracy", "max")]
        if bar is not None:
            callbacks.append(bar)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs + 1,
            logger=MetricsCSV(folder) if csv else False,
            callbacks=callbacks,
            plugins=[SafeCheckpointIO()],
            enable_progress_bar=False,
            enable_checkpointing=record,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        if isinstance(data, FashionMNIST):
            trainer.fit(module, datamodule=data)
        else:
            trainer.fit(module, *data)
    return Times.mean(EpochClock.epochs[1:])


def barebones(
    module: LightningModule, loaders: tuple[Batches, Batches], epochs: int = 2, steps: int | None = None
) -> Times:
    """Return the mean time per epoch, without the first, of Lightning's Trainer with all its features turned off."""
    quiet_lightning()  # no list of what is turned off
    Trainer(
        barebones=True, accelerator="cpu", max_epochs=epochs + 1, limit_train_batches=steps, callbacks=[EpochClock()]
    ).fit(module, *loaders)
    return Times.mean(EpochClock.epochs[1:])


def stages() -> tuple[dict[str, Callable[[], Times]], int]:
    """Return the stages, each with one part more than the previous one, and the number of steps per epoch."""
    quiet_lightning()
    data = FashionMNIST(root=DATA, batch_size=BATCH)
    data.prepare_data()
    data.setup("fit")
    train, val = (data.splits[split] for split in ("train", "val"))
    loaders = Batches(train[0], train[1], BATCH, True), Batches(val[0], val[1], 1000, False)

    def net() -> MLP:
        return MLP((1, 28, 28), 10, hidden_sizes=[])

    def task() -> ImageClassifier:
        return ImageClassifier(net(), torch.optim.Adam, data.CLASSES, data.mean, data.std)

    def plain() -> Times:
        return Plain(net(), data.splits["train"], data.splits["val"], BATCH, None).times(2)

    return {
        "loop by hand, with sums": plain,
        "Trainer(barebones=True), module and loader": lambda: barebones(Bare(net()), loaders),
        "bare Trainer, module and loader": lambda: run(Bare(net()), loaders),
        "+ data module": lambda: run(Bare(net()), data),
        "+ task: exact sums, seed of each step, validation metrics": lambda: run(task(), data),
        "+ metrics.csv": lambda: run(task(), data, csv=True),
        "+ run record, best and last checkpoint": lambda: run(task(), data, csv=True, record=True),
        "+ progress bar": lambda: run(task(), data, csv=True, record=True, bar=TerminalProgress(Signals())),
    }, len(loaders[0])


# `fit` options and steps per epoch by title.
TWO: dict[str, tuple[list[str], int]] = {
    "linear net, batch 64": (["-c", f"{ROOT}/configs/fashion_mnist_mlp.yaml", "--data.batch_size=64",
                              "--model.net={class_path: MLP, init_args: {hidden_sizes: []}}"], 400),
    "CNN of 0.94 M weights, batch 128": (LARGER_CNN, 40),
}  # fmt: skip


def fit_on(processes: int, options: Sequence[str], steps: int) -> Times:
    """Return the mean wall-clock and CPU seconds per epoch of `fit` over all processes, without the first epoch.

    Raises:
        RuntimeError: If the command fails.
    """
    with TemporaryDirectory() as folder:
        clock = json.dumps([{"class_path": "common.EpochClock", "init_args": {"file": f"{folder}/times"}}])
        command = [
            sys.executable, "-m", "lit_project", "fit", *options, f"--data.root={DATA}", f"--runs_dir={folder}",
            f"--trainer.callbacks={clock}", "--trainer.max_epochs=3", f"--trainer.limit_train_batches={steps}",
            "--trainer.limit_val_batches=0", "--test_after_fit=false", "--trainer.enable_progress_bar=false",
            "--trainer.accelerator=cpu", f"--trainer.devices={processes}",
            *(["--trainer.strategy=ddp"] if processes > 1 else []),
        ]  # fmt: skip
        paths = os.pathsep.join([str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(done.stderr)
        ranks = [Times(*json.loads(Path(f"{folder}/times.{rank}").read_text())) for rank in range(processes)]
    return Times(max(rank.wall for rank in ranks), sum(rank.cpu for rank in ranks))


def processes(rounds: int) -> None:
    """Measure and print the cost that a second process adds to a step, and the speedup."""
    rows = []
    result: dict[str, dict[str, Any]] = {}
    for title, (options, steps) in TWO.items():
        times = interleave({str(n): partial(fit_on, n, options, steps) for n in (1, 2)}, rounds)
        added = [(two.wall - one.wall) / steps * 1e6 for one, two in zip(times["1"], times["2"], strict=True)]
        found: dict[str, Any] = {
            "steps": steps,
            "µs a step of one": statistics.median(t.wall for t in times["1"]) / steps * 1e6,
            "µs added to a step": {"median": statistics.median(added), "min": min(added), "max": max(added)},
            "samples a second, two / one": {key: 2 * value for key, value in ratio(times["1"], times["2"]).items()},
            "CPU time a sample, two / one": {k: v / 2 for k, v in ratio(times["2"], times["1"], "cpu").items()},
        }
        result[title] = found
        more = f"{statistics.median(added):+.0f} ({min(added):+.0f} to {max(added):+.0f})"
        shown = [show_ratio(found[key]) for key in ("samples a second, two / one", "CPU time a sample, two / one")]
        rows.append([title, f"{found['µs a step of one']:.0f}", more, *shown])
    header = ["", "µs per step of one", "added by DDP", "samples/s, two / one", "CPU per sample, two / one"]
    table("Two processes of one thread against one", header, rows)
    save("processes", {"rounds": rounds, "two processes": result})


def measure(rounds: int) -> None:
    """Measure and print the time of each stage, and the difference from the previous stage."""
    variants, steps = stages()
    times = interleave(variants, rounds)
    rows = []
    result: dict[str, dict[str, dict[str, float]]] = {}
    before = next(iter(times.values()))
    for name, values in times.items():
        row = [name]
        result[name] = {}
        for clock in ("wall", "cpu"):
            median = statistics.median(getattr(t, clock) for t in values) / steps * 1e6
            added = [getattr(a - b, clock) / steps * 1e6 for a, b in zip(values, before, strict=True)]
            row += [f"{median:.0f}", f"{statistics.median(added):+.0f} ({min(added):+.0f} to {max(added):+.0f})"]
            result[name][clock] = {
                "median": median,
                "added": statistics.median(added),
                "min": min(added),
                "max": max(added),
            }
        rows.append(row)
        before = values
    header = ["", "wall", "added", "CPU", "added"]
    table(f"Linear net, batch {BATCH}, {steps} steps per epoch: µs per step", header, rows)
    save("overhead", {"rounds": rounds, "steps": steps, "µs a step": result})
