"""Fingerprints differ if and only if the data differ, wherever the data are stored."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from helpers import classifier
from lit_engine.data import fingerprint as module
from lit_engine.data.fingerprint import fingerprint, fingerprints
from toy.data import Images


class Files(Dataset):
    """Dataset of labelled files that also has attributes unrelated to its samples."""

    def __init__(self, root, size=3):
        self.root, self.samples = root, [(f"{root}/{number}.png", number) for number in range(size)]
        self.loader, self.model, self._cache = lambda path: path, torch.nn.Linear(2, 2), [torch.rand(2)]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        raise AssertionError


def files(folder, size=3, content=b"content"):
    folder.mkdir()
    for number in range(size):
        (folder / f"{number}.png").write_bytes(content + bytes([number]))
    return Files(folder, size)


def test_files_are_fingerprinted_by_name_size_and_content(tmp_path):
    first = fingerprint(files(tmp_path / "a"))
    assert fingerprint(files(tmp_path / "b")) == first
    assert fingerprint(files(tmp_path / "c", content=b"longer content")) != first
    assert fingerprint(files(tmp_path / "d", content=b"kontent")) != first
    assert fingerprint(files(tmp_path / "e", size=4)) != first
    renamed = files(tmp_path / "f")
    (tmp_path / "f" / "2.png").rename(tmp_path / "f" / "3.png")
    renamed.samples[2] = (f"{tmp_path}/f/3.png", 2)
    assert fingerprint(renamed) != first


ONE, TWO = ("a", 1), ("b", 2)


class Table:
    """Stand-in for a pandas table, which has only private attributes."""

    def __init__(self, values):
        self._values = values

    def to_numpy(self):
        return np.array(self._values)


@dataclass(slots=True)
class Sample:
    label: int


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.tensor([1, 2, 3]), torch.tensor([1, 2, 4])),
        (torch.tensor([1, 2, 3]), torch.tensor([[1, 2, 3]])),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.tensor(1.0), torch.tensor(-1.0)),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array(["a", None], dtype=object), np.array(["b", None], dtype=object)),
        (["a", "b"], ["ab"]),
        ([1, 2], [1, 3]),
        (list(np.array([1, 2])), list(np.array([1, 3]))),
        ([Sample(1)], [Sample(2)]),
        ([ONE, TWO, ONE, TWO], [ONE, ONE, TWO, TWO]),
        ({"a", "b"}, {"a", "c"}),
        (Table([1]), Table([2])),
        ({"a": 1}, {"a": 2}),
        (TensorDataset(torch.arange(3)), TensorDataset(torch.arange(4))),
        (Subset(TensorDataset(torch.arange(3)), [0, 1]), Subset(TensorDataset(torch.arange(3)), [0, 2])),
        (DataLoader(TensorDataset(torch.arange(3))), DataLoader(TensorDataset(torch.arange(1, 4)))),
    ],
)
def test_different_values_have_different_fingerprints(one, other):
    assert fingerprint(one) != fingerprint(other)


def test_equal_values_including_cycles_have_the_same_fingerprint():
    loaders = [DataLoader(TensorDataset(torch.arange(3)), batch_size=size) for size in (1, 2)]
    assert fingerprint(loaders[0]) == fingerprint(loaders[1])
    cycles = [[torch.arange(3)], [torch.arange(3)]]
    for cycle in cycles:
        cycle.append(cycle)
    assert fingerprint(cycles[0]) == fingerprint(cycles[1])
    assert fingerprint([ONE, ONE]) == fingerprint([("a", int(one)) for one in "11"])
    assert fingerprint({"a", "b", "c"}) == fingerprint({"c", "b", "a"})
    assert fingerprint(torch.arange(6).view(2, 3).T) == fingerprint(torch.arange(6).view(2, 3).T.contiguous())


def test_only_part_of_large_data_is_read(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 80)
    monkeypatch.setattr(module, "MAX_ITEMS", 10)
    array, items = torch.arange(100), list(range(100))  # 800 bytes
    before = fingerprint(array), fingerprint(items)
    array[1], items[1] = 0, 0
    assert (fingerprint(array), fingerprint(items)) == before
    array[0], items[0] = 1, 1
    assert before[0] != fingerprint(array)
    assert before[1] != fingerprint(items)


class Loaders(LightningDataModule):
    """A data module without splits."""

    def __init__(self, images, targets):
        super().__init__()
        self.train = TensorDataset(images.float() / 255, targets)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=8)


def test_loaded_splits_are_fingerprinted_and_known_ones_are_skipped(trainer):
    data, runner = Images(batch_size=8, sampling="balanced"), trainer(max_epochs=1)
    runner.fit(classifier(), datamodule=data)
    found = fingerprints(runner)
    assert found.keys() == {"train", "val", "sampling"}
    assert found["train"] == fingerprint(Images(batch_size=4).load_split("train"))
    assert fingerprints(runner, known=found) == {}


def test_data_modules_without_splits_are_fingerprinted_by_their_dataloaders(trainer):
    class Plain(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(16, 4)

        def training_step(self, batch, index):
            return self.net(batch[0].flatten(1)).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    data, runner = Loaders(*Images().load("train")), trainer(max_epochs=1)
    runner.fit(Plain(), datamodule=data)
    assert fingerprints(runner) == {"train": fingerprint(data.train)}
    vars(data.train)["_tensors"] = vars(data.train).pop("tensors")
    assert fingerprints(runner) == {}  # a hash of no data would hide changes
