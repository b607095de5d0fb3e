"""Bad data and damaged files cause clear errors without data loss."""

import re
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from helpers import TINY
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.errors import CheckpointError, UserError, explain_no_access
from lit_engine.run.directory import RunDir, write_text


@contextmanager
def limit_on_files():
    """Yield a function that limits file sizes, so that larger writes fail as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_failed_write_reports_the_file_and_preserves_its_content(workspace):
    write_text(Path("a.json"), "before")
    with limit_on_files() as limit:
        limit(10)
        with pytest.raises(OSError, match="too large") as error:
            write_text(Path("a.json"), "more than fits")
    assert explain_no_access(error.value) == "File too large: a.json"
    assert Path("a.json").read_text() == "before"
    assert not list(workspace.glob(".*.tmp"))


def test_resume_skips_and_reports_a_truncated_checkpoint(lit):
    # With a learning rate of 0, the first epoch is the best.
    fit = lit(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false "
              "--model.optimizer.lr=0 --model.schedulers=null")  # fmt: skip
    last = fit.run / "checkpoints" / "last.ckpt"
    last.write_bytes(last.read_bytes()[:-50])
    result = lit(f"fit --run {fit.run}")
    assert result.status == 0, result.err
    assert "last.ckpt is damaged" in result.err
    assert "best-epoch000.ckpt" in result.out
    assert "epoch 1 (2 of 3)" in result.out
    assert read(last)["global_step"] == 30


def test_rejects_a_checkpoint_of_a_different_model(lit, trained):
    result = lit(f"test -c configs/quickstart.yaml --ckpt_path {trained}/checkpoints/last.ckpt")
    assert result.status == 2
    assert "a different model" in result.err
    assert "(32, 64) instead of (64, 64)" in result.err
    assert len(result.err.strip().splitlines()) <= 6


def test_loading_a_checkpoint_never_calls_functions_it_references(trained, workspace):
    from toy.tasks import ImageClassifier

    file = trained / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    touch = {"class_path": "os.system", "init_args": {"command": f"touch {workspace}/marker"}}
    load = {
        "class_path": "torch.hub.load",
        "init_args": {"repo_or_dir": str(workspace), "model": "x", "source": "local"},
    }
    (workspace / "hubconf.py").write_text(f"import os\nos.system('touch {workspace}/marker')\n")
    inner = {
        "class_path": "toy.tasks.ImageClassifier",
        "init_args": {"class_names": [], "optimizer": touch},
    }
    layer = {"class_path": "torch.nn.TransformerEncoderLayer", "init_args": {"d_model": 8, "nhead": 2}}

    def loaded(**changes):
        torch.save({**content, **changes, "hyper_parameters": {**content["hyper_parameters"], **changes}}, file)
        return ImageClassifier.load_from_checkpoint(file, weights_only=True)

    task = loaded(optimizer=touch, schedulers=[{"scheduler": touch, "interval": "step"}], more=touch)
    with pytest.raises(UserError, match="optimizer"):
        task.configure_optimizers()
    loaded(module_arguments={"_instantiator": "lightning.pytorch.cli.instantiate_module", "loss": touch})
    for changes in (
        {"net": touch},
        {"loss": touch},
        {"net": "os.system"},
        {"net": {**layer, "init_args": {**layer["init_args"], "activation": load}}},
        {"net": {**layer, "init_args": {**layer["init_args"], "activation": "torch.hub.load"}}},
        {"net": inner},
        {"_class_path": "os.system"},
        {"_class_path": "toy.models.MLP"},
    ):
        with pytest.raises(CheckpointError, match=re.escape(str(file))):
            loaded(**changes)
    assert not (workspace / "marker").exists()


def test_full_disk_while_saving_keeps_the_earlier_checkpoint(lit, monkeypatch):
    epoch_end = Checkpoint.on_train_epoch_end

    def disk_fills(self, trainer, module):
        if trainer.current_epoch == 1:
            limit(5000)
        epoch_end(self, trainer, module)

    monkeypatch.setattr(Checkpoint, "on_train_epoch_end", disk_fills)
    callbacks = "[{class_path: Checkpoint, init_args: {monitor: null}}]"
    with limit_on_files() as limit:
        result = lit(f"fit -c configs/quickstart.yaml {TINY} --run_name=full", [f"--trainer.callbacks={callbacks}"])
    assert result.status == 2
    assert "cannot save" in result.err
    assert "intact" in result.err
    folder = Path("runs/quickstart/full/checkpoints")
    assert [path.name for path in folder.iterdir()] == ["last.ckpt"]
    assert read(folder / "last.ckpt")["global_step"] == 10


@pytest.mark.parametrize("name", ["config.yaml", "metrics.json", "provenance.json", "metrics.csv"])
def test_broken_run_files_are_reported_before_training(lit, trained, name):
    file = trained / name
    file.write_bytes(file.read_bytes()[:-40] + b"\n\x00\xff,[\n")
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    result = lit(f"fit --run {trained} --trainer.max_epochs=5 --model.schedulers=null")
    assert result.status == 2
    assert len(result.err.splitlines()) == 1
    assert str(file) in result.err
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("options", [
    "--trainer.max_epochs=0", "--trainer.limit_train_batches=0", "--trainer.max_steps=0 --model.schedulers=null",
])  # fmt: skip
def test_rejects_training_with_zero_steps_without_creating_a_run(lit, options):
    result = lit(f"fit -c configs/quickstart.yaml {TINY} {options}")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert "trainer.max_epochs, max_steps" in result.err
    assert not list(Path("runs").glob("*/*"))


def test_resuming_with_a_logger_creates_a_missing_metrics_csv(lit):
    fit = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --test_after_fit=false --model.schedulers=null"
    run = lit(f"{fit} --trainer.logger=false").run
    assert not (run / "metrics.csv").exists()
    resumed = lit(f"fit --run {run} --trainer.logger=true --trainer.max_epochs=2")
    assert resumed.status == 0, resumed.err
    assert [row["epoch"] for row in RunDir(run).history()[1] if row["val/loss"]] == ["1"]
