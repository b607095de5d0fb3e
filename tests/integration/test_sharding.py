"""Tests that sharded nets match single-process training, and that invalid strategies cause a one-line error."""

import csv
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers import differences, run_in
from lit_engine.checkpoints.io import read

ROOT = Path(__file__).parents[2]
lit_in = partial(run_in, package="lit_project")
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
@pytest.mark.parametrize(
    ("options", "strategies"),
    [(MLP_RUN, [[], TENSOR_PARALLEL, FSDP2]), (TRANSFORMER_RUN, [TENSOR_PARALLEL, FSDP2])],
    ids=["mlp", "transformer"],
)
def test_resuming_with_different_strategies_matches_single_process_training(lit, tmp_path, options, strategies):
    """Train two epochs with the first strategy, one with each of the others, and one in a single process."""
    new = ["fit", *options.split(), *COMMON.split()]
    assert lit(new, f"--run_name=one --trainer.max_epochs={len(strategies) + 2}").status == 0
    lit_in(tmp_path, *new, *strategies[0], "--run_name=all", "--trainer.max_epochs=2", "--test_after_fit=false")
    (run,) = (tmp_path / "runs").glob("*/all")
    for epochs, strategy in enumerate(strategies[1:], 3):
        lit_in(tmp_path, "fit", "--run", str(run), *strategy, f"--trainer.max_epochs={epochs}", "--test_after_fit=true")
    saved, tested = read(run / "checkpoints" / "last.ckpt"), metrics(run)["test"]
    alone = f"--run {run} --trainer.devices=1 --trainer.strategy=auto"
    assert lit(f"test {alone}").status == 0
    again = metrics(run)["test"]
    assert {n: v for n, v in tested.items() if n[:5] == "test/"} == pytest.approx(
        {n: v for n, v in again.items() if n[:5] == "test/"}, rel=1e-5
    )
    assert lit(f"fit {alone} --trainer.max_epochs={len(strategies) + 2}").status == 0
    one, found = curves(tmp_path / "runs" / run.parent.name / "one"), curves(run)
    for name, values in one.items():
        assert len(values) >= 4, name
        assert found[name] == pytest.approx(values, abs=1e-5), name
    last = read(run / "checkpoints" / "last.ckpt")
    assert [value.shape for value in saved["state_dict"].values()] == [v.shape for v in last["state_dict"].values()]
    assert len({v.data_ptr() for v in saved["state_dict"].values()}) == len(
        {v.data_ptr() for v in last["state_dict"].values()}
    )  # tied weights are saved once
    for before, after in zip(saved["optimizer_states"], last["optimizer_states"], strict=True):
        assert before["param_groups"] == after["param_groups"]
        assert before["state"].keys() == after["state"].keys()


@pytest.mark.slow
def test_sharding_tests_pass_in_a_separate_process():
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/integration/shards.py"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "25 passed" in done.stdout


ACCUMULATING = """
import os, signal, torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        assert state == {"version": 1}

    def configure_model(self):
        fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        if batch_idx % 3 == 0:
            optimizer.zero_grad()
        self.manual_backward(self.layers(batch[0]).square().mean())
        if batch_idx % 3 == 2:
            optimizer.step()

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.layers(batch[0]).square().mean(), sync_dist=True)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if os.environ.get("STOP") == str(batch_idx):
            os.kill(os.getpid(), signal.SIGTERM)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)

    def train_dataloader(self):
        torch.manual_seed(0)
        return DataLoader(TensorDataset(torch.randn(64, 6)), 4)

    val_dataloader = train_dataloader
"""


@pytest.mark.slow
def test_gradients_accumulated_by_hand_are_restored(tmp_path, monkeypatch):
    (tmp_path / "accumulating.py").write_text(ACCUMULATING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    options = "--trainer.max_epochs=2 --trainer.accelerator=cpu"
    fit = partial(lit_in, tmp_path, "fit", "--model=accumulating.Net", *FSDP2, *options.split())
    fit("--run_name=one")
    monkeypatch.setenv("STOP", "3")
    with pytest.raises(AssertionError):  # status 143
        fit("--run_name=stopped")
    monkeypatch.delenv("STOP")
    one, stopped = (next((tmp_path / "runs").glob(f"*/{name}")) for name in ("one", "stopped"))
    assert len(read(stopped / "checkpoints" / "last.ckpt")["gradients"]) == 4
    lit_in(tmp_path, "fit", "--run", str(stopped))
    assert differences(one, stopped) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            "--trainer.strategy=fsdp3",
            "'fsdp3' does not exist; did you mean fsdp? Write a class as {class_path: Sharded}",
        ),
        ("--trainer.strategy=Sharded", "a class name is not enough. Write a class as {class_path: Sharded}"),
        (f"{' '.join(TENSOR_PARALLEL)} --trainer.devices=3", "world size 3 is not divisible by tensor_parallel_size 2"),
    ],
)
def test_invalid_strategies_are_rejected_with_a_one_line_error(lit, options, says):
    result = lit(f"fit -c configs/quickstart.yaml --trainer.accelerator=cpu {options}")
    assert result.status == 2
    assert len(result.err.splitlines()) == 1
    assert says in result.err
    assert not list(Path("runs").glob("*/*"))


def test_tensor_parallelism_accepts_optimizers_without_fused_kernels(lit):
    options = f"--model.optimizer=RMSprop {' '.join(TENSOR_PARALLEL)} --print_config"
    with pytest.raises(SystemExit) as ended:
        lit(f"fit -c configs/fashion_mnist_mlp.yaml {options}")
    assert ended.value.code == 0
