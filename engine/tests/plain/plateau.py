"""A classifier that returns its scheduler in a dict with a `monitor`, and whose metric names end with the stage."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import CLASSES, Points
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler


class Plateau(LightningModule):
    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.outputs = []

    def forward(self, x):
        return self.model(x)

    def step(self, batch, stage):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.log(f"loss/{stage}", loss, on_step=False, on_epoch=True)
        self.log(f"acc/{stage}", (logits.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
        return loss

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        return self.step(batch, "val")

    def test_step(self, batch, batch_idx):
        return self.step(batch, "test")

    def predict_step(self, batch, batch_idx):
        logits = self(batch[0])
        return logits.argmax(dim=1), logits.max(dim=1).values

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=9.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "loss/val"}}


class Weighted(LightningDataModule):
    """Data with weighted sampling of the training split."""

    def train_dataloader(self):
        points = Points(300, 0)
        sampler = WeightedRandomSampler(1.0 + points.targets.float(), num_samples=256)
        return DataLoader(points, batch_size=32, sampler=sampler)

    def val_dataloader(self):
        return DataLoader(Points(100, 1), batch_size=32)

    def test_dataloader(self):
        return DataLoader(Points(100, 2), batch_size=32)
