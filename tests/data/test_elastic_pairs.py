"""With `global_batch_size`, each step uses the same sentence pairs for any number of processes and micro-batches."""

import pytest
import torch

from elastic import SIZES, SPLITS, G, Numbers, check_each_step, check_other_splits
from lit_engine.data.sampler import Loader
from lit_engine.errors import DataError
from lit_project.data.parallel_text.batches import TokenBatches


def pairs(size, processes=1, accumulate=1, **kwargs):
    lengths = torch.randint(3, 40, (2, size), generator=torch.Generator().manual_seed(0))
    if "batch_size" not in kwargs:
        kwargs = {"global_batch_size": G, "accumulate": accumulate, **kwargs}
    return TokenBatches(*lengths, shuffle=True, seed=3, num_replicas=processes, **kwargs)


@pytest.mark.parametrize("size", SIZES)
def test_each_step_has_the_same_pairs_for_all_processes_and_micro_batches(size):
    check_each_step(pairs, size, SPLITS[::5])


def test_processes_and_micro_batches_may_change_after_any_step():
    check_other_splits(pairs)


def test_resuming_mid_epoch_rejects_different_batches():
    """Without a global batch size, batches are split differently for one and two processes."""
    state = {**Loader(Numbers(), pairs(300, 2, batch_size=10)).state_dict(), "position": 3}
    for other in (pairs(300, batch_size=20), pairs(300, global_batch_size=20)):
        with pytest.raises(DataError, match=r"Each step had 10 × 2 × 1 samples"):
            Loader(Numbers(), other).load_state_dict(state)
    Loader(Numbers(), pairs(300, 2, batch_size=10)).load_state_dict(state)
    one = {**Loader(Numbers(), pairs(300, batch_size=20)).state_dict(), "position": 3}
    Loader(Numbers(), pairs(300, 2, global_batch_size=20)).load_state_dict(one)
