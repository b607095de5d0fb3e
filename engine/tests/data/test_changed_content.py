"""Resuming a run warns if the data have changed, even if the number of samples is the same."""

import torch

from lit_engine.data.module import SplitData


class Numbers(SplitData):
    """Dataset of numbers that a test can modify."""

    values = torch.arange(10.0)

    def __init__(self, factor=1.0):
        super().__init__(batch_size=5)
        self.factor = factor

    def load(self, split):
        return (self.factor * (self.values if split == "train" else torch.ones(10)),)

    def batch(self, values, indices):
        return values[:, None]


CHANGED = "warning: the data changed since the run was started: train"


def test_resuming_with_changed_content_warns(lit, monkeypatch):
    run = lit("fit --model=helpers.Witness --data=test_changed_content.Numbers --epochs 1").run
    assert CHANGED not in lit(f"fit {run} --epochs 2").err
    monkeypatch.setattr(Numbers, "values", torch.arange(10.0).flip(0))
    assert CHANGED in lit(f"fit {run} --epochs 3").err
    assert CHANGED not in lit(f"fit {run} --epochs 4 --data.factor=2").err  # the user changed the data on purpose
