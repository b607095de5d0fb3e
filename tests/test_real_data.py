"""A real fit on the official archives."""

import json
import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT / "data" / "FashionMNIST" / "raw" / "train-images-idx3-ubyte.gz"


@pytest.mark.skipif(
    not ARCHIVE.exists(), reason="data/FashionMNIST has not been downloaded (any fit of a Fashion-MNIST config does)"
)
def test_fashion_mnist_mlp_learns(lit, workspace):
    os.symlink(ROOT / "data", workspace / "data")
    result = lit("fit -c configs/fashion_mnist_mlp.yaml --trainer.max_epochs=1 --data.batch_size=256")
    assert result.status == 0, result.err
    metrics = json.loads((result.run / "metrics.json").read_text())
    assert metrics["fit"]["train/samples"] == 55_000
    assert metrics["fit"]["val/samples"] == 5_000
    assert metrics["test"]["test/samples"] == 10_000
    assert metrics["test"]["test/accuracy"] > 0.82
