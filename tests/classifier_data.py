"""Small in-memory images for the task tests, and a classifier for them."""

from functools import partial

import torch
from torch import nn

from lit_engine.data.images import ImageData
from lit_project.tasks.classification import ImageClassifier

NAMES = ["a", "b", "c", "d"]
MEAN, STD = [0.4], [0.3]


class Images(ImageData):
    """Random images `(1, 4, 4)` of four classes: 29 for training, 17 each for validation and testing."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.class_names, self.input_shape, self.mean, self.std = NAMES, (1, 4, 4), MEAN, STD

    def load(self, split):
        generator = torch.Generator().manual_seed(len(split))
        size = 29 if split == "train" else 17
        targets = torch.randint(0, 4, (size,), generator=generator)
        images = torch.randint(0, 256, (size, 1, 4, 4), generator=generator, dtype=torch.uint8)
        return images, targets

    def floats(self, split):
        """Return all images as the task receives them, and their classes."""
        images, targets = self.load(split)
        return images.float() / 255, targets


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def classifier(net=None, lr=0.1, **kwargs):
    optimizer = kwargs.pop("optimizer", partial(torch.optim.SGD, lr=lr))
    return ImageClassifier(net or linear(), optimizer, NAMES, MEAN, STD, **kwargs)


def batches(data, epochs):
    """Yield the training batches in order, as floats."""
    images, targets = data.floats("train")
    loader = data.train_dataloader()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield images[batch.indices], targets[batch.indices]
