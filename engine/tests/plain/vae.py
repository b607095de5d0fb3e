"""A VAE that draws its own figures, samples in each step, and predicts a mean and an image per sample."""

from pathlib import Path

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from matplotlib.figure import Figure
from noisy import pictures
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class VAE(LightningModule):
    def __init__(self, latent: int = 2):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        return self.decoder(mean), mean, log_variance

    def loss(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        reconstruction = F.binary_cross_entropy(self.decoder(z), x.flatten(1), reduction="sum") / len(x)
        divergence = (log_variance.exp() + mean**2 - 1 - log_variance).sum() / (2 * len(x))
        return {"loss": reconstruction + divergence, "kl": divergence}

    def training_step(self, batch, batch_idx):
        losses = self.loss(batch[0])
        self.log_dict({f"train/{name}": value for name, value in losses.items()})
        return losses["loss"]

    def validation_step(self, batch, batch_idx):
        self.log_dict({f"valid/{name}": value for name, value in self.loss(batch[0]).items()})

    def test_step(self, batch, batch_idx):
        self.log_dict({f"test/{name}": value for name, value in self.loss(batch[0]).items()})

    def on_train_end(self):
        figure = Figure((2, 2))
        figure.add_subplot().imshow(self.decoder(torch.zeros(1, 2)).detach().view(8, 8))
        folder = Path(self.trainer.default_root_dir) / "figures"
        folder.mkdir(exist_ok=True)
        figure.savefig(folder / "decoded_origin.png")

    def predict_step(self, batch, batch_idx):
        decoded, mean, _ = self(batch[0])
        return {"mean": mean, "image": decoded.view(-1, 1, 8, 8)}

    def configure_optimizers(self):
        return {"optimizer": torch.optim.Adam(self.parameters(), lr=0.01)}


class Pictures(LightningDataModule):
    def __init__(self, batch_size: int = 32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        self.splits = [TensorDataset(*pictures(size, seed)) for seed, size in enumerate((256, 64, 64))]

    def train_dataloader(self):
        return DataLoader(self.splits[0], batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.splits[1], batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.splits[2], batch_size=self.batch_size)
