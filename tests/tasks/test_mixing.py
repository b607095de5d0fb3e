"""Tests mixup and cutmix against their definitions, and a task that trains with them."""

from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classifier_data import Images, classifier
from lit_engine.errors import UserError
from lit_engine.tools.lr_finder import find
from lit_project.models.losses import FocalLoss, SmoothedCrossEntropy, WeightPenalty
from lit_project.tasks.mixup import Mixing, rectangles

K = 4


@pytest.fixture
def batch():
    """Return labelled images. All pixels of image i are i + 1, which identifies the parts of mixed images."""
    torch.manual_seed(0)
    return torch.arange(1.0, 33)[:, None, None, None].expand(32, 1, 12, 10), torch.randint(K, (32,))


def test_mixup_mixes_images_and_targets_in_the_same_proportion(batch):
    images, targets = batch
    mixed, soft = Mixing(mixup_alpha=0.4)(images, targets, K)
    hard = F.one_hot(targets, K).float()
    shares = []
    for i in range(32):
        value = mixed[i, 0, 0, 0]
        assert (mixed[i] == value).all()
        fits = []
        for j in range(32):  # which partner and share explain both the pixels and the target?
            if i != j:
                share = (value - (j + 1)) / (i - j)
                fits.append(torch.allclose(soft[i], share * hard[i] + (1 - share) * hard[j], atol=1e-4))
        assert any(fits) or torch.equal(mixed[i], images[i])
        shares.append(soft[i].sum().item())
    assert shares == pytest.approx([1.0] * 32)


def test_mixing_works_if_the_default_dtype_is_half_precision(batch):
    images, targets = batch
    torch.set_default_dtype(torch.bfloat16)  # as with the precision bf16-true
    try:
        mixed, target_BK = Mixing(mixup_alpha=0.4)(images.bfloat16(), targets, K)
    finally:
        torch.set_default_dtype(torch.float32)
    assert mixed.dtype == torch.bfloat16
    assert target_BK.double().sum(dim=1).tolist() == pytest.approx([1.0] * 32, abs=1e-6)
    assert not torch.equal(mixed, images.bfloat16())


def test_mixing_shares_are_beta_distributed():
    images, targets = torch.ones(20000, 1, 1, 1), torch.zeros(20000, dtype=torch.int64)
    images[10000:], targets[10000:] = 0, 1
    torch.manual_seed(0)
    mixed, soft = Mixing(mixup_alpha=2.0)(images, targets, 2)
    assert torch.allclose(mixed.flatten(), soft[:, 0], atol=1e-6)
    inner = mixed.flatten()[(mixed.flatten() > 0) & (mixed.flatten() < 1)]  # samples mixed with the other class
    assert inner.mean().item() == pytest.approx(0.5, abs=0.01)
    assert inner.var().item() == pytest.approx(1 / (4 * (2 * 2 + 1)), abs=0.003)  # variance of Beta(α, α)


def test_cutmix_pastes_a_rectangle_and_mixes_targets_by_its_area(batch):
    images, targets = batch
    mixed, soft = Mixing(cutmix_alpha=1.0)(images, targets, K)
    hard = F.one_hot(targets, K).float()
    changed = 0
    for i in range(32):
        other = mixed[i, 0] != images[i, 0]
        if other.any():
            rows, columns = other.any(1).nonzero().flatten(), other.any(0).nonzero().flatten()
            assert other.sum() == len(rows) * len(columns)  # a rectangle
            assert len(rows) == rows[-1] - rows[0] + 1
            (partner,) = mixed[i, 0][other].unique().tolist()  # from one other image
            share = 1 - other.float().mean()
            assert torch.allclose(soft[i], share * hard[i] + (1 - share) * hard[int(partner) - 1], atol=1e-6)
            changed += 1
        else:
            assert soft[i].max() == 1
    assert changed > 20


def test_last_epochs_use_unmixed_images_if_max_steps_ends_the_run(trainer):
    """There are four steps per epoch. If only max_steps is set, Lightning sets max_epochs to -1."""
    loss = Recorder()
    task = classifier(loss=loss, mixing=Mixing(mixup_alpha=1.0, off_last_epochs=1))
    trainer(max_epochs=-1, max_steps=10, limit_val_batches=0).fit(task, datamodule=Images(batch_size=8))
    trained = [targets.ndim for targets in loss.seen if len(targets) > 2]
    assert trained == [2] * 8 + [1] * 2


def test_the_learning_rate_search_mixes_all_images(trainer):
    """The search takes 100 steps, which are 25 epochs of these images."""
    loss = Recorder()
    task = classifier(loss=loss, mixing=Mixing(mixup_alpha=1.0, off_last_epochs=1))
    with suppress(UserError):  # random images may have no suitable learning rate
        find(SimpleNamespace(find="lr"), trainer(max_epochs=2), task, Images(batch_size=8))
    trained = [targets.ndim for targets in loss.seen if len(targets) > 2]
    assert trained == [2] * 100


