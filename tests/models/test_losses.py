"""Tests losses against their definitions."""

import math

import pytest
import torch
from torch.nn import functional as F

from lit_project.models.losses import FocalLoss, SmoothedCrossEntropy, WeightedCrossEntropy, build_loss

K = 5


@pytest.fixture
def batch():
    torch.manual_seed(0)
    return torch.randn(7, K, dtype=torch.double), torch.randint(K, (7,))


def by_definition(logits, targets, right, wrong):
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        normalizer = math.log(sum(math.exp(value) for value in row))
        for k, value in enumerate(row):
            total -= (right if k == target else wrong) * (value - normalizer)
    return total / len(targets)


def test_label_smoothing_matches_both_definitions(batch):
    """Our smoothing distributes the rest over the other classes. torch distributes it over all classes."""
    smoothing = 0.1
    over_all = F.cross_entropy(*batch, label_smoothing=smoothing)
    others = SmoothedCrossEntropy(smoothing)(*batch)
    assert over_all.item() == pytest.approx(by_definition(*batch, 1 - smoothing + smoothing / K, smoothing / K))
    assert others.item() == pytest.approx(by_definition(*batch, 1 - smoothing, smoothing / (K - 1)))


def test_loss_for_mixed_targets_is_the_weighted_mean_of_the_losses(batch):
    logits, one = batch
    other, loss = one.roll(1), SmoothedCrossEntropy(0.1)
    mixed = 0.3 * F.one_hot(one, K) + 0.7 * F.one_hot(other, K)
    expected = 0.3 * loss(logits, one) + 0.7 * loss(logits, other)
    assert loss(logits, mixed).item() == pytest.approx(expected.item())


def test_focal_loss_matches_its_definition(batch):
    logits, targets = batch
    assert FocalLoss(0.0)(*batch).item() == pytest.approx(F.cross_entropy(*batch).item())
    p = logits.softmax(1).gather(1, targets[:, None])
    assert FocalLoss(2.0)(*batch).item() == pytest.approx(((1 - p) ** 2 * -p.log()).mean().item())
    doubled = FocalLoss(2.0, weight=[2.0] * K).double()
    assert doubled(*batch).item() == pytest.approx(2 * FocalLoss(2.0)(*batch).item())


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_focal_loss_and_its_gradient_are_zero_if_the_probability_is_one(gamma):
    logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)  # p = 1 in float32
    loss = FocalLoss(gamma)(logits, torch.tensor([0]))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("make", [lambda: FocalLoss(gamma=-1.0), lambda: SmoothedCrossEntropy(-0.1)])
def test_negative_options_are_rejected(make):
    with pytest.raises(ValueError, match=r"(gamma|smoothing) must be"):
        make()


@pytest.mark.parametrize("loss", [WeightedCrossEntropy([1, 5]), FocalLoss(weight=[1, 5])])
def test_each_class_needs_a_weight(loss):
    with pytest.raises(ValueError, match="the loss has 2 weights for 3 classes"):
        build_loss(["a", "b", "c"], loss)
