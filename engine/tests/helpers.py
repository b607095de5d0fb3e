"""Helpers shared by the library's tests."""

import csv
import os
import re
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from torch import nn

from lit_engine.checkpoints.io import read
from toy.tasks import ImageClassifier

TOY = Path(__file__).parent / "toy"  # contains the configs
# Options for a run that takes about a second.
TINY = "--model.net.hidden_sizes=[32] --data.batch_size=128 --trainer.log_every_n_steps=5"
NAMES, MEAN, STD = list("abcd"), [0.4], [0.3]


class Witness(LightningModule):
    """LightningModule that records the batches of each stage."""

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


class Versioned(nn.Linear):
    """Layer that can only load weights of a known version, like torchvision's MNASNet."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        assert local_metadata["version"] == 2
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)


class SaveAt(Callback):
    """Callback that saves a checkpoint after a given optimizer step."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def free_port():
    """Return a port on this machine that no program uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


# Runs a command in a terminal.
IN_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def run_in(folder, *args, package="toy", in_terminal=False):
    """Run `toy ARGS` in a separate process, which may start others, and return its output."""
    path = os.pathsep.join([str(TOY.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    command = [*([sys.executable, "-c", IN_TERMINAL] if in_terminal else []), sys.executable, "-m", package, *args]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, (done.stdout if in_terminal else done.stderr)[-2000:]
    return done.stdout


def difference(one, other):
    """Return the largest difference between the weights of two runs. Checks that steps and epoch metrics are equal."""
    a, b = (read(run / "checkpoints" / "last.ckpt") for run in (one, other))
    assert a["global_step"] == b["global_step"]
    rows = [[row for row in csv.DictReader((run / "metrics.csv").open()) if row["val/loss"]] for run in (one, other)]
    assert "train/loss" in rows[0][0]
    for before, after in zip(*rows, strict=True):
        for name in before.keys() - {"train/loss_step", "train/samples_per_second", "train/tokens_per_second"}:
            assert float(after[name] or 0) == pytest.approx(float(before[name] or 0), rel=1e-5), name
    weights = zip(a["state_dict"].values(), b["state_dict"].values(), strict=True)
    return max((x - y).abs().max().item() for x, y in weights)


def differences(one, other):
    """Return the differences between the last checkpoints and metrics.csv of two runs.

    Times, the state of callbacks and the counters of dataloaders are ignored.
    """
    found = []
    for run in (one, other):
        content = read(run / "checkpoints" / "last.ckpt")
        with (run / "metrics.csv").open(newline="") as file:
            content = {**content, "callbacks": None, "metrics.csv": list(csv.DictReader(file))}
        found.append({name: value for name, value in _leaves(content) if not re.search("second|combined_loader", name)})
    return [name for name in found[0].keys() | found[1].keys() if not _equal(*(part.get(name) for part in found))]


def _leaves(value, name=""):
    if isinstance(value, dict | list | tuple):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, f"{name}/{key}")
    else:
        yield name, value


def _equal(one, other):
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


def same_weights(one, other):
    """Return whether two state dicts are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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