class Recorder(nn.Module):
    """Records the targets and logits passed to the loss."""

    def __init__(self):
        super().__init__()
        self.seen, self.logits = [], []

    def forward(self, logits, targets):
        self.seen.append(targets)
        self.logits.append(logits.detach())
        return F.cross_entropy(logits, targets)


def test_task_trains_on_mixed_images_and_reports_the_expected_accuracy(trainer):
    loss = Recorder()
    task = classifier(loss=loss, mixing=Mixing(mixup_alpha=1.0, off_last_epochs=1), lr=0.0)
    fit = trainer(max_epochs=2, limit_val_batches=0)
    accuracies = []
    task.on_train_epoch_end = lambda: accuracies.append(task.running.means()["accuracy"])
    data = Images(batch_size=8)
    fit.fit(task, datamodule=data)
    mixed = [targets for targets in loss.seen if targets.ndim == 2 and len(targets) > 2]
    plain = [targets for targets in loss.seen if targets.ndim == 1]
    assert len(mixed) == 4
    assert len(plain) == 4
    images, targets = data.floats("train")
    with torch.no_grad():  # weights do not change, because the learning rate is 0
        right = (task(images).argmax(1) == targets).float().mean().item()
    assert accuracies[1] == pytest.approx(right)
    steps = list(zip(loss.logits, loss.seen, strict=True))[-8:-4]  # the mixed epoch
    shares = [row[k].item() for logits, soft in steps for k, row in zip(logits.argmax(1), soft, strict=True)]
    assert len(shares) == 29
    assert any(0 < share < 1 for share in shares)
    assert accuracies[0] == pytest.approx(sum(shares) / 29)  # the average share of the predicted class in the target


@pytest.mark.parametrize("loss", [FocalLoss(), nn.NLLLoss()], ids=["focal", "nll"])
def test_losses_without_soft_target_support_are_rejected(loss):
    with pytest.raises(ValueError, match=f"{type(loss).__name__} rejects them: use"):
        classifier(loss=loss, mixing=Mixing(mixup_alpha=0.2))
    classifier(loss=SmoothedCrossEntropy(), mixing=Mixing(mixup_alpha=0.2))


def test_weight_penalty_does_not_overflow_in_half_precision():
    net = nn.Linear(100, 100).half()
    nn.init.constant_(net.weight, 16)
    assert WeightPenalty(l1=1)(net).item() == 16 * 100**2  # beyond float16
    assert WeightPenalty(l2=1)(net).item() == 16**2 * 100**2


def test_weight_penalty_excludes_biases_norms_and_frozen_weights():
    net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    weights = torch.cat([net[0].weight.flatten(), net[2].weight.flatten()])
    expected = 0.1 * weights.abs().sum() + 0.2 * (weights**2).sum()
    assert WeightPenalty(l1=0.1, l2=0.2)(net).item() == pytest.approx(expected.item())
    net[0].requires_grad_(False)
    assert WeightPenalty(l2=1)(net).item() == pytest.approx((net[2].weight ** 2).sum().item())
    assert WeightPenalty(l1=1, l2=1)(nn.BatchNorm1d(2)).item() == 0
    assert WeightPenalty(l1=1, l2=1)(net.requires_grad_(False)).item() == 0


@pytest.mark.parametrize("penalty", [None, WeightPenalty(l2=0.1)])
def test_running_sums_are_not_rounded_to_half_precision(penalty):
    task, images, targets = classifier(penalty=penalty).half(), torch.zeros(999, 1, 4, 4), torch.arange(999) % K
    task.training_step((images, targets), 0)
    assert task.running.means()["loss"] == task.loss(task(images), targets).item()


def test_l2_penalty_of_half_the_weight_decay_is_equivalent_under_sgd(trainer):
    trained = []
    decaying = partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)
    for options in ({"penalty": WeightPenalty(l2=0.05)}, {"optimizer": decaying}):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4, bias=False))
        trainer(max_epochs=2).fit(classifier(net, **options), datamodule=Images(batch_size=8))
        trained.append(net[1].weight.detach())
    assert torch.allclose(*trained, atol=1e-6)


@pytest.mark.parametrize("share", [0.5, 0.75, 0.9])
def test_cutmix_rectangle_area_is_one_minus_the_share(share):
    """Rectangles near the edges are cropped, so the largest one is compared."""
    inside, left = rectangles(torch.full((4000,), share), 64, 64)
    largest = inside.flatten(1).sum(1).max().item() / 64**2
    assert largest == pytest.approx(1 - share, abs=0.05)
    assert left.min().item() == pytest.approx(1 - largest)
