"""Gradients are clipped after they have become those of the whole step, by their norm or each component by itself."""

import copy

import pytest
import torch
from lightning.pytorch import Callback
from torch.nn import functional as F

from classifier_data import Images, batches, classifier, linear


@pytest.mark.parametrize("accumulate", [1, 2])
def test_gradients_are_clipped_by_their_norm(trainer, accumulate):
    class Noted(Callback):
        def __init__(self):
            self.before, self.after = [], []

        def on_before_optimizer_step(self, trainer, task, optimizer):
            self.before.append(norm(task))

        def on_before_zero_grad(self, trainer, task, optimizer):
            if task.net[1].weight.grad is not None:
                self.after.append(norm(task))

    def norm(task):
        return torch.cat([p.grad.flatten() for p in task.parameters()]).norm().item()

    torch.manual_seed(0)
    noted, task = Noted(), classifier(lr=0.0)
    trainer(max_epochs=2, callbacks=[noted], gradient_clip_val=0.05, accumulate_grad_batches=accumulate).fit(
        task, datamodule=Images(batch_size=5)
    )
    assert min(noted.before) > 0.05
    assert noted.after[-1] == pytest.approx(0.05, rel=1e-3)
    assert max(noted.after) <= 0.05 * (1 + 1e-3)


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
