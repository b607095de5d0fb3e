"""Helpers for data tests: small in-memory images, and a model that records its inputs."""

import torch
from lightning.pytorch import LightningModule
from torch import nn

from lit_engine.data.images import ImageData
from lit_project.data.image_folder import ImageFolder
from tiny import CLASSES, write

__all__ = ["CLASSES", "Pictures", "Witness", "batches", "small", "write"]


class Pictures(ImageData):
    """Random images `(1, 6, 5)` of three classes: `size` for training, `size // 2` each for validation and testing."""

    def __init__(self, size=23, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.class_names = ["a", "b", "c"]
        self.input_shape = (1, 6, 5)
        self.mean, self.std = [0.5], [0.25]

    def load(self, split):
        generator = torch.Generator().manual_seed(len(split))
        size = self.size if split == "train" else self.size // 2
        images = torch.randint(0, 256, (size, 1, 6, 5), generator=generator, dtype=torch.uint8)
        return images, torch.arange(size) % 3


class Witness(LightningModule):
    """Records the batches of each stage's steps."""

    def __init__(self):
        super().__init__()
        self.batches = {"train": [], "val": [], "test": [], "predict": []}
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        self.batches["train"].append(batch)
        return self.weight * 0

    def validation_step(self, batch, batch_idx):
        self.batches["val"].append(batch)

    def test_step(self, batch, batch_idx):
        self.batches["test"].append(batch)

    def predict_step(self, batch, batch_idx):
        self.batches["predict"].append(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def small(root, **kwargs):
    return ImageFolder(root, **{"image_size": 4, "channels": 1, "num_workers": 0, "batch_size": 5, **kwargs})


def batches(data, split, epoch=0):
    data.setup("fit")
    loader = data.loader(split)
    loader.sampler.set_epoch(epoch)
    return list(loader)
