"""Formulas of benchmarks/scaling_model.py."""

import sys
from pathlib import Path

import pytest
import torch
from torch.distributed import _compute_bucket_assignment_by_size

MiB = 2**20


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import scaling_model

    yield scaling_model
    for name in ("common", "scaling_model"):
        del sys.modules[name]


def test_time_of_an_all_reduce(model):
    link = model.Link(hop=1e-5, bandwidth=1e9)
    assert link.ring(1e9, 1000) == pytest.approx(2 * 999 * 1e-5 + 2 * 0.999)
    pipelined = [(2 * 6 + chunks) * (1e-5 + 2 * 1e7 / chunks / 1e9) for chunks in range(1, 1000)]
    assert link.tree(1e7, 64) == pytest.approx(min(pipelined), rel=1e-3)  # 64 processes need 6 levels
    assert link.tree(1e4, 512) < link.ring(1e4, 512)  # with few bytes, the number of hops dominates
    fast = model.Link(0, 1e10)
    # Two levels transfer as many bytes as one ring: each GPU sends 15/16 twice, of which 14/16 stay within the node.
    assert model.all_reduce(1e9, 16, 0, link._replace(hop=0), fast) == pytest.approx(2 * 7 / 8 + 2 / 16 / 10)
    assert model.fitted({str(n): link.ring(n, 2) for n in (1e3, 1e6, 1e8)}) == pytest.approx(link)


def test_buckets_are_those_of_ddp_and_their_transfer_hides_behind_the_backward_pass(model):
    sizes = [MiB // 2, MiB, 20 * MiB, 10 * MiB, MiB, 30 * MiB, MiB]  # in the order in which they become ready
    found = model.Profile((0.25, 0.5, 0.25), [((n + 1) / 7, size) for n, size in enumerate(sizes)], 1.0)
    tensors = [torch.empty(size, dtype=torch.uint8) for size in sizes]
    buckets, _ = _compute_bucket_assignment_by_size(tensors, [model.FIRST_BUCKET, model.BUCKET])
    assert [size for _, size in found.buckets()] == [sum(sizes[index] for index in bucket) for bucket in buckets]
    assert found.step(4.0, lambda size: 0.0) == 4.0

    def seconds(size):
        return size / 1000 / MiB

    assert found.step(4.0, seconds, overlap=False) == pytest.approx(4.0 + seconds(sum(sizes)))
    assert found.step(4.0, seconds) == pytest.approx(
        4.0 + seconds(MiB)
    )  # only the last bucket, after the backward pass
