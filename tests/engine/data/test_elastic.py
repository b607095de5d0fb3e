"""With `global_batch_size`, each step has the same samples for any number of processes and micro-batches."""

import copy
import random

import pytest
import torch

from lit_engine.data.sampler import EpochBatches, Loader
from lit_engine.errors import DataError
from lit_project.data.parallel_text.batches import TokenBatches

G = 60
DIVISORS = [n for n in range(1, G + 1) if G % n == 0]
SPLITS = [(processes, n // processes) for n in DIVISORS for processes in DIVISORS if n % processes == 0]


def images(size, processes=1, accumulate=1, **kwargs):
    if "batch_size" not in kwargs:
        kwargs = {"global_batch_size": G, "accumulate": accumulate, **kwargs}
    return EpochBatches(size, shuffle=True, seed=3, num_replicas=processes, **kwargs)


def pairs(size, processes=1, accumulate=1, **kwargs):
    lengths = torch.randint(3, 40, (2, size), generator=torch.Generator().manual_seed(0))
    if "batch_size" not in kwargs:
        kwargs = {"global_batch_size": G, "accumulate": accumulate, **kwargs}
    return TokenBatches(*lengths, shuffle=True, seed=3, num_replicas=processes, **kwargs)


def ranks(sampler):
    """Yield the samplers of all processes."""
    for rank in range(sampler.num_replicas):
        own = copy.copy(sampler)
        own.rank = rank
        yield own


def steps_of(sampler, accumulate, epoch=1):
    """Return the step that uses each sample, `(size,)`, or -1. Checks that no sample is used twice."""
    counted, steps, places = [], [], set()
    for own in ranks(sampler):
        own.set_epoch(epoch)
        batches = own.batches()
        places.add((len(batches), len(own)))
        assert min(map(len, batches)) > 0
        assert max(map(len, batches)) <= own.batch_size
        for place, batch in enumerate(batches):
            if place not in own.fillers:
                counted.append(batch)
                steps += [place // accumulate] * len(batch)
            else:
                assert len(batch) == 1
    assert len(set(*places)) == len(places) == 1  # all have the same length and as many batches
    indices, found = torch.cat(counted), torch.full((sampler.size,), -1)
    assert len(indices.unique()) == len(indices)
    found[indices] = torch.tensor(steps)
    return found


@pytest.mark.parametrize("make", [images, pairs])
@pytest.mark.parametrize("size", [1, 5, 2 * G, 2 * G + 1, 2 * G + 7, 3 * G - 1])
def test_each_step_has_the_same_samples_for_all_processes_and_micro_batches(make, size):
    """Similar to MosaicML Streaming's partition test. Each sample occurs once per epoch, even in an incomplete step."""
    whole = make(size, batch_size=G)
    whole.set_epoch(1)
    expected = torch.full((size,), -1)
    for step, batch in enumerate(whole.batches()):
        expected[batch] = step
    assert expected.min() == 0
    assert all(torch.equal(a, b) for a, b in zip(make_epoch(make(size)), make_epoch(whole), strict=True))
    for processes, accumulate in SPLITS if make is images else SPLITS[::5]:
        sampler = make(size, processes, accumulate)
        assert len(sampler) == len(whole) * accumulate
        assert torch.equal(steps_of(sampler, accumulate), expected), (processes, accumulate)


def make_epoch(sampler):
    sampler.set_epoch(1)
    return sampler.batches()


def test_drop_last_leaves_out_what_fills_no_step():
    for processes, accumulate in SPLITS[::7]:
        found = steps_of(images(2 * G + 30, processes, accumulate, drop_last=True), accumulate)
        assert found.unique(return_counts=True)[1].tolist() == [30, G, G]


class Numbers:
    """Returns the requested indices as a batch."""

    def __getitem__(self, indices):
        return indices


@pytest.mark.parametrize("make", [images, pairs])
def test_every_step_may_be_followed_by_another_split(make):
    size, epoch = 7 * G + 3, 2
    choose = random.Random(0).choice
    whole = make(size)
    whole.set_epoch(epoch)
    state = {"epoch": epoch, "position": 0, "batch": G, "step": G}
    for expected in whole.batches():
        processes, accumulate = choose(SPLITS)
        sampler, seen, states = make(size, processes, accumulate), [], []
        for own in ranks(sampler):
            loader = Loader(Numbers(), own)
            loader.load_state_dict(state)
            loader.sampler.set_epoch(epoch)
            batches = iter(loader)
            seen += [batch for batch in (next(batches) for _ in range(accumulate)) if not loader.filler]
            states.append(loader.state_dict())
        assert torch.equal(torch.cat(seen).sort().values, expected.sort().values), (processes, accumulate)
        assert all(one == states[0] for one in states)
        state = states[0]
    assert state["position"] == 0  # the start of the next epoch


def test_every_position_is_found_in_every_other_split():
    size = 4 * G + 1
    loaders = {split: Loader(Numbers(), images(size, *split)) for split in SPLITS}
    states = [{"epoch": 0, "position": step * a, "batch": G // a, "step": G} for _, a in SPLITS for step in range(5)]
    for (_, accumulate), loader in loaders.items():
        for state in states:
            loader.load_state_dict(state)
            assert loader.sampler.start == state["position"] * state["batch"] // G * accumulate


def test_a_run_may_go_over_from_batch_size_and_back_within_an_epoch():
    old = Loader(Numbers(), EpochBatches(100, 4, shuffle=True, seed=3, num_replicas=2, accumulate=3))
    new = Loader(Numbers(), EpochBatches(100, global_batch_size=24, shuffle=True, seed=3))
    other = Loader(Numbers(), EpochBatches(100, 8, shuffle=True, seed=3, accumulate=2))
    begun = iter(old)
    for _ in range(6):
        next(begun)
    new.load_state_dict(old.state_dict())
    assert new.state_dict() == {"epoch": 0, "position": 2, "batch": 24, "step": 24}
    old.load_state_dict(new.state_dict())
    assert (old.position, old.recut) == (6, True)
    with pytest.raises(DataError, match=r"steps of 24 samples .* a step now has 16: .* data.global_batch_size"):
        other.load_state_dict(old.state_dict())


def test_pairs_of_other_batches_are_refused_within_an_epoch():
    """Without a global batch size, batches are split differently for one and two processes."""
    state = {**Loader(Numbers(), pairs(300, 2, batch_size=10)).state_dict(), "position": 3}
    for other in (pairs(300, batch_size=20), pairs(300, global_batch_size=20)):
        with pytest.raises(DataError, match=r"steps of 10 × 2 × 1 samples"):
            Loader(Numbers(), other).load_state_dict(state)
    Loader(Numbers(), pairs(300, 2, batch_size=10)).load_state_dict(state)
    one = {**Loader(Numbers(), pairs(300, batch_size=20)).state_dict(), "position": 3}
    Loader(Numbers(), pairs(300, 2, global_batch_size=20)).load_state_dict(one)


@pytest.mark.parametrize(("size", "nearest"), [(100, "96 and 102"), (2, "6 and 12"), (959, "954 and 960")])
def test_what_processes_and_micro_batches_do_not_divide_is_refused_with_the_nearest_that_they_do(size, nearest):
    with pytest.raises(
        DataError,
        match=rf"{size} .* among 3 process.*accumulate_grad_batches 2; the nearest valid sizes are {nearest}$",
    ):
        images(5000, 3, 2, global_batch_size=size)


def test_no_samples_are_an_error():
    for kwargs, message in (
        ({"size": 0}, "no samples"),
        ({"size": G - 1, "drop_last": True}, f"with global_batch_size {G}"),
    ):
        with pytest.raises(DataError, match=message):
            images(**kwargs)
