"""Weights saved on a GPU can be loaded on the CPU by all readers."""

import io
import zipfile

import pytest
import torch

from lit_engine.checkpoints.io import SafeCheckpointIO, read
from lit_engine.checkpoints.warm_start import check_fits, warm_start
from lit_engine.training.layout import is_wrong_in_channels_last
from toy.models import MLP


def save_as_from_cuda(content, path):
    """Save CPU tensors such that all storages are marked as located on `cuda:0`."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("/data.pkl"):  # a pickled string consists of X, its length and its letters
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
                assert b"cuda:0" in data
            new.writestr(entry, data)


def test_a_checkpoint_saved_on_a_gpu_is_loaded_on_the_cpu(tmp_path):
    one, other = MLP((4,), 3), MLP((4,), 3)
    path = tmp_path / "a.ckpt"
    save_as_from_cuda({"state_dict": one.state_dict(), "global_step": 1}, path)
    check_fits(other, read(path), path, {})
    assert warm_start(other, path, strict=True).complete
    for content in (read(path), SafeCheckpointIO().load_checkpoint(path)):
        for name, value in content["state_dict"].items():
            assert value.device.type == "cpu"
            assert torch.equal(value, other.state_dict()[name])
            assert torch.equal(value, one.state_dict()[name])


@pytest.mark.parametrize(("channels", "kernel", "stride", "wrong"), [
    (15, 1, 2, True), (16, 1, 2, False), (8, 1, 2, True), (15, 1, 1, False), (15, 3, 2, False),
])  # fmt: skip
def test_detects_convolutions_that_are_wrong_in_channels_last(channels, kernel, stride, wrong):
    assert is_wrong_in_channels_last(torch.nn.Conv2d(channels, 4, kernel, stride)) == wrong
