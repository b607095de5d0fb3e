"""Tests MNIST-like archives: official splits, and corrupt or missing files. Real archives are used if available."""

import gzip
import hashlib
import struct
import urllib.request
from urllib.error import URLError

import pytest
import torch
from torchvision import datasets

from lit_engine.errors import DataError
from lit_project.data.mnist import MNIST, FashionMNIST

FILES = {
    ("train", "images"): "train-images-idx3-ubyte.gz",
    ("train", "labels"): "train-labels-idx1-ubyte.gz",
    ("test", "images"): "t10k-images-idx3-ubyte.gz",
    ("test", "labels"): "t10k-labels-idx1-ubyte.gz",
}
SIZES = {"train": 60, "test": 20}


def idx(values):
    """Return a uint8 tensor in the IDX format (http://yann.lecun.com/exdb/mnist)."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.numpy().tobytes()


@pytest.fixture
def originals():
    """Return images and labels of both official splits. The class is the index modulo ten."""
    generator = torch.Generator().manual_seed(0)
    return {
        split: (
            torch.randint(0, 256, (size, 28, 28), generator=generator, dtype=torch.uint8),
            torch.arange(size, dtype=torch.uint8) % 10,
        )
        for split, size in SIZES.items()
    }


@pytest.fixture(params=[FashionMNIST, MNIST])
def kind(request):
    return request.param


@pytest.fixture
def raw(tmp_path, monkeypatch, originals, kind):
    """Write archives, make torchvision expect their MD5 sums, block the network, and return the folder."""
    folder = tmp_path / kind.NAME / "raw"
    folder.mkdir(parents=True)
    resources = []
    for split, (images, labels) in originals.items():
        for part, values in (("images", images), ("labels", labels)):
            archive = folder / FILES[split, part]
            archive.write_bytes(gzip.compress(idx(values), mtime=0))
            resources.append((archive.name, hashlib.md5(archive.read_bytes()).hexdigest()))
    torchvision = getattr(datasets, kind.NAME)
    monkeypatch.setattr(torchvision, "resources", resources)
    monkeypatch.setattr(torchvision, "mirrors", ["https://example.org/archives/"])

    def no_network(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    return folder


def prepared(kind, raw, **kwargs):
    data = kind(**{"root": raw.parents[1], "val_size": 5, **kwargs})
    data.prepare_data()
    data.setup("fit")
    data.setup("test")
    return data


def test_test_split_is_official_and_val_is_taken_from_the_training_images(kind, raw, originals):
    data = prepared(kind, raw)
    images, targets = data.splits["test"]
    assert (images.dtype, targets.dtype) == (torch.uint8, torch.int64)
    assert torch.equal(images, originals["test"][0][:, None])
    assert torch.equal(targets, originals["test"][1].long())
    assert (data.size_of("train"), data.size_of("val")) == (55, 5)

    def rows(images, targets):
        return sorted((int(t), *image.flatten().tolist()) for image, t in zip(images, targets, strict=True))

    joined = rows(*data.splits["train"]) + rows(*data.splits["val"])
    assert sorted(joined) == rows(*originals["train"])


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "empty", "missing"])
def test_offline_error_lists_the_archives_to_download_and_their_folder(kind, raw, damage):
    broken = [FILES["train", "labels"], FILES["test", "images"]]
    for archive in broken:
        content = bytearray((raw / archive).read_bytes())
        content[len(content) // 2] ^= 1
        (raw / archive).write_bytes({"truncated": content[:-8], "empty": b""}.get(damage, content))
        if damage == "missing":
            (raw / archive).unlink()
    with pytest.raises(DataError) as error:
        prepared(kind, raw)
    message = str(error.value)
    assert message.startswith(f"cannot download or read {kind.NAME} (Error downloading {broken[0]}: ")
    assert f" to {raw}" in message
    assert "\n" not in message
    for archive in FILES.values():
        assert f"https://example.org/archives/{archive}" in message


@pytest.mark.archives
@pytest.mark.parametrize("kind", [FashionMNIST, MNIST])
def test_real_archives_have_the_expected_sizes_classes_and_statistics(kind, tmp_path, official):
    source = official(*(f"{kind.NAME}/raw/{archive}" for archive in FILES.values())) / kind.NAME / "raw"
    raw = tmp_path / kind.NAME / "raw"
    raw.mkdir(parents=True)
    for archive in FILES.values():  # unpacked here, not in data/
        (raw / archive).symlink_to(source / archive)
    data = prepared(kind, raw, val_size=5000)
    assert [data.size_of(split) for split in ("train", "val", "test")] == [55_000, 5_000, 10_000]
    assert data.class_names == ([str(i) for i in range(10)] if kind is MNIST else list(datasets.FashionMNIST.classes))
    values = torch.cat([data.splits["train"][0], data.splits["val"][0]])
    counts = torch.bincount(values.flatten(), minlength=256).double()  # counts of grey levels over 47 million pixels
    levels = torch.arange(256).double() / 255
    mean = (counts * levels).sum() / counts.sum()
    std = ((counts * (levels - mean) ** 2).sum() / counts.sum()).sqrt()
    assert data.mean == [pytest.approx(mean.item(), abs=1e-3)]
    assert data.std == [pytest.approx(std.item(), abs=1e-3)]
