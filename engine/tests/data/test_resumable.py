"""Ordinary DataLoaders have a reproducible order and reproducible random numbers, even if a run resumes mid-epoch."""

import os
import pickle
import random
import signal

import numpy as np
import pytest
import torch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch import LightningDataModule
from test_order import Transform
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from helpers import SaveAt, Witness
from lit_engine.data.resumable import SeededOrder, make_resumable
from lit_engine.training.saver import Saver


class Noisy(Dataset):
    """Samples that consist of their index and a random number."""

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return index, torch.rand(())


class Endless(Sampler):
    """Draws permutations from the global generator. All except the first are drawn during training."""

    def __iter__(self):
        while True:
            yield from torch.randperm(16).tolist()


class EndlessWithLength(Endless):
    def __len__(self):
        return 16


def shuffled():
    return DataLoader(Noisy(), batch_size=4, shuffle=True)


class Stored(LightningDataModule):
    """Returns the same two loaders in each epoch."""

    def __init__(self):
        super().__init__()
        self.loaders = {"a": shuffled(), "b": shuffled()}

    def train_dataloader(self):
        return self.loaders


@pytest.fixture
def fit(trainer):
    """Return a function that trains and returns the batches."""

    def train(data, callbacks=(), checkpoint=None, **options):
        witness = Witness()
        runner = trainer(callbacks=[Saver(), *callbacks], **{"max_epochs": 1, **options})
        source = {"datamodule" if isinstance(data, LightningDataModule) else "train_dataloaders": data}
        runner.fit(witness, **source, ckpt_path=checkpoint, weights_only=True)
        return witness.batches["train"]

    return train


def drawn(batches):
    """Return a dict from indices to random numbers."""
    return {int(index): float(noise) for batch in batches for index, noise in zip(*batch, strict=True)}


def test_each_training_loader_has_its_own_order_and_random_numbers(fit):
    loader = shuffled()
    both = fit({"a": loader, "b": loader})
    a, b = ([batch[name] for batch in both] for name in "ab")
    torch.testing.assert_close(fit(shuffled()), a, rtol=0, atol=0)
    assert drawn(a).keys() == drawn(b).keys()
    assert list(drawn(a)) != list(drawn(b))
    assert all(drawn(a)[index] != drawn(b)[index] for index in range(16))


def test_workers_of_a_trainer_in_your_own_code_can_be_spawned(fit):
    data = Stored()
    fit(data)
    pickle.dumps(data)  # a worker receives the data module if one of its methods is the `collate_fn`


def test_the_order_does_not_depend_on_reloading_dataloaders(fit):
    once, reloaded = (fit(Stored(), max_epochs=3, reload_dataloaders_every_n_epochs=n) for n in (0, 1))
    torch.testing.assert_close(reloaded, once, rtol=0, atol=0)
    assert list(drawn(batch["a"] for batch in once[:4])) != list(drawn(batch["a"] for batch in once[4:8]))


@pytest.mark.parametrize("sampler", [[3] * 20, Endless(), EndlessWithLength()])
def test_repeated_samples_get_different_random_numbers_and_resume_exactly(fit, tmp_path, sampler):
    def loader():
        return DataLoader(Noisy(), batch_size=2, sampler=sampler)

    options = {"max_steps": 10, "max_epochs": -1}
    whole = fit(loader(), [SaveAt(7, tmp_path / "saved.ckpt")], **options)
    torch.rand(5)
    resumed = fit(loader(), checkpoint=tmp_path / "saved.ckpt", **options)
    torch.testing.assert_close(resumed, whole[7:], rtol=0, atol=0)
    assert len({float(noise) for _, noises in whole for noise in noises}) == 20


class Stream(IterableDataset):
    """Dataset of 20 numbers that does not define `__len__`."""

    def __iter__(self):
        yield from range(20)


def test_workers_of_an_iterable_dataset_survive_a_signal(trainer):
    batches = iter(make_resumable(DataLoader(Stream(), num_workers=1), trainer()))
    found = [next(batches)]
    os.kill(batches._workers[0].pid, signal.SIGTERM)
    assert torch.cat([*found, *batches]).tolist() == list(range(20))


class Forwarding(DataLoader):
    """Loader whose own `__iter__` modifies the batches of its base class."""

    def __iter__(self):
        for indices, noise in super().__iter__():
            yield indices, noise + torch.rand(())


@pytest.mark.parametrize("kind", [DataLoader, Forwarding])
def test_a_repeated_loader_reshuffles_in_each_pass_and_resumes_exactly(fit, tmp_path, kind):
    def loaders():
        return {"short": kind(Noisy(), batch_size=4, shuffle=True), "long": DataLoader(Noisy(), batch_size=1)}

    whole = fit(loaders(), [SaveAt(23, tmp_path / "saved.ckpt")], max_epochs=2)
    passes = [drawn(batch["short"] for batch in whole[start : start + 4]) for start in range(0, 32, 4)]
    assert all(sorted(one) == list(range(16)) for one in passes)
    assert len({tuple(one) for one in passes}) == 8
    assert len({noise for one in passes for noise in one.values()}) == 8 * 16
    resumed = fit(loaders(), checkpoint=tmp_path / "saved.ckpt", max_epochs=2)
    torch.testing.assert_close(resumed, whole[23:], rtol=0, atol=0)


