"""Tests that `model.checkpoint_blocks` stores fewer activations and does not change the training results."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from lit_engine.training.layout import blocks_of, checkpoint_in_place
from lit_project.models.cnn import CNN
from lit_project.models.pretrained import TorchvisionNet
from lit_project.models.resnet import SmallResNet
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq

TOKENS = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]])


def resnet():
    return SmallResNet((1, 16, 16), 3, depth=8, width=4), (torch.randn(4, 1, 16, 16),)


def transformer():
    return TransformerSeq2Seq(9, 9, 8, 2, 1, 2, dropout=0.3), (TOKENS, torch.tensor([5, 3]), TOKENS)


def steps(net, inputs, count=2):
    """Take a few steps of SGD. Returns the last gradients, weights and buffers, and the next random number."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        net(*inputs).square().mean().backward()
        optimizer.step()
    gradients = [weight.grad for weight in net.parameters()]
    return [*gradients, *net.parameters(), *net.buffers(), torch.rand(())]


def equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("make", "compiled"),
    [
        (resnet, False),
        pytest.param(resnet, True, marks=pytest.mark.slow),
        (transformer, False),
        (transformer, True),
    ],
)
def test_checkpointing_gives_bit_identical_gradients_and_statistics(make, compiled):
    """The transformer has dropout, and the residual net has batch norm, which counts its batches."""
    net, inputs = make()
    other = deepcopy(net)
    checkpoint_in_place(net)
    if compiled:
        torch._dynamo.reset()
        net.compile(backend="aot_eager")
        other.compile(backend="aot_eager")
    assert equal(steps(net, inputs), steps(other, inputs))
    counts = [int(value) for name, value in net.named_buffers() if name.endswith("num_batches_tracked")]
    assert set(counts) == ({2} if make is resnet else set())


def test_frozen_batch_norm_gives_the_same_results_with_checkpointing():
    """Batch norm is in evaluation mode, as in a frozen part of a network during training."""
    net, inputs = resnet()
    steps(net, inputs)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    other = deepcopy(net)
    checkpoint_in_place(net)
    assert equal(steps(net, inputs), steps(other, inputs))


@pytest.mark.parametrize("make", [resnet, transformer])
def test_checkpointing_stores_less_than_half_of_the_activations(make):
    net, inputs = make()

    def stored():
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
            net(*inputs)
        return sum(sizes)

    before = stored()
    checkpoint_in_place(net)
    assert stored() < before / 2


def test_second_backward_pass_gives_equal_gradients_and_leaves_buffers_unchanged():
    net, inputs = resnet()
    checkpoint_in_place(net)
    loss = net(*inputs).square().mean()
    first = torch.autograd.grad(loss, [*net.parameters()], retain_graph=True)
    buffers = [buffer.clone() for buffer in net.buffers()]
    assert equal(torch.autograd.grad(loss, [*net.parameters()]), first)
    assert equal(net.buffers(), buffers)


def test_a_copy_of_the_network_uses_its_own_weights():
    net, inputs = resnet()
    checkpoint_in_place(net)
    copy = deepcopy(net)
    with torch.no_grad():
        for weight in net.parameters():
            weight.zero_()
    assert copy(*inputs).abs().sum() > 0


def test_blocks_of_residual_nets_and_transformers_are_found():
    names = [type(block).__name__ for block in blocks_of(TorchvisionNet((3, 32, 32), 10, "resnet18"))]
    assert names == ["BasicBlock"] * 8
    net, _ = transformer()
    assert list(blocks_of(net)) == net.blocks()
    assert not list(blocks_of(CNN((1, 8, 8), 3, norm="batch")))


def test_run_with_checkpointed_blocks_ends_with_identical_weights(lit, small_data):
    fit = "fit fashion_mnist_resnet20 debug --model.net.depth=8 --model.net.width=4 --run_name"
    runs = [
        lit(f"{fit} {name} --model.checkpoint_blocks={value}").run for name, value in (("a", "false"), ("b", "true"))
    ]
    one, two = (torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"] for run in runs)
    assert one.keys() == two.keys()
    assert equal(one.values(), two.values())


def test_a_network_without_blocks_is_rejected(lit, small_data):
    result = lit("fit fashion_mnist_mlp debug --model.checkpoint_blocks=true")
    assert result.status == 2
    assert "checkpoint_blocks: MLP has no blocks (composite modules in an nn.Sequential" in result.err
