"""Checks for samplers with `global_batch_size` and any number of processes and micro-batches."""

import copy
import random

import torch

from lit_engine.data.sampler import Loader

G = 60
DIVISORS = [n for n in range(1, G + 1) if G % n == 0]
SPLITS = [(processes, n // processes) for n in DIVISORS for processes in DIVISORS if n % processes == 0]
SIZES = [1, 5, 2 * G, 2 * G + 1, 2 * G + 7, 3 * G - 1]


class Numbers:
    """Dataset that returns the requested indices as a batch."""

    def __getitem__(self, indices):
        return indices


def ranks(sampler):
    """Yield the samplers of all processes."""
    for rank in range(sampler.num_replicas):
        own = copy.copy(sampler)
        own.rank = rank
        yield own


def steps_of(sampler, accumulate, epoch=1):
    """Return the step of each sample, `(size,)`, or -1 if it is not used. Checks that no sample is used twice."""
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
    assert len(set(*places)) == len(places) == 1  # all processes have the same length and number of batches
    indices, found = torch.cat(counted), torch.full((sampler.size,), -1)
    assert len(indices.unique()) == len(indices)
    found[indices] = torch.tensor(steps)
    return found


def check_each_step(make, size, splits):
    """Check that each step uses the same samples, once per epoch, for any number of processes and micro-batches.

    Similar to MosaicML Streaming's partition test.
    """
    one, whole = make(size), make(size, batch_size=G)
    one.set_epoch(1)
    whole.set_epoch(1)
    expected = torch.full((size,), -1)
    for step, batch in enumerate(whole.batches()):
        expected[batch] = step
    assert expected.min() == 0
    assert all(torch.equal(a, b) for a, b in zip(one.batches(), whole.batches(), strict=True))
    for processes, accumulate in splits:
        sampler = make(size, processes, accumulate)
        assert len(sampler) == len(whole) * accumulate
        assert torch.equal(steps_of(sampler, accumulate), expected), (processes, accumulate)


def check_other_splits(make):
    """Check that each step may use a different number of processes and micro-batches."""
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
