"""Tests sharded nets as seen by the first of two processes. test_sharding.py runs them in a separate process.

After torch has sharded a tensor, forked processes, which some tests use, can no longer compute gradients.
"""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from lit_engine.callbacks.averaging import EMA
from lit_engine.distributed.sharded import Sharded, shard
from lit_engine.distributed.sharding import as_sharded, clip_norm, gather_full_tensors, total_norm
from lit_engine.errors import UserError
from lit_project.models.losses import remove_smoothing
from lit_project.models.mlp import MLP
from lit_project.models.resnet import SmallResNet
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq
from lit_project.models.timm_net import TimmNet


@pytest.fixture
def two():
    """Return a function that creates a mesh of two processes. Only the first exists, so nothing is sent."""
    distributed.init_process_group("fake", rank=0, world_size=2)
    yield lambda data, tensor: init_device_mesh(
        "cpu", (data, tensor), mesh_dim_names=("data_parallel", "tensor_parallel")
    )
    distributed.destroy_process_group()


class Part(nn.Module):
    """The parts of a task that `shard` needs."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.trainer = SimpleNamespace(strategy=Sharded(), precision_plugin=SimpleNamespace(scaler=None))


def test_tensor_parallelism_splits_the_feedforward_layers_in_half(two):
    task = Part(TransformerSeq2Seq(11, 13, size=8, heads=2, encoder_layers=1, decoder_layers=1))
    whole_sizes = {name: parameter.shape for name, parameter in task.named_parameters()}
    shard(task, two(1, 2))
    split = {name for name, p in task.named_parameters() if isinstance(p, DTensor) and p.to_local().numel() < p.numel()}
    layers = [f"net.{stack}.0.feedforward.{n}" for stack in ("encoder", "decoder") for n in "02"]
    assert split == {f"{layer}.weight" for layer in layers} | {f"{layer}.bias" for layer in layers[::2]}
    assert {name: parameter.shape for name, parameter in task.named_parameters()} == whole_sizes
    shard(task, two(1, 2))  # running a second stage with the same trainer changes nothing
    assert {name: parameter.shape for name, parameter in task.named_parameters()} == whole_sizes


def test_each_fsdp2_process_stores_half_of_the_parameters(two):
    net = TransformerSeq2Seq(12, 14, size=8, heads=2, encoder_layers=1, decoder_layers=1)
    count = sum(parameter.numel() for parameter in net.parameters())
    task = Part(net)
    shard(task, two(2, 1))
    assert 2 * sum(parameter.to_local().numel() for parameter in task.parameters()) == count
    assert net.output.weight is net.target_embedding.weight


@pytest.mark.parametrize("container", [nn.Sequential, lambda *blocks: nn.ModuleList(blocks), lambda *_: nn.Identity()])
def test_blocks_in_a_container_are_sharded_individually(two, container):
    net = SmallResNet((1, 8, 8), 3, depth=8, width=4)
    blocks = [*net.blocks]
    net.blocks = container(*blocks)
    shard(Part(net), two(2, 1))
    assert isinstance(net, FSDPModule)
    assert {isinstance(block, FSDPModule) for block in blocks} == {not isinstance(net.blocks, nn.Identity)}


def test_blocks_of_a_timm_net_are_sharded_individually(two):
    net = TimmNet("test_vit", (3, 32, 32), 5)
    names = net.state_dict().keys()
    shard(Part(net), two(2, 1))
    assert {isinstance(part, FSDPModule) for part in (net, *net.backbone.blocks)} == {True}
    assert net.state_dict().keys() == names


def test_networks_in_lists_and_dicts_are_sharded_individually(two):
    nets = [nn.Linear(2, 2) for _ in range(3)]
    task = Part(nn.ModuleList([nets[0], nn.ModuleDict({"a": nets[1]})]))
    task.heads = nn.ModuleDict({"b": nets[2]})
    shard(task, two(2, 1))
    assert [isinstance(net, FSDPModule) for net in nets] == [True, True, True]


def test_evaluation_accepts_a_loss_with_sharded_weights(two):
    loss = nn.Linear(2, 2)
    shard(Part(loss), two(2, 1))
    assert remove_smoothing(loss) == loss.forward


def test_blocks_that_share_weights_stay_tied(two):
    """The first two blocks share a layer, and the third block is also the attribute `first` of the network."""
    layer = nn.Linear(4, 4)
    blocks = [nn.Sequential(layer), nn.Sequential(layer), nn.Linear(4, 4), nn.Linear(4, 4)]
    net = nn.Module()
    net.first, net.blocks = blocks[2], nn.ModuleList(blocks)
    shard(Part(net), two(2, 1))
    assert [isinstance(block, FSDPModule) for block in blocks] == [False, False, False, True]
    assert blocks[0][0].weight is blocks[1][0].weight
    assert net.first.weight is blocks[2].weight


def test_weights_shared_by_two_submodules_are_rejected(two):
    task = Part(nn.Linear(4, 4))
    task.decoder = nn.Linear(4, 4)
    task.decoder.weight = task.net.weight
    with pytest.raises(UserError, match="net and decoder share a parameter: move both into one submodule"):
        shard(task, two(2, 1))


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (MLP((4,), 3, [5]), r"net.layers.1.weight \(5 × 4\) cannot be split evenly between 2 processes"),
        (nn.ModuleList([MLP((4,), 3, [5])]), r"net.0.layers.1.weight \(5 × 4\) cannot be split evenly"),
        (nn.Linear(2, 2), "Linear has no tensor_parallel_plan: use the overlay `fsdp2`"),
    ],
)
def test_nets_that_cannot_be_split_are_rejected(two, net, says):
    with pytest.raises(UserError, match=says):
        shard(Part(net), two(1, 2))


def test_rejects_task_parameters_ema_and_other_strategies(two):
    task = Part(nn.Linear(2, 2))
    task.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="scale belongs to the task itself"):
        shard(task, two(2, 1))
    trainer = SimpleNamespace(strategy=Sharded(), callbacks=[EMA()], precision="32-true", global_step=0)
    with pytest.raises(UserError, match="EMA does not support sharded weights"):
        trainer.callbacks[0].setup(trainer, None, "fit")
    task.trainer.strategy = ModelParallelStrategy()
    with pytest.raises(UserError, match="the strategy ModelParallelStrategy is not supported"):
        shard(task, two(2, 1))


def test_bf16_mixed_averages_gradients_in_float32(two):
    """FSDP2's own mixed precision fails in batch norm, so `shard` does not use it."""
    mesh, images = two(2, 1), torch.rand(8, 1, 4, 4)
    task, other = (Part(MLP((1, 4, 4), 3, hidden_sizes=[8], norm="batch")) for _ in range(2))
    shard(task, mesh)
    with torch.autocast("cpu", torch.bfloat16):
        logits = task.net(images)
    logits.sum().backward()
    assert logits.dtype == torch.bfloat16
    assert {parameter.grad.dtype for parameter in task.parameters()} == {torch.float32}
    fully_shard(other.net, mesh=mesh["data_parallel"], mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="BFloat16"):
        other.net(images)


