"""Checkpoint files are complete or absent, never execute code, and are skipped if damaged."""

import os
import random
import resource

import pytest
import torch

from lit_engine.checkpoints.io import SafeCheckpointIO, fill_linked, read, sort_by_age
from lit_engine.errors import CheckpointError
from toy.__main__ import PROJECT


def content(step=7, size=1000):
    generator = torch.Generator().manual_seed(step)
    return {
        "global_step": step,
        "state_dict": {"weight": torch.rand(size, generator=generator)},
        "note": ["a", 1.5, None],
    }


def save(path, step=7, **kwargs):
    SafeCheckpointIO().save_checkpoint(content(step, **kwargs), path)
    return path


def truncate(path, share=0.6):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    return path


@pytest.fixture
def full_disk():
    """Limit files to 20 kB, so that larger writes fail midway as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_save_and_load_round_trip(tmp_path):
    path = save(tmp_path / "new" / "folder" / "a.ckpt")
    for loaded in (read(path), read(str(path)), SafeCheckpointIO().load_checkpoint(path)):
        assert loaded.keys() == content().keys()
        assert torch.equal(loaded["state_dict"]["weight"], content()["state_dict"]["weight"])
        assert loaded["note"] == ["a", 1.5, None]
    assert [file.name for file in path.parent.iterdir()] == ["a.ckpt"]


def test_a_full_disk_leaves_the_old_file_and_no_partial_file(tmp_path, full_disk):
    path = save(tmp_path / "last.ckpt", step=1)
    before = path.read_bytes()
    with pytest.raises(CheckpointError) as error:
        save(path, step=2, size=100_000)
    assert str(error.value) == f"cannot save {path}: File too large; the earlier {path.name} is intact"
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_flipped_bits_cause_an_error_or_change_nothing(tmp_path):
    path = save(tmp_path / "a.ckpt")
    whole = path.read_bytes()
    chosen = random.Random(0)
    damaged = 0
    for _ in range(300):
        flipped = bytearray(whole)
        flipped[chosen.randrange(len(whole))] ^= 1 << chosen.randrange(8)
        path.write_bytes(flipped)
        try:
            loaded = read(path)
        except CheckpointError:
            damaged += 1
        else:
            assert torch.equal(loaded["state_dict"]["weight"], content()["state_dict"]["weight"])
    assert damaged > 150


@pytest.mark.parametrize("garbage", [b"", b"not a checkpoint", b"PK\x03\x04" + b"\0" * 100])
def test_rejects_files_that_are_not_checkpoints(tmp_path, garbage):
    path = tmp_path / "a.ckpt"
    path.write_bytes(garbage)
    with pytest.raises(CheckpointError, match=r"a.ckpt is truncated or not a checkpoint"):
        read(path)


def test_a_missing_file_or_a_folder_causes_an_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"no such checkpoint: .*missing.ckpt"):
        read(tmp_path / "missing.ckpt")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read(tmp_path)


def test_an_invalid_map_location_is_not_reported_as_unsafe_content(tmp_path):
    torch.save(content(), tmp_path / "a.ckpt")
    with pytest.raises(CheckpointError, match=r"a.ckpt cannot be loaded: .*nowhere"):
        read(tmp_path / "a.ckpt", map_location="nowhere")


class Trap:
    """Runs a command when unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("weights_only", [None, False, True])
def test_code_in_a_checkpoint_is_not_run(tmp_path, weights_only):
    marker, path = tmp_path / "marker", tmp_path / "trap.ckpt"
    torch.save({**content(), "hyper_parameters": Trap(marker)}, path)
    with pytest.raises(CheckpointError, match=r"trap.ckpt was not loaded, because it contains objects"):
        SafeCheckpointIO().load_checkpoint(path, weights_only=weights_only)
    assert not marker.exists()
    torch.load(path, weights_only=False)  # without this protection, the code runs
    assert marker.exists()


def test_sort_by_age_orders_by_step_and_omits_damaged_files(tmp_path):
    for name, step in (("c", 3), ("a", 20), ("b", 100), ("last", 20)):
        save(tmp_path / f"{name}.ckpt", step)
    truncate(save(tmp_path / "d.ckpt", 500))
    assert [path.stem for path in sort_by_age(tmp_path.glob("*.ckpt"))] == ["b", "last", "a", "c"]


def test_fill_linked_reads_values_from_task_and_net_hyperparameters(tmp_path):
    parameters = {"class_names": ["a", "b"], "net": {"init_args": {"num_classes": 2}}}
    torch.save({"hyper_parameters": parameters}, tmp_path / "x.ckpt")
    names = "class_names", "num_classes", "mean", "feature_names", "input_shape"
    found = dict.fromkeys(names)
    fill_linked(found, PROJECT.links, read(tmp_path / "x.ckpt"))
    assert list(found.values()) == [["a", "b"], 2, None, None, None]