def test_a_short_loader_repeats_completely_alongside_a_loader_without_length(fit):
    batches = fit({"short": shuffled(), "long": DataLoader(Stream(), batch_size=1)})
    passes = [drawn(batch["short"] for batch in batches[start : start + 4]) for start in range(0, 20, 4)]
    assert all(sorted(one) == list(range(16)) for one in passes)
    assert len({tuple(one) for one in passes}) == 5


class Bulk(Noisy):
    """Dataset that returns a batch for a list of indices."""

    def __getitem__(self, index):
        return torch.tensor(index), torch.rand(len(index))


@pytest.mark.parametrize("loader", [
    lambda: DataLoader(Bulk(), batch_size=None, sampler=BatchSampler(RandomSampler(range(16)), 4, False)),
    lambda: DataLoader(Noisy(), batch_sampler=torch.arange(16).flip(0).split(4)),
    lambda: DataLoader(Noisy(), batch_sampler=np.arange(16).reshape(4, 4)),
])  # fmt: skip
def test_indices_may_be_lists_tensors_or_arrays(fit, tmp_path, loader):
    whole = fit(loader(), [SaveAt(6, tmp_path / "saved.ckpt")], max_epochs=2)
    assert sorted(drawn(whole[:4])) == list(range(16))
    resumed = fit(loader(), checkpoint=tmp_path / "saved.ckpt", max_epochs=2)
    torch.testing.assert_close(resumed, whole[6:], rtol=0, atol=0)


class Opened(Noisy):
    """Reads a file that each worker opens."""

    file = None

    def __getitem__(self, index):
        return self.file[index], torch.rand(())


def open_file(worker):
    get_worker_info().dataset.file = [10 * index for index in range(16)]


class Indexing(DataLoader):
    """Loader that reads a whole batch with one index operation, and returns it with noise."""

    def __iter__(self):
        for indices in self.batch_sampler:
            yield self.dataset.tensors[0][indices], torch.rand(len(indices))


class Permuting(DataLoader):
    """Loader that draws its own permutation and ignores its sampler."""

    def __iter__(self):
        for indices in torch.randperm(len(self.dataset)).split(self.batch_size):
            yield self.collate_fn([self.dataset[int(index)] for index in indices])


class Reshuffling(Sampler):
    """Shuffles its list of indices in place, so that an epoch depends on the previous ones."""

    def __init__(self):
        self.indices = list(range(16))

    def __len__(self):
        return 16

    def __iter__(self):
        random.shuffle(self.indices)
        yield from self.indices


class Transforming(Noisy):
    """Draws random numbers with a transform that has its own generator."""

    def __init__(self):
        self.transform = Transform()
        self.transform.set_random_seed(None)

    def __getitem__(self, index):
        return index, self.transform.random.random()


class Batches(Dataset):
    """Dataset that can only load whole batches."""

    def __getitems__(self, indices):
        return [(index, torch.rand(())) for index in indices]


def after_a_batch():
    """Return a loader whose persistent worker has already read a batch, for example to infer its shape."""
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True)
    next(iter(loader))
    return loader


@pytest.mark.parametrize("loader", [
    lambda: Indexing(TensorDataset(torch.arange(16)), batch_size=4, shuffle=True),
    lambda: Permuting(Noisy(), batch_size=4),
    lambda: Forwarding(Noisy(), batch_size=4, shuffle=True, num_workers=1),
    lambda: DataLoader(Noisy(), batch_size=4, sampler=Reshuffling()),
    lambda: DataLoader(Subset(Transforming(), range(16)), batch_size=4, shuffle=True),
    lambda: DataLoader(Subset(Batches(), range(16)), batch_size=4, shuffle=True),
    after_a_batch,
], ids=["indexing", "permuting", "forwarding", "reshuffling", "transforming", "batches", "persistent"])  # fmt: skip
def test_unusual_loaders_samplers_and_datasets_resume_exactly(fit, tmp_path, loader):
    whole = fit(loader(), [SaveAt(10, tmp_path / "saved.ckpt")], max_epochs=4)
    for epoch in range(4):
        assert sorted(drawn(whole[4 * epoch : 4 * epoch + 4])) == list(range(16))
    assert list(drawn(whole[:4])) != list(drawn(whole[4:8]))
    resumed = fit(loader(), checkpoint=tmp_path / "saved.ckpt", max_epochs=4)
    torch.testing.assert_close(resumed, whole[10:], rtol=0, atol=0)


def test_worker_init_fn_may_modify_the_dataset(fit):
    batches = fit(DataLoader(Opened(), batch_size=4, num_workers=1, worker_init_fn=open_file))
    assert sorted(drawn(batches)) == list(range(0, 160, 10))


def test_generators_of_nested_samplers_are_seeded():
    """Samplers may be nested: Lightning wraps each process's sampler in a DistributedSamplerWrapper."""

    def draw(state):
        generator = torch.Generator().manual_seed(state)
        weighted = WeightedRandomSampler([1.0] * 16, 16, generator=generator)
        shared = DistributedSamplerWrapper(weighted, num_replicas=2, rank=0, shuffle=False)
        return [index for _, index in SeededOrder(shared, 1, yields_batches=False)]

    assert draw(0) == draw(1)
    assert len(set(draw(0))) > 1
