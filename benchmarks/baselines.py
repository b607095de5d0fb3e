"""The standard Lightning pipeline, a second baseline in addition to the hand-written loop in `plain.py`."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from common import DATA, EpochClock, StepClock, Times, terminal
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, random_split
from torchmetrics.classification import MulticlassAccuracy
from torchvision import transforms
from torchvision.datasets import FashionMNIST as TorchvisionFashionMNIST

from plain import EVAL_BATCH, MEAN, STD


class StandardModule(LightningModule):
    """LightningModule as in tutorials, which calls `self.log` and updates torchmetrics in every step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.train_accuracy = MulticlassAccuracy(10, average="micro")
        self.val_accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Compute and log the loss and accuracy."""
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.train_accuracy.update(logits, y)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train/accuracy", self.train_accuracy, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Compute and log the loss and accuracy."""
        x, y = batch
        logits = self.net(x)
        self.val_accuracy.update(logits, y)
        self.log("val/loss", F.cross_entropy(logits, y), on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/accuracy", self.val_accuracy, on_step=False, on_epoch=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.001)


def standard_pipeline(
    new_net: Callable[[], nn.Module], batch_size: int, workers: int, epochs: int, steps: int | None
) -> Times:
    """Return the mean time per epoch of the standard Lightning pipeline, after a warm-up epoch.

    The pipeline consists of torchvision's dataset with ToTensor and Normalize for each sample, a DataLoader with
    persistent workers, `StandardModule`, Lightning's default progress bar, CSVLogger and ModelCheckpoint.
    """
    seed_everything(42, verbose=False)
    to_input = transforms.Compose([transforms.ToTensor(), transforms.Normalize((MEAN,), (STD,))])
    dataset = TorchvisionFashionMNIST(str(DATA), train=True, transform=to_input)
    train, val = random_split(dataset, [55_000, 5_000])
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    with TemporaryDirectory() as folder, terminal():
        best = ModelCheckpoint(Path(folder), monitor="val/accuracy", mode="max", save_last=True)
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=epochs + 1,
            limit_train_batches=steps,
            logger=CSVLogger(folder),
            callbacks=[EpochClock(), StepClock(), best],
        )
        trainer.fit(
            StandardModule(new_net()),
            DataLoader(train, batch_size, shuffle=True, **options),
            DataLoader(val, EVAL_BATCH, **options),
        )
    return Times.mean(EpochClock.epochs[1:])
