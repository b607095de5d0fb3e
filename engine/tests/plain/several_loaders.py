"""A classifier with several dataloaders for validation, testing and prediction, and metric names without a stage."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import CLASSES, Points
from torch import nn
from torch.utils.data import DataLoader


class Several(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(20, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, CLASSES))

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.log("objective", loss)
        return loss

    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        logits = self(batch[0])
        self.log("loss", F.cross_entropy(logits, batch[1]))
        self.log("my_metric", (logits.argmax(1) == batch[1]).float().mean())

    def test_step(self, batch, batch_idx, dataloader_idx=0):
        self.validation_step(batch, batch_idx, dataloader_idx)

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self(batch[0]).argmax(dim=1)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.01)


class Sites(LightningDataModule):
    """Training data, and data from two other sites."""

    def setup(self, stage):
        self.train, *self.sites = Points(320, 0), Points(60, 1), Points(90, 2)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)

    def others(self):
        return [DataLoader(site, batch_size=32) for site in self.sites]

    def val_dataloader(self):
        return self.others()

    def test_dataloader(self):
        return self.others()

    def predict_dataloader(self):
        return self.others()
