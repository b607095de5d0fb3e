"""The batches of an epoch partition the samples over processes, and depend only on (seed, epoch)."""

import itertools
import random
from math import ceil

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

from lit_engine.data.sampler import EpochBatches, Loader, seed_dataset
from lit_engine.errors import DataError

RANDOM = random.Random(0)
CASES = [(size, batch_size, processes) for size in (7, 16) for batch_size in (1, 2, 5, 20) for processes in (1, 2, 4)]
CASES += [(RANDOM.randint(1, 500), RANDOM.randint(1, 60), RANDOM.randint(1, 16)) for _ in range(200)]


def epoch_of(size, batch_size, processes, epoch=0, seed=0, **kwargs):
    """Return the samplers of all processes, and their batches as lists of indices."""
    orders = [
        EpochBatches(size, batch_size, seed=seed, num_replicas=processes, rank=rank, **{"shuffle": True, **kwargs})
        for rank in range(processes)
    ]
    for order in orders:
        order.set_epoch(epoch)
    return orders, [[batch.tolist() for batch in order] for order in orders]


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_sample_occurs_once_and_all_processes_have_equally_many_batches(shuffle):
    checked = 0
    for case in CASES:
        size, batch_size, processes = case
        if size < processes or (batch_size == 1 and size % processes):
            continue
        orders, batches = epoch_of(*case, epoch=checked, shuffle=shuffle)
        seen = sorted(itertools.chain.from_iterable(itertools.chain.from_iterable(batches)))
        assert seen == list(range(size)), case
        assert all(1 <= len(batch) <= batch_size for rank in batches for batch in rank), case
        # There are as many batches as the largest share needs, and no more.
        assert {len(rank) for rank in [*batches, *orders]} == {ceil(ceil(size / processes) / batch_size)}, case
        checked += 1
    assert checked > 200


