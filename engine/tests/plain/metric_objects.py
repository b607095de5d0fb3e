"""A classifier that logs metric objects under names with underscores, and is configured by numbers and a string."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import CLASSES, Points
from torch import nn
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


class Classifier(LightningModule):
    def __init__(self, hidden: int = 32, dropout: float = 0.2, learning_rate: float = 0.01, name: str = "points"):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(20, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, CLASSES))
        self.train_acc = MulticlassAccuracy(CLASSES)
        self.val_acc = MulticlassAccuracy(CLASSES)
        self.test_f1 = MulticlassF1Score(CLASSES)

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        self.val_acc(logits, y)
        self.log("val_loss", F.cross_entropy(logits, y))
        self.log("val_acc", self.val_acc)

    def test_step(self, batch, batch_idx):
        x, y = batch
        self.test_f1(self(x), y)
        self.log("test_f1", self.test_f1)

    def predict_step(self, batch, batch_idx):
        return self(batch[0]).softmax(dim=1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.hparams.learning_rate)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.hparams.learning_rate, total_steps=steps)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]


class Data(LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(Points(300, 0), batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Points(100, 1), batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(Points(100, 2), batch_size=self.batch_size)
