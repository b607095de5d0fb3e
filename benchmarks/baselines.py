"""What the template is compared with: a loop by hand, and the customary pipeline under Lightning."""

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

MEAN, STD = 0.2860, 0.3530
EVAL_BATCH = 1000


class Plain:
    """A loop by hand over the same uint8 tensors in memory: the least that such training costs.

    Sums of loss and correct predictions are kept on both splits and read once an epoch. No checkpoints, no files, no
    progress.

    Args:
        net: images in, logits out.
        train: images, uint8 `(N, C, H, W)`, and targets, int64 `(N,)`.
        val: the same.
        batch_size: of training.
        steps: of one epoch; None for all.
    """

    def __init__(
        self,
        net: nn.Module,
        train: tuple[Tensor, Tensor],
        val: tuple[Tensor, Tensor],
        batch_size: int,
        steps: int | None,
    ) -> None:
        self.net, self.train, self.val, self.batch_size, self.steps = net, train, val, batch_size, steps
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.001)

    def epoch(self) -> dict[str, float]:
        """Trains for one epoch and validates."""
        images, targets = self.train
        self.net.train()
        loss_sum, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        batches = torch.randperm(len(targets)).split(self.batch_size)[: self.steps]
        for indices in batches:
            x, y = self._prepare(images.index_select(0, indices)), targets.index_select(0, indices)
            logits = self.net(x)
            loss = F.cross_entropy(logits, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss_sum += loss.detach() * len(y)
            correct += (logits.detach().argmax(dim=1) == y).sum()
        seen = sum(len(indices) for indices in batches)
        return {"loss": loss_sum.item() / seen, "accuracy": correct.item() / seen, **self._validate()}

    @torch.inference_mode()
    def _validate(self) -> dict[str, float]:
        self.net.eval()
        loss_sum, correct = torch.zeros(()), torch.zeros((), dtype=torch.int64)
        for images, targets in zip(self.val[0].split(EVAL_BATCH), self.val[1].split(EVAL_BATCH), strict=True):
            logits = self.net(self._prepare(images))
            loss_sum += F.cross_entropy(logits, targets, reduction="sum")
            correct += (logits.argmax(dim=1) == targets).sum()
        return {"val loss": loss_sum.item() / len(self.val[1]), "val accuracy": correct.item() / len(self.val[1])}

    @staticmethod
    def _prepare(images: Tensor) -> Tensor:
        return images.float().div_(255).sub_(MEAN).div_(STD)

    def times(self, epochs: int) -> Times:
        """Of the mean of `epochs` epochs after one to warm up."""
        times = []
        for _ in range(epochs + 1):
            start = Times.now()
            self.epoch()
            times.append(Times.now() - start)
        return Times.mean(times[1:])


class CustomaryModule(LightningModule):
    """A module as tutorials write it: `self.log` at every step, torchmetrics updated at every step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.train_accuracy = MulticlassAccuracy(10, average="micro")
        self.val_accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Logs loss and accuracy."""
        x, y = batch
        logits = self.net(x)
        loss = F.cross_entropy(logits, y)
        self.train_accuracy.update(logits, y)
        self.log("train/loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train/accuracy", self.train_accuracy, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Logs loss and accuracy."""
        x, y = batch
        logits = self.net(x)
        self.val_accuracy.update(logits, y)
        self.log("val/loss", F.cross_entropy(logits, y), on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/accuracy", self.val_accuracy, on_step=False, on_epoch=True, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.001)


def customary(new_net: Callable[[], nn.Module], batch_size: int, workers: int, epochs: int, steps: int | None) -> Times:
    """Times of the mean of `epochs` epochs, after one to warm up, of the pipeline that is customary under Lightning.

    torchvision's dataset with ToTensor and Normalize for each sample, DataLoader (workers stay alive from epoch to
    epoch), `CustomaryModule`, Lightning's default progress bar on a terminal, CSVLogger, ModelCheckpoint.
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
            CustomaryModule(new_net()),
            DataLoader(train, batch_size, shuffle=True, **options),
            DataLoader(val, EVAL_BATCH, **options),
        )
    return Times.mean(EpochClock.epochs[1:])
