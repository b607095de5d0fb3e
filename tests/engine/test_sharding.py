"""Nets in shards: what two processes train is what one trains; what cannot be sharded is refused in a line."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from test_ddp import ROOT, lit_in
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from lit_project.engine.callbacks.averaging import EMA
from lit_project.engine.checkpoints import read
from lit_project.engine.errors import UserError
from lit_project.engine.sharding import Sharded, as_sharded, clip_norm, shard, total_norm, whole
from lit_project.models.mlp import MLP
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq

FSDP2, TENSOR_PARALLEL = (["-c", f"{ROOT}/configs/overlays/{name}.yaml"] for name in ("fsdp2", "tensor_parallel"))
MLP_RUN = (
    f"-c {ROOT}/configs/quickstart.yaml --model.net=MLP --model.net.hidden_sizes=[32] --model.net.norm=none "
    "--model.net.dropout=0 --data.train_transforms=[] --trainer.gradient_clip_val=0.5 "
    '--trainer.callbacks+=[{"class_path":"Unfreezing","init_args":{"schedule":{"net.layers.1":1}}}] '
    '--trainer.callbacks+=[{"class_path":"NaNGuard"}]'
)
TRANSFORMER_RUN = (
    f"-c {ROOT}/configs/translation_quickstart.yaml --model.net=TransformerSeq2Seq --model.net.size=32 "
    "--model.net.heads=2 --model.net.encoder_layers=1 --model.net.decoder_layers=1 --model.net.dropout=0 "
    "--model.optimizer.lr=0.002 --data.size=300 --data.val_size=40 --data.test_size=40"
)
COMMON = (
    "--trainer.accelerator=cpu --trainer.log_every_n_steps=1 --model.schedulers=null --data.batch_size=null "
    "--data.global_batch_size=64"
)


def curves(run: Path) -> dict[str, list[float]]:
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    names = ("train/loss_step", "train/gradient_norm", "train/loss", "val/loss")
    return {name: [float(row[name]) for row in rows if row[name]] for name in names}


def metrics(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [MLP_RUN, TRANSFORMER_RUN], ids=["mlp", "transformer"])
def test_a_run_that_goes_on_under_other_strategies_is_that_of_one_process(lit, tmp_path, options):
    """Tensor parallel for two epochs, FSDP2 for the next, then alone: loss curve within 1e-5, one optimizer state."""
    new = ["fit", *options.split(), *COMMON.split()]
    assert lit(new, "--run_name=one --trainer.max_epochs=4").status == 0
    lit_in(tmp_path, *new, *TENSOR_PARALLEL, "--run_name=all", "--trainer.max_epochs=2", "--test_after_fit=false")
    (run,) = (tmp_path / "runs").glob("*/all")
    lit_in(tmp_path, "fit", "--run", str(run), *FSDP2, "--trainer.max_epochs=3", "--test_after_fit=true")
    saved, tested = read(run / "checkpoints" / "last.ckpt"), metrics(run)["test"]
    alone = f"--run {run} --trainer.devices=1 --trainer.strategy=auto"
    assert lit(f"test {alone}").status == 0
    again = metrics(run)["test"]
    assert {n: v for n, v in tested.items() if n[:5] == "test/"} == pytest.approx(
        {n: v for n, v in again.items() if n[:5] == "test/"}, rel=1e-5
    )
    assert lit(f"fit {alone} --trainer.max_epochs=4").status == 0
    one, found = curves(tmp_path / "runs" / run.parent.name / "one"), curves(run)
    for name, values in one.items():
        assert len(values) >= 4, name
        assert found[name] == pytest.approx(values, abs=1e-5), name
    last = read(run / "checkpoints" / "last.ckpt")
    assert [value.shape for value in saved["state_dict"].values()] == [v.shape for v in last["state_dict"].values()]
    assert len({v.data_ptr() for v in saved["state_dict"].values()}) == len(
        {v.data_ptr() for v in last["state_dict"].values()}
    )  # tied weights are in the file once
    for before, after in zip(saved["optimizer_states"], last["optimizer_states"], strict=True):
        assert before["param_groups"] == after["param_groups"]
        assert before["state"].keys() == after["state"].keys()


@pytest.fixture
def two():
    """A mesh on which this is the first of two processes; the other is not there, and nothing is sent."""
    distributed.init_process_group("fake", rank=0, world_size=2)
    yield lambda data, tensor: init_device_mesh(
        "cpu", (data, tensor), mesh_dim_names=("data_parallel", "tensor_parallel")
    )
    distributed.destroy_process_group()


class Part(nn.Module):
    """What `shard` needs of a task."""

    def __init__(self, net):
        super().__init__()
        self.net = net
        self.trainer = SimpleNamespace(strategy=Sharded(), precision_plugin=SimpleNamespace(scaler=None))


def test_halves_of_the_hidden_layers(two):
    task = Part(TransformerSeq2Seq(11, 13, size=8, heads=2, encoder_layers=1, decoder_layers=1))
    whole_sizes = {name: parameter.shape for name, parameter in task.named_parameters()}
    shard(task, two(1, 2))
    split = {name for name, p in task.named_parameters() if isinstance(p, DTensor) and p.to_local().numel() < p.numel()}
    layers = [f"net.encoder.layers.0.linear{n}" for n in "12"] + [f"net.decoder.0.feedforward.{n}" for n in "03"]
    assert split == {f"{layer}.weight" for layer in layers} | {f"{layer}.bias" for layer in layers[::2]}
    assert {name: parameter.shape for name, parameter in task.named_parameters()} == whole_sizes
    shard(task, two(1, 2))  # a second stage of the same trainer changes nothing
    assert {name: parameter.shape for name, parameter in task.named_parameters()} == whole_sizes


def test_each_process_of_fsdp2_has_half_of_everything(two):
    net = TransformerSeq2Seq(12, 14, size=8, heads=2, encoder_layers=1, decoder_layers=1)
    count = sum(parameter.numel() for parameter in net.parameters())
    task = Part(net)
    shard(task, two(2, 1))
    assert 2 * sum(parameter.to_local().numel() for parameter in task.parameters()) == count
    assert net.output.weight is net.target_embedding.weight


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (MLP((4,), 3, [5]), r"net.layers.1.weight \(5 × 4\) cannot be split evenly between 2 processes"),
        (nn.Linear(2, 2), "Linear has no tensor_parallel_plan: only the overlay fsdp2 shards it"),
    ],
)
def test_nets_that_cannot_be_split(two, net, says):
    with pytest.raises(UserError, match=says):
        shard(Part(net), two(1, 2))


def test_weights_beside_the_net_another_strategy_and_averages(two):
    task = Part(nn.Linear(2, 2))
    task.scale = nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match="scale belongs to the task itself"):
        shard(task, two(2, 1))
    trainer = SimpleNamespace(strategy=Sharded(), callbacks=[EMA()], precision="32-true")
    with pytest.raises(UserError, match="EMA averages whole weights"):
        trainer.callbacks[0].setup(trainer, None, "fit")
    task.trainer.strategy = ModelParallelStrategy()
    with pytest.raises(UserError, match="checkpoints of ModelParallelStrategy cannot be resumed here"):
        shard(task, two(2, 1))


def test_norms_of_shards_beside_whole_tensors_and_shards_of_whole_ones(two):
    mesh = two(2, 1)["tensor_parallel"]  # of one process, which has all
    plain = [torch.tensor([3.0, 0.0]), torch.tensor([[0.0, 4.0]])]
    mixed = [plain[0].clone(), as_sharded(plain[1], distribute_tensor(torch.zeros(1, 2), mesh, [Shard(1)]))]
    assert isinstance(mixed[1], DTensor)
    assert total_norm(mixed) == 5
    clip_norm(mixed, 1.0)
    torch.testing.assert_close(whole(mixed, keep=True), [value / 5 for value in plain], rtol=1e-5, atol=0)
    assert whole({"step": 3, "states": mixed}, keep=False) == {"step": 3, "states": [None, None]}
    assert as_sharded(torch.tensor(3.0), mixed[1]) == 3.0  # a counter of the optimizer stays whole


@pytest.mark.parametrize(("kind", "options"), [(torch.optim.LBFGS, {}), (torch.optim.SGD, {"fused": True})])
def test_an_optimizer_that_cannot_work_on_shards(two, monkeypatch, kind, options):
    monkeypatch.setattr(ModelParallelStrategy, "optimizer_step", lambda self, optimizer, *_: optimizer.step())
    weight = nn.Parameter(distribute_tensor(torch.ones(2, 2), two(2, 1)["data_parallel"], [Shard(0)]))
    weight.grad = weight.detach().clone()
    with pytest.raises(UserError, match=rf"^{kind.__name__} with these options cannot work on shards: [^\n]*$"):
        Sharded().optimizer_step(kind([weight], lr=0.1, **options), None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--trainer.strategy=fsdp3",
            "there is no 'fsdp3'; did you mean fsdp? A class is given as {class_path: Sharded",
        ),
        (f"{' '.join(TENSOR_PARALLEL)} --trainer.devices=3", "tensor_parallel_size 2 does not divide the 3 processes"),
    ],
)
def test_strategies_that_do_not_fit(lit, options, says):
    result = lit(f"fit -c configs/quickstart.yaml --trainer.accelerator=cpu {options}")
    assert result.status == 2
    assert len(result.err.splitlines()) == 1
    assert says in result.err
    assert not list(Path("runs").glob("*/*"))
