"""Tests that training steps never wait for a GPU, with one process or several."""

import subprocess
import sys
from pathlib import Path

import pytest
from lightning.pytorch import Callback

ROOT = Path(__file__).parents[2]
TEXT = "--data.size=300 --data.val_size=20 --data.test_size=20 --data.batch_size=20"
ONE = [
    "quickstart -c {overlays}/mixup.yaml -c {overlays}/ema.yaml --trainer.gradient_clip_val=1",
    "regression_quickstart --trainer.accumulate_grad_batches=2",
    f"translation_quickstart {TEXT} --trainer.accumulate_grad_batches=2 --trainer.precision=bf16-mixed",
    f"translation_quickstart {TEXT} --model.net=TransformerSeq2Seq --model.net.size=16",
    f"translation_two_optimizers {TEXT}",
]
TWO = [
    pytest.param(f"translation_quickstart {TEXT} -c {{overlays}}/ddp.yaml", id="ddp"),
    pytest.param("quickstart -c {overlays}/fsdp2.yaml", id="fsdp2"),
]


class Reads(Callback):
    """Reads the loss in each step, which waits for the GPU."""

    def on_train_batch_end(self, trainer, pl_module, outputs, *args):
        outputs["loss"].item()


def words(line):
    config, _, options = line.format(overlays=ROOT / "configs" / "overlays").partition(" ")
    return (
        f"fit -c {ROOT}/configs/{config}.yaml {options} --trainer.accelerator=cpu --trainer.max_epochs=1 "
        "--trainer.limit_train_batches=5 --trainer.limit_val_batches=1 --test_after_fit=false "
        "--trainer.callbacks+=waits.CountWaits"
    ).split()


@pytest.mark.parametrize("line", ONE, ids=lambda line: " ".join(line.split()[:1]))
def test_single_process_never_waits(line, lit, tmp_path):
    assert lit(*words(line)).status == 0
    assert (tmp_path / "waits.0").read_text() == "3 steps\n"


def test_a_wait_is_counted(lit, tmp_path):
    lit(*words("quickstart"), "--trainer.callbacks+=test_waits.Reads")
    steps, *places = (tmp_path / "waits.0").read_text().splitlines()
    assert steps == "3 steps"
    assert len(places) == 3
    assert all(place.startswith("_local_scalar_dense at ") for place in places)


@pytest.mark.slow
@pytest.mark.parametrize("line", TWO)
def test_two_processes_never_wait(line, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    command = [sys.executable, "-m", "lit_project", *words(line)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [(tmp_path / f"waits.{rank}").read_text() for rank in (0, 1)] == ["3 steps\n"] * 2
