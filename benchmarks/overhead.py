"""Measure the overhead of a training step beyond its computation.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py --where        writes results/overhead.json

The breakdown starts from a hand-written loop and adds the parts of the template one by one. The net is a single linear
layer, so that computation does not hide the overhead. An epoch consists of 860 steps with 64 Fashion-MNIST images and a
validation. The cost of work done once per epoch is divided by the number of steps.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import DATA, EpochClock, Times, interleave, save, table, terminal
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F

from lit_engine.callbacks.progress import TerminalProgress
from lit_engine.callbacks.record import RunRecord
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import SafeCheckpointIO
from lit_engine.cli.main import quiet_lightning
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.run.directory import RunDir
from lit_engine.training.signals import Signals
from lit_project.data.mnist import FashionMNIST
from lit_project.models.mlp import MLP
from lit_project.tasks.classification import ImageClassifier
from plain import MEAN, STD, Plain

BATCH = 64


class Bare(LightningModule):
    """Minimal LightningModule, with fused Adam if requested."""

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
    """Return the mean time per epoch of a fit with these parts, excluding the first epoch."""
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
    """Return the mean time per epoch of Lightning's Trainer without optional features, excluding the first epoch."""
    quiet_lightning()  # suppresses the list of features that are turned off
    Trainer(
        barebones=True, accelerator="cpu", max_epochs=epochs + 1, limit_train_batches=steps, callbacks=[EpochClock()]
    ).fit(module, *loaders)
    return Times.mean(EpochClock.epochs[1:])


def stages() -> tuple[dict[str, Callable[[], Times]], int]:
    """Return the stages, each with one more part than the previous one, and the number of steps per epoch."""
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