def test_sharded_and_plain_tensors_are_clipped_and_gathered_together(two):
    mesh = two(2, 1)["tensor_parallel"]  # one process, which has all tensors
    plain = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0, 4.0]])]
    mixed = [plain[0].clone(), as_sharded(plain[1], distribute_tensor(torch.zeros(1, 2), mesh, [Shard(1)]))]
    assert isinstance(mixed[1], DTensor)
    assert total_norm(mixed) == 5
    clip_norm(mixed, 1.0)
    torch.testing.assert_close(gather_full_tensors(mixed, keep=True), [value / 5 for value in plain], rtol=1e-5, atol=0)
    assert gather_full_tensors({"step": 3, "states": mixed}, keep=False) == {"step": 3, "states": [None, None]}
    assert as_sharded(torch.tensor(3.0), mixed[1]) == 3.0  # an optimizer's counter is not sharded


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        (torch.optim.LBFGS, {}, "LBFGS does not support sharding"),
        (torch.optim.Adafactor, {}, "Adafactor does not support sharding"),
        (torch.optim.SGD, {"fused": True}, "fused SGD does not support sharding: set fused: false"),
        (torch.optim.Adagrad, {"fused": True}, "fused Adagrad does not support sharding: set fused: false"),
        (torch.optim.Rprop, {"foreach": True}, "foreach Rprop does not support sharding: set foreach: false"),
    ],
)
def test_optimizers_without_sharding_support_are_rejected(two, monkeypatch, kind, options, says):
    weight = nn.Parameter(distribute_tensor(torch.ones(2, 2), two(2, 1)["data_parallel"], [Shard(0)]))
    weight.grad = weight.detach().clone()
    optimizer = kind([weight], lr=0.1, **options)
    if kind is not torch.optim.LBFGS:  # the others raise an error in torch
        with pytest.raises((RuntimeError, NotImplementedError)):
            optimizer.step()
    strategy = Sharded()
    monkeypatch.setattr(ModelParallelStrategy, "setup_optimizers", lambda *_: None)
    strategy.optimizers = [optimizer]
    with pytest.raises(UserError, match=f"^{says}$"):
        strategy.setup_optimizers(None)


@pytest.mark.parametrize(("kind", "options"), [(torch.optim.LBFGS, {}), (torch.optim.SGD, {"fused": True})])
def test_single_process_accepts_optimizers_without_sharding_support(monkeypatch, kind, options):
    strategy = Sharded()
    monkeypatch.setattr(ModelParallelStrategy, "setup_optimizers", lambda *_: None)
    strategy.optimizers = [kind([nn.Parameter(torch.ones(2, 2))], lr=0.1, **options)]
    strategy.setup_optimizers(None)


@pytest.mark.parametrize("option", ["fused", "foreach"])
def test_tensor_parallelism_continues_a_run_whose_kernels_need_full_tensors(two, monkeypatch, option):
    tasks = [Part(MLP((4,), 3, [6])) for _ in range(2)]
    shard(tasks[1], two(1, 2))
    first, optimizer = (torch.optim.AdamW(one.parameters(), lr=0.1, **{option: True}) for one in tasks)
    for one in tasks:
        one.net(torch.rand(3, 4)).sum().backward()
    first.step()
    with pytest.raises(RuntimeError, match=r"mixed torch\.Tensor and DTensor"):
        optimizer.step()
    strategy = Sharded(tensor_parallel_size=2)
    monkeypatch.setattr(ModelParallelStrategy, "setup_optimizers", lambda *_: None)
    strategy.optimizers = [optimizer]
    strategy.setup_optimizers(None)
    optimizer.step()
    strategy.load_optimizer_state_dict({"optimizer_states": [first.state_dict()]})
    optimizer.step()
    assert {state["step"].item() for state in optimizer.state.values()} == {2}
