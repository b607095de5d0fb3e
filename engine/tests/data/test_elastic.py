"""With `global_batch_size`, each step uses the same samples for any number of processes and micro-batches."""

import pytest

from elastic import SIZES, SPLITS, G, Numbers, check_each_step, check_other_splits, steps_of
from lit_engine.data.sampler import EpochBatches, Loader
from lit_engine.errors import DataError


def images(size, processes=1, accumulate=1, **kwargs):
    if "batch_size" not in kwargs:
        kwargs = {"global_batch_size": G, "accumulate": accumulate, **kwargs}
    return EpochBatches(size, shuffle=True, seed=3, num_replicas=processes, **kwargs)


@pytest.mark.parametrize("size", SIZES)
def test_each_step_uses_the_same_samples_however_it_is_split(size):
    check_each_step(images, size, SPLITS)


def test_drop_last_drops_samples_that_do_not_fill_a_step():
    for processes, accumulate in SPLITS[::7]:
        found = steps_of(images(2 * G + 30, processes, accumulate, drop_last=True), accumulate)
        assert found.unique(return_counts=True)[1].tolist() == [30, G, G]


def test_the_number_of_processes_and_micro_batches_may_change_at_every_step():
    check_other_splits(images)


def test_a_saved_position_maps_to_the_same_step_in_every_other_split():
    size = 4 * G + 1
    loaders = {split: Loader(Numbers(), images(size, *split)) for split in SPLITS}
    states = [{"epoch": 0, "position": step * a, "batch": G // a, "step": G} for _, a in SPLITS for step in range(5)]
    for (_, accumulate), loader in loaders.items():
        for state in states:
            loader.load_state_dict(state)
            assert loader.sampler.start == state["position"] * state["batch"] // G * accumulate


def test_a_run_may_switch_between_batch_size_and_global_batch_size_mid_epoch():
    old = Loader(Numbers(), EpochBatches(100, 4, shuffle=True, seed=3, num_replicas=2, accumulate=3))
    new = Loader(Numbers(), EpochBatches(100, global_batch_size=24, shuffle=True, seed=3))
    other = Loader(Numbers(), EpochBatches(100, 8, shuffle=True, seed=3, accumulate=2))
    begun = iter(old)
    for _ in range(6):
        next(begun)
    new.load_state_dict(old.state_dict())
    assert new.state_dict() == {"epoch": 0, "position": 2, "seed": 3, "batch": 24, "step": 24}
    old.load_state_dict(new.state_dict())
    assert (old.position, old.recut) == (6, True)
    with pytest.raises(DataError, match=r"Each step had 24 samples .* now has 16: .* data.global_batch_size"):
        other.load_state_dict(old.state_dict())


@pytest.mark.parametrize(("size", "nearest"), [(100, "96 and 102"), (2, "6 and 12"), (959, "954 and 960")])
def test_indivisible_global_batch_size_error_suggests_the_nearest_valid_sizes(size, nearest):
    with pytest.raises(
        DataError,
        match=rf"{size} .* among 3 process.*accumulate_grad_batches 2; the nearest valid sizes are {nearest}$",
    ):
        images(5000, 3, 2, global_batch_size=size)


def test_too_few_samples_for_one_step_cause_an_error():
    for kwargs, message in (
        ({"size": 0}, "no samples"),
        ({"size": G - 1, "drop_last": True}, f"with global_batch_size {G}"),
    ):
        with pytest.raises(DataError, match=message):
            images(**kwargs)
