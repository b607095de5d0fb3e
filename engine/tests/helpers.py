"""Helpers shared by the library's tests."""

from functools import partial

import torch
from lightning.pytorch import Callback
from torch import nn

from toy.tasks import ImageClassifier

# Options for a run that takes about a second.
TINY = "--model.net.hidden_sizes=[32] --data.batch_size=128 --trainer.log_every_n_steps=5"
NAMES, MEAN, STD = list("abcd"), [0.4], [0.3]


class SaveAt(Callback):
    """Saves a checkpoint after a given optimizer step."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def classifier(net=None, lr=0.1, **kwargs):
    optimizer = kwargs.pop("optimizer", partial(torch.optim.SGD, lr=lr))
    return ImageClassifier(net or linear(), optimizer, NAMES, MEAN, STD, **kwargs)


def floats(data, split):
    """Return all images as a task receives them, and their classes."""
    images, targets = data.load(split)
    return images.float() / 255, targets


def batches(data, epochs):
    """Yield the training batches in order, as floats."""
    images, targets = floats(data, "train")
    loader = data.train_dataloader()
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield images[batch.indices], targets[batch.indices]
