"""The memory format of a network is chosen to suit its device and precision."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers import classifier
from lit_engine.errors import UserError
from lit_engine.training.layout import order_as_weights
from toy.data import Images


@pytest.mark.parametrize(
    ("given", "device", "precision", "expected"),
    [
        (None, "cuda", "32-true", False),
        (None, "cuda", "bf16-mixed", True),
        (None, "cpu", "32-true", torch.backends.mkldnn.is_available()),
        (True, "cuda", "32-true", True),
        (False, "cpu", "bf16-mixed", False),
    ],
)
def test_channels_last_is_on_for_cpus_and_half_precision_unless_overridden(given, device, precision, expected):
    task = classifier(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten()), channels_last=given)
    weights = [parameter.detach().clone() for parameter in task.parameters()]
    seen = []
    task.net[0].register_forward_hook(lambda _, inputs, output: seen.append(output))
    for where, precision_now, last in ((device, precision, expected), ("cuda", "32-true", given or False)):
        strategy = SimpleNamespace(root_device=torch.device(where))
        task.trainer = SimpleNamespace(precision=precision_now, strategy=strategy)
        task.setup("fit")
        task(torch.rand(2, 3, 5, 5))
        for tensor in (task.net[0].weight, seen[-1]):
            assert tensor.is_contiguous(memory_format=torch.channels_last) == last
        assert all(map(torch.equal, weights, task.parameters()))


@pytest.mark.parametrize(("device", "expected"), [("cpu", False), ("cuda", True)])
def test_channels_last_is_skipped_where_it_would_give_wrong_gradients(device, expected):
    """Computing these gradients on a CPU would crash the process."""
    for layer, last in ((nn.Conv2d(8, 16, 1, stride=2), expected), (nn.Conv2d(16, 16, 1, stride=2), True)):
        task = classifier(nn.Sequential(layer, nn.Flatten()))
        task.trainer = SimpleNamespace(
            precision="bf16-mixed", strategy=SimpleNamespace(root_device=torch.device(device))
        )
        task.setup("fit")
        outputs = layer(torch.rand(2, layer.in_channels, 8, 8))
        assert outputs.is_contiguous(memory_format=torch.channels_last) == last


def test_rejects_explicit_channels_last_that_gives_wrong_gradients():
    task = classifier(nn.Sequential(nn.Conv2d(3, 8, 1, stride=2), nn.Flatten()), channels_last=True)
    task.trainer = SimpleNamespace(precision="32-true", strategy=SimpleNamespace(root_device=torch.device("cpu")))
    with pytest.raises(UserError, match="strided 1×1 convolutions with fewer than 16 channels"):
        task.setup("fit")


def test_channels_last_with_3d_convolutions_is_rejected_only_if_explicit():
    """`nn.Module.to(memory_format=torch.channels_last)` fails for five-dimensional weights."""
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    for given, refused in ((None, nullcontext()), (True, pytest.raises(UserError, match="weights with five axes"))):
        task = classifier(nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.Flatten()), channels_last=given)
        task.trainer = SimpleNamespace(precision="bf16-mixed", strategy=strategy)
        with refused:
            task.setup("fit")


def test_lazy_layers_are_trained_but_reject_explicit_channels_last(trainer):
    task = classifier(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)))
    trainer(max_epochs=1).fit(task, datamodule=Images())
    assert task.net[1].weight.shape == (4, 16)
    task = classifier(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), channels_last=True)
    with pytest.raises(UserError, match="channels_last does not support lazy layers"):
        trainer(max_epochs=1).fit(task, datamodule=Images())


def test_the_state_of_an_optimizer_may_contain_values_of_no_weight():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))])
    optimizer.state["steps"] = 3
    order_as_weights(optimizer)
    assert optimizer.state["steps"] == 3
