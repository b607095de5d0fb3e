"""A GAN with two manually optimized optimizers, and noise drawn in the training step."""

import copy

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule, LightningModule
from noisy import pictures
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GAN(LightningModule):
    def __init__(self, latent: int = 4, lr: float = 0.001):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())
        self.discriminator = nn.Sequential(nn.Linear(64, 32), nn.LeakyReLU(), nn.Linear(32, 1))
        self.average = copy.deepcopy(self.generator).requires_grad_(False)
        self.example_input_array = torch.zeros(2, latent)

    def forward(self, z):
        return self.generator(z)

    def accumulate(self, decay=0.9):
        """Update the average of the generator's weights."""
        for mean, weight in zip(self.average.parameters(), self.generator.parameters(), strict=True):
            mean.lerp_(weight.detach(), 1 - decay)

    def judge(self, images, real):
        logits = self.discriminator(images)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(real)))

    def training_step(self, batch, batch_idx):
        images = batch[0].flatten(1)
        first, second = self.optimizers()
        z = torch.randn(len(images), self.hparams.latent, device=self.device)

        self.toggle_optimizer(first)
        g_loss = self.judge(self(z), real=True)
        first.zero_grad()
        self.manual_backward(g_loss)
        first.step()
        self.untoggle_optimizer(first)
        self.accumulate()

        self.toggle_optimizer(second)
        d_loss = (self.judge(images, real=True) + self.judge(self(z).detach(), real=False)) / 2
        second.zero_grad()
        self.manual_backward(d_loss)
        second.step()
        self.untoggle_optimizer(second)
        self.log_dict({"g_loss": g_loss, "d_loss": d_loss}, prog_bar=True, on_step=True, on_epoch=True)

    def validation_step(self, batch, batch_idx):
        z = torch.randn(len(batch[0]), self.hparams.latent, device=self.device)
        self.log("val_realism", self.discriminator(self(z)).sigmoid().mean())

    def predict_step(self, batch, batch_idx):
        return self(torch.randn(len(batch[0]), self.hparams.latent)).view(-1, 1, 8, 8)

    def configure_optimizers(self):
        parts = (self.generator, self.discriminator)
        return [torch.optim.Adam(part.parameters(), lr=self.hparams.lr, betas=(0.5, 0.999)) for part in parts], []


class Pictures(LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(*pictures(256, 0)), batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(*pictures(64, 1)), batch_size=32)

    def predict_dataloader(self):
        return DataLoader(TensorDataset(*pictures(64, 2)), batch_size=32)