@pytest.mark.parametrize("shuffle", [False, True])
def test_drop_last_drops_less_than_one_batch_per_process_and_repeats_no_sample(shuffle):
    checked = 0
    for case in CASES:
        size, batch_size, processes = case
        if size < batch_size * processes:
            continue
        orders, batches = epoch_of(*case, shuffle=shuffle, drop_last=True)
        assert all(len(batch) == batch_size for rank in batches for batch in rank), case
        assert {len(rank) for rank in [*batches, *orders]} == {size // (batch_size * processes)}, case
        seen = list(itertools.chain.from_iterable(itertools.chain.from_iterable(batches)))
        assert len(set(seen)) == len(seen) > size - batch_size * processes, case
        assert set(seen) <= set(range(size)), case
        checked += 1
    assert checked > 90


@pytest.mark.parametrize("processes", [1, 3])
def test_order_depends_only_on_seed_and_epoch(processes):
    torch.manual_seed(1)
    _, expected = epoch_of(50, 4, processes, epoch=2, seed=9)
    torch.manual_seed(2)
    torch.rand(17)
    orders, again = epoch_of(50, 4, processes, epoch=2, seed=9)
    assert again == expected
    for order in orders:  # iterating over other epochs, even partially, has no effect
        order.set_epoch(7)
        list(order)
        order.set_epoch(1)
        next(iter(order))
        order.set_epoch(2)
    assert [[batch.tolist() for batch in order] for order in orders] == expected


def test_order_differs_between_epochs_and_seeds():
    orders = {str(epoch_of(30, 7, 1, epoch=epoch, seed=seed)[1]) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


class Numbers:
    """Dataset that returns the requested indices as a batch."""

    def __getitem__(self, indices):
        return indices.tolist()


def loader(size=20, batch_size=6, num_workers=0, **kwargs):
    return Loader(Numbers(), EpochBatches(size, batch_size, shuffle=True, **kwargs), num_workers)


@pytest.mark.parametrize(("drop_last", "processes"), [(False, 1), (False, 3), (True, 2)])
def test_loader_resumes_mid_epoch(drop_last, processes):
    def make():
        return loader(53, 4, drop_last=drop_last, seed=2, num_replicas=processes, rank=processes - 1)

    whole = {}
    reference = make()
    for epoch in (3, 4, 5):
        reference.sampler.set_epoch(epoch)
        whole[epoch] = list(reference)
    for stop in range(1, len(reference)):
        interrupted = make()
        interrupted.sampler.set_epoch(3)
        assert list(itertools.islice(interrupted, stop)) == whole[3][:stop]
        state = interrupted.state_dict()
        torch.manual_seed(stop)
        resumed = make()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state  # saved again before the first batch
        resumed.sampler.set_epoch(3)  # Lightning calls this after loading the state
        assert list(resumed) == whole[3][stop:]
        for epoch in (4, 5):  # followed by complete epochs
            resumed.sampler.set_epoch(epoch)
            assert list(resumed) == whole[epoch]


class Transform:
    """Transform with its own random generator, like the transforms of albumentations."""

    def set_random_seed(self, seed):
        self.random = random.Random(f"own {seed}")


class Drawing(Numbers):
    """Dataset that draws random numbers. A batch contains one number from each generator."""

    def __init__(self):
        self.transform = Transform()
        self.transform.set_random_seed(None)

    def __len__(self):
        return 20

    def __getitem__(self, indices):
        return [torch.rand(()).item(), random.random(), np.random.rand(), self.transform.random.random()]  # noqa: NPY002


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_random_numbers_depend_only_on_seed_epoch_and_batch(num_workers):
    def make(workers=num_workers, seed=1):
        return Loader(Drawing(), EpochBatches(20, 6, shuffle=True, seed=seed), workers)

    def epoch_of(loader, epoch):
        loader.sampler.set_epoch(epoch)
        return list(loader)

    whole, resumed = make(), make()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), random.getstate()
    epochs = [epoch_of(whole, epoch) for epoch in range(2)]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.rand() == np.random.RandomState(5).rand()  # noqa: NPY002
    assert len({number for batches in epochs for batch in batches for number in batch}) == 2 * 4 * 4
    assert epoch_of(make(workers=0), 1) == epochs[1]
    assert epoch_of(make(seed=2), 1) != epochs[1]
    resumed.load_state_dict({"epoch": 1, "position": 2, "batch": 6, "step": 6})
    assert epoch_of(resumed, 1) == epochs[1][2:]


def test_transforms_of_concatenated_datasets_are_seeded():
    parts, drawn = [Drawing(), Drawing()], []
    for _ in range(2):
        seed_dataset(1, Subset(ConcatDataset(parts), range(40)))
        drawn.append([part[torch.arange(2)][-1] for part in parts])
    assert drawn[0] == drawn[1]


def test_prefetching_workers_do_not_advance_the_saved_position():
    ahead = loader(num_workers=1)
    batches = iter(ahead)
    seen = [next(batches), next(batches)]
    assert ahead.state_dict() == {"epoch": 0, "position": 2, "seed": 0, "batch": 6, "step": 6}
    assert seen == list(loader())[:2]


def test_rejects_a_mid_epoch_position_if_the_seed_or_samples_per_step_changed():
    order = loader()
    begun = iter(order)
    next(begun)
    for other in ({"batch_size": 3}, {"batch_size": 6, "num_replicas": 2}):
        with pytest.raises(DataError, match=r"Each step had 6 samples .* but now has"):
            loader(**other).load_state_dict(order.state_dict())
    with pytest.raises(DataError, match="stopped mid-epoch with the seed 0"):
        loader(seed=1).load_state_dict(order.state_dict())
    loader(batch_size=3, num_replicas=2).load_state_dict(order.state_dict())  # same number of samples per step
    list(begun)
    loader(batch_size=4, seed=1).load_state_dict(order.state_dict())  # at the end of an epoch


def test_too_few_samples_cause_an_error():
    for size, batch_size, processes, drop_last in (
        (3, 2, 4, False),
        (7, 4, 2, True),
        (7, 1, 2, False),
    ):
        with pytest.raises(
            DataError, match=f"{size} samples cannot be split into the same number of batches for {processes} process"
        ) as error:
            EpochBatches(size, batch_size, shuffle=True, drop_last=drop_last, num_replicas=processes)
        assert ("--trainer.devices=1" in str(error.value)) == (processes > 1)
    with pytest.raises(DataError, match="there are no samples"):
        EpochBatches(0, 4, shuffle=False)
