"""Tests batches with a token budget: their distribution over ranks, their size, padding and order."""

import pytest
import torch

from lit_engine.errors import DataError
from lit_project.data.parallel_text.batches import TokenBatches, _cut


def lengths(size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(2, 40, (size,), generator=generator)
    return source, (source + torch.randint(-1, 6, (size,), generator=generator)).clamp(min=3)


def order(size=500, **options):
    options = {"batch_tokens": 300, "shuffle": True, "seed": 1, **options}
    return TokenBatches(*lengths(size), **options)


@pytest.mark.parametrize(
    ("ranks", "size", "shuffle"),
    [
        (1, {"batch_tokens": 300}, False),
        (3, {"batch_tokens": 300}, True),
        (2, {"batch_tokens": None, "batch_size": 16}, True),
    ],
)
def test_ranks_partition_the_pairs_into_the_same_number_of_batches(ranks, size, shuffle):
    for epoch in (0, 1):
        found = []
        counts = set()
        for rank in range(ranks):
            own = order(num_replicas=ranks, rank=rank, shuffle=shuffle, **size)
            own.set_epoch(epoch)
            batches = list(own)
            counts.add((len(batches), len(own)))
            assert all(len(batch) for batch in batches)
            found += torch.cat(batches).tolist()
        assert sorted(found) == list(range(500))
        assert len(counts) == 1
        assert len(set(*counts)) == 1


def test_no_batch_exceeds_the_budget():
    source, target = lengths(500)
    for batch in order():
        assert len(batch) * max(source[batch].max(), target[batch].max()) <= 300


def test_batches_group_pairs_of_similar_length():
    source, target = lengths(500)
    spread = [int(target[b].max() - target[b].min()) for b in order()]
    assert max(spread) <= 5  # lengths range from 3 to 44
    waste = order().padding_waste()
    by_hand = [1 - x.sum().item() / sum(len(b) * int(x[b].max()) for b in order().batches()) for x in (source, target)]
    assert waste[1] < 0.05
    assert waste[1] == pytest.approx(by_hand[1])
    # The length of the longest source in a batch does not depend on the epoch either.
    assert waste[0] == pytest.approx(by_hand[0])


def test_order_depends_only_on_seed_and_epoch():
    def epoch(number, seed=1):
        own = order(seed=seed)
        own.set_epoch(number)
        return [batch.tolist() for batch in own]

    assert epoch(3) == epoch(3)
    assert epoch(3) != epoch(4)
    assert epoch(3) != epoch(3, seed=2)
    source, target = lengths(500)
    shapes = [sorted((len(b), int(source[b].max()), int(target[b].max())) for b in epoch(n)) for n in range(3)]
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 3}, "one of .* got 300, 3, None: --data.batch_size=null unsets batch_size"),
        ({"batch_tokens": None}, "one of"),
        ({"batch_tokens": 0}, "^the size of a batch must be at least 1, got 0"),
        ({"size": 3, "num_replicas": 4}, "3 samples cannot be split into the same number"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(DataError, match=message):
        order(**options)


def test_batches_may_fill_their_budget_exactly():
    assert _cut([2, 2, 2, 3], batch_tokens=6) == [0, 3, 4]
    assert _cut([3, 3, 3], batch_tokens=6) == [0, 2, 3]
