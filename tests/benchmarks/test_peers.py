"""Tests how benchmarks/peers.py measures training speed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

LOG = """2026-01-01 10:00:00,000 - INFO - joeynmt.training - EPOCH 1
2026-01-01 10:00:10,000 - INFO - joeynmt.training - Epoch   1, Step:       10, Tokens per Sec:      100, Lr: 0.001
2026-01-01 10:00:15,000 - INFO - joeynmt.training - Epoch   1, Step:       20, Tokens per Sec:      200, Lr: 0.001
2026-01-01 10:00:17,500 - INFO - joeynmt.training - Epoch   1, Step:       30, Tokens per Sec:      400, Lr: 0.001
2026-01-01 10:00:19,250 - INFO - joeynmt.prediction - Evaluation result (greedy): bleu:   6.54
"""


def test_both_toolkits_count_target_tokens_after_the_warm_up(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    for file in (Path(__file__).parents[2] / "benchmarks").glob("*.py"):  # other modules may have these names
        monkeypatch.setitem(sys.modules, file.stem, None)
        monkeypatch.delitem(sys.modules, file.stem)  # imported below, and unloaded after the test
    import peers

    speed, seconds = peers.logged(LOG)
    assert (speed.wall, seconds) == (pytest.approx((1000 / 200 + 1000 / 400) / 2), [19.25])
    batch = SimpleNamespace(target=torch.tensor([[2, 7, 8, 3], [2, 7, 3, 0]]))  # 3 + 2 tokens including EOS
    times = iter([*range(10), 12.0, 14.5])  # the clock reads 9.0 after ten steps
    monkeypatch.setattr("common.time", SimpleNamespace(perf_counter=lambda: next(times)))
    for step in range(12):
        peers.StepClock().on_train_batch_end(None, None, None, batch, step)
    assert peers.clocked().wall == pytest.approx(1000 * (14.5 - 9) / 10)
