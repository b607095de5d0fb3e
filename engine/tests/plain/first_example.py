"""An autoencoder as in the introduction to Lightning, without validation, test or prediction steps."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import pictures
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64))

    def forward(self, x):
        return self.encoder(x.view(x.size(0), -1))

    def training_step(self, batch, batch_idx):
        x, _ = batch
        x = x.view(x.size(0), -1)
        loss = F.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return optim.Adam(self.parameters(), lr=1e-2)


class Pictures(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(*pictures(256, 0)), batch_size=32, shuffle=True)

    def predict_dataloader(self):
        return DataLoader(torch.utils.data.Subset(TensorDataset(*pictures(64, 1)), range(39)), batch_size=16)
