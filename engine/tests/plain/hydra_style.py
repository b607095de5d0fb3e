"""A classifier as in the popular Hydra template: injected network and optimizer, logged metric objects."""

from collections.abc import Callable

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import CLASSES, Points
from torch import nn
from torch.utils.data import DataLoader, random_split
from torchmetrics import MaxMetric, MeanMetric
from torchmetrics.classification import Accuracy


class Net(nn.Module):
    def __init__(self, hidden: int = 16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(20, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
        )

    def forward(self, x):
        return self.layers(x)


class LitModule(LightningModule):
    def __init__(
        self,
        net: nn.Module,
        optimizer: Callable[..., torch.optim.Optimizer],
        scheduler: Callable[..., torch.optim.lr_scheduler.LRScheduler] | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters(logger=False, ignore=["net"])
        self.net = net
        self.criterion = nn.CrossEntropyLoss()
        self.train_acc = Accuracy(task="multiclass", num_classes=CLASSES)
        self.val_acc = Accuracy(task="multiclass", num_classes=CLASSES)
        self.test_acc = Accuracy(task="multiclass", num_classes=CLASSES)
        self.train_loss, self.val_loss, self.test_loss = MeanMetric(), MeanMetric(), MeanMetric()
        self.val_acc_best = MaxMetric()

    def forward(self, x):
        return self.net(x)

    def on_train_start(self):
        self.val_loss.reset()
        self.val_acc.reset()
        self.val_acc_best.reset()

    def model_step(self, batch):
        x, y = batch
        logits = self.forward(x)
        return self.criterion(logits, y), logits.argmax(dim=1), y

    def training_step(self, batch, batch_idx):
        loss, preds, targets = self.model_step(batch)
        self.train_loss(loss)
        self.train_acc(preds, targets)
        self.log("train/loss", self.train_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("train/acc", self.train_acc, on_step=False, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        loss, preds, targets = self.model_step(batch)
        self.val_loss(loss)
        self.val_acc(preds, targets)
        self.log("val/loss", self.val_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("val/acc", self.val_acc, on_step=False, on_epoch=True, prog_bar=True)

    def on_validation_epoch_end(self):
        self.val_acc_best(self.val_acc.compute())
        self.log("val/acc_best", self.val_acc_best.compute(), sync_dist=True, prog_bar=True)

    def test_step(self, batch, batch_idx):
        loss, preds, targets = self.model_step(batch)
        self.test_loss(loss)
        self.test_acc(preds, targets)
        self.log("test/loss", self.test_loss, on_step=False, on_epoch=True, prog_bar=True)
        self.log("test/acc", self.test_acc, on_step=False, on_epoch=True, prog_bar=True)

    def configure_optimizers(self):
        optimizer = self.hparams.optimizer(params=self.trainer.model.parameters())
        if self.hparams.scheduler is None:
            return {"optimizer": optimizer}
        scheduler = self.hparams.scheduler(optimizer=optimizer)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "monitor": "val/loss", "interval": "epoch", "frequency": 1},
        }


class LitData(LightningDataModule):
    def __init__(self, batch_size: int = 32, num_workers: int = 2, pin_memory: bool = False):
        super().__init__()
        self.save_hyperparameters(logger=False)
        self.data_train = self.data_val = self.data_test = None

    def setup(self, stage=None):
        if self.data_train is None:
            splits = random_split(Points(500, 0), [300, 100, 100], generator=torch.Generator().manual_seed(42))
            self.data_train, self.data_val, self.data_test = splits

    def loader(self, dataset, shuffle):
        options = {"num_workers": self.hparams.num_workers, "pin_memory": self.hparams.pin_memory}
        return DataLoader(dataset=dataset, batch_size=self.hparams.batch_size, shuffle=shuffle, **options)

    def train_dataloader(self):
        return self.loader(self.data_train, shuffle=True)

    def val_dataloader(self):
        return self.loader(self.data_val, shuffle=False)

    def test_dataloader(self):
        return self.loader(self.data_test, shuffle=False)
