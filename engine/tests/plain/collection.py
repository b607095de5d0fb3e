"""A classifier with a MetricCollection, the same loss name in all stages, and batches that are dicts."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import CLASSES, Points
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassPrecision


class Named(Dataset):
    def __init__(self, points):
        self.points = points

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        x, y = self.points[index]
        return {"x": x, "y": y}


class Collected(LightningModule):
    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.lr = lr
        self.model = nn.Linear(20, CLASSES)
        metrics = MetricCollection([MulticlassAccuracy(CLASSES), MulticlassPrecision(CLASSES)])
        self.val_metrics, self.test_metrics = metrics.clone(prefix="val_"), metrics.clone(prefix="test_")

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch["x"]), batch["y"])
        self.log("loss", loss, on_epoch=True)
        return loss

    def evaluate(self, batch, metrics):
        logits = self(batch["x"])
        metrics.update(logits, batch["y"])
        self.log_dict({"loss": F.cross_entropy(logits, batch["y"]), "loss/norm": logits.square().mean()})
        self.log_dict(metrics)

    def validation_step(self, batch, batch_idx):
        self.evaluate(batch, self.val_metrics)

    def test_step(self, batch, batch_idx):
        self.evaluate(batch, self.test_metrics)

    def predict_step(self, batch, batch_idx):
        logits = self(batch["x"])
        return {"predicted": logits.argmax(dim=1), "logits": logits}

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)]


class Data(LightningDataModule):
    def setup(self, stage):
        self.splits = [Named(Points(size, seed)) for seed, size in enumerate((300, 100, 100))]

    def train_dataloader(self):
        return DataLoader(self.splits[0], batch_size=32, shuffle=True, drop_last=True)

    def val_dataloader(self):
        return DataLoader(self.splits[1], batch_size=50)

    def test_dataloader(self):
        return DataLoader(self.splits[2], batch_size=50)

    def predict_dataloader(self):
        return DataLoader(self.splits[2], batch_size=50)
