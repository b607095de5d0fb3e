"""A module with its own dataloaders, as in older Lightning tutorials. Each split is created only for its stage."""

import torch.nn.functional as F
from lightning.pytorch import LightningModule
from noisy import pictures
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


class Whole(LightningModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y % 3)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.training_step(batch, batch_idx))

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-2)

    def prepare_data(self):
        self.prepared = True

    def setup(self, stage):
        if stage == "fit":
            self.train_split, self.val_split = random_split(TensorDataset(*pictures(256, 0)), [200, 56])
        if stage == "test":
            self.test_split = TensorDataset(*pictures(64, 1))

    def train_dataloader(self):
        return DataLoader(self.train_split, batch_size=self.hparams.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val_split, batch_size=self.hparams.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test_split, batch_size=self.hparams.batch_size)
