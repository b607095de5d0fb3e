"""Fixture that trains a task and records its learning rates."""

from functools import partial

import pytest
import torch
from curves import LR, Noted
from torch.utils.data import DataLoader


@pytest.fixture
def train(trainer):
    """Return a function that trains with `batches` batches per epoch and returns the task with its records."""

    def run(*schedules, batches=10, kind=Noted, optimizer=None, losses=(), checkpoint=None, **kwargs):
        task = kind(optimizer or partial(torch.optim.SGD, lr=LR), schedules, losses)
        loaders = DataLoader(torch.ones(batches, 2), batch_size=1), DataLoader(torch.ones(1 if losses else 0, 2))
        trainer(**{"max_epochs": 1, **kwargs}).fit(task, *loaders, ckpt_path=checkpoint, weights_only=True)
        return task

    return run
