"""Tests translator runs: exact gradients on two processes, resuming with different batches, and tables in W&B."""

import json
import signal
from pathlib import Path

import pytest
import torch

from helpers import difference, run_in
from killing import at_call
from lit_project.tasks.translation.task import Translator

CONFIG = str(Path(__file__).parents[2] / "configs" / "translation_quickstart.yaml")


@pytest.mark.slow
def test_two_processes_compute_the_gradient_of_the_full_batch(tmp_path):
    """Take one step on the whole training set, as one batch of all pairs or as ragged batches on two processes."""
    small = [
        "fit", "-c", CONFIG, "--trainer.accelerator=cpu",
        "--test_after_fit=false", "--trainer.max_epochs=1", "--trainer.precision=64-true", "--data.size=300",
        "--data.val_size=20", "--data.test_size=20", "--model.net.hidden_size=8", "--model.optimizer=torch.optim.SGD",
        "--model.optimizer.lr=0.5", "--model.schedulers=null",
    ]  # fmt: skip
    run_in(tmp_path, *small, "--data.batch_size=300", "--run_name=one", package="lit_project")
    run_in(
        tmp_path, *small, "--data.batch_size=7", "--run_name=two", "--trainer.accumulate_grad_batches=1000",
        "--trainer.devices=2", "--trainer.strategy=ddp", package="lit_project",
    )  # fmt: skip
    folder = tmp_path / "runs" / "translation_quickstart"
    one, two = (torch.load(folder / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("one", "two"))
    assert one["global_step"] == two["global_step"] == 1
    for name, value in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], value, rtol=0, atol=1e-10)
    scores = [json.loads((folder / name / "metrics.json").read_text())["fit"] for name in ("one", "two")]
    for name in ("val/loss", "val/bleu", "val/chrf", "val/samples", "val/tokens", "train/tokens", "train/loss"):
        assert scores[0][name] == pytest.approx(scores[1][name], rel=1e-5), name


@pytest.mark.slow
def test_a_run_can_resume_from_any_step_with_different_micro_batches(lit, monkeypatch):
    """The last step has fewer pairs. Runs stop in training and validation. The schedule depends on the run length."""
    command = (
        f"fit -c {CONFIG} --test_after_fit=false --data.size=300 --data.val_size=20 --data.test_size=20 "
        "--model.net.hidden_size=8 --model.net.dropout=0 --trainer.precision=64-true --trainer.max_epochs=2 "
        """--trainer.callbacks=[{"class_path":"Checkpoint"}] --data.eval_batch_tokens=60"""
    )
    whole = lit(f"{command} --data.batch_size=60 --run_name=whole")
    assert whole.status == 0, whole.err
    command += " --run_name=parts --data.batch_size=60"
    for windows, step, call in ((1, "training_step", 4), (30, "evaluation_step", 2), (3, "training_step", 5)):
        with monkeypatch.context() as patch:
            at_call(patch, Translator, step, call, signal.SIGTERM)
            cut = lit(f"{command} --trainer.accumulate_grad_batches={windows}")
            assert cut.status == 128 + signal.SIGTERM, cut.err
        command = f"fit --run {cut.run} --data.batch_size=null --data.global_batch_size=60"
    resumed = lit(f"{command} --trainer.accumulate_grad_batches=2")
    assert resumed.status == 0, resumed.err
    assert difference(whole.run, cut.run) < 1e-13


@pytest.mark.slow
def test_wandb_logs_translations_as_a_table_and_attention_maps_as_images(lit):
    overlays = "-c configs/overlays/debug.yaml -c configs/overlays/wandb.yaml"
    done = lit(f"fit -c configs/translation_quickstart.yaml {overlays}")
    assert done.status == 0, done.err
    (media,) = done.run.glob("wandb/*run-*/files/media")
    table = json.loads(next(Path(media).glob("table/test/samples_*.json")).read_text())
    assert table["columns"] == ["which", "BLEU", "source", "translation", "references"]
    assert {row[0] for row in table["data"]} == {"Best", "Worst", "Random"}
    assert list(Path(media).glob("images/test/attention_1_*.png"))
