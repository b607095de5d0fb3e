"""Tests a real training run on the official archives."""

import json
import os

import pytest


@pytest.mark.archives
def test_fashion_mnist_mlp_learns(lit, workspace, official):
    os.symlink(official("FashionMNIST/raw/train-images-idx3-ubyte.gz"), workspace / "data")
    result = lit("fit -c configs/fashion_mnist_mlp.yaml --trainer.max_epochs=1 --data.batch_size=256")
    assert result.status == 0, result.err
    metrics = json.loads((result.run / "metrics.json").read_text())
    assert metrics["fit"]["train/samples"] == 58_000
    assert metrics["fit"]["val/samples"] == 2_000
    assert metrics["test"]["test/samples"] == 10_000
    assert metrics["test"]["test/accuracy"] > 0.82
