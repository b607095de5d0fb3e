"""Gradients are clipped after they have become those of the whole step, by their norm or each component by itself."""

import copy

import pytest
import torch
from torch.nn import functional as F

from classifier_data import Images, batches, classifier, linear


def test_clipping_changes_the_step_by_the_factor(trainer):
    torch.manual_seed(0)
    net = linear()
    before = copy.deepcopy(net.state_dict())
    data = Images(batch_size=29)
    trainer(max_epochs=1, gradient_clip_val=0.01).fit(classifier(net, lr=1.0), datamodule=data)
    change = torch.cat([(before[name] - value).flatten() for name, value in net.state_dict().items()])
    assert change.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_gradients_are_clipped_by_value(trainer):
    """Each component by itself: the step is at most the bound, and that of the gradient where it is smaller."""
    torch.manual_seed(0)
    net, data = linear(), Images(batch_size=29)
    reference = copy.deepcopy(net)
    clip = {"gradient_clip_val": 0.02, "gradient_clip_algorithm": "value"}
    trainer(max_epochs=1, **clip).fit(classifier(net, lr=1.0), datamodule=data)
    ((images, targets),) = batches(data, 1)
    F.cross_entropy(reference((images - 0.4) / 0.3), targets).backward()
    clamped = 0
    for mine, theirs in zip(net.parameters(), reference.parameters(), strict=True):
        assert torch.allclose(mine, theirs - theirs.grad.clamp(-0.02, 0.02), atol=1e-7)
        clamped += (theirs.grad.abs() > 0.02).sum().item()
    assert 0 < clamped < sum(p.numel() for p in net.parameters())
