"""Tests mid-epoch saving and `--resume`, with which an interrupted run loses nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from helpers import TINY, TOY, differences, free_port
from killing import at_call
from lit_engine.checkpoints.io import read
from lit_engine.run.directory import RunDir
from toy.tasks import ImageClassifier

FIT = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=2 --test_after_fit=false"
EVERY_STEP = "'--trainer.callbacks=[{class_path: Checkpoint, init_args: {every_n_steps: 1, every_minutes: null}}]'"


@pytest.mark.parametrize("hook", ["training_step", "validation_step"])
def test_an_error_reports_its_position_and_the_run_resumes_from_its_last_save(lit, monkeypatch, hook):
    """The micro-batches since the last save are repeated."""
    options = f"{FIT} --trainer.accumulate_grad_batches=3 -c configs/overlays/ema.yaml"
    whole = lit(f"{options} --run_name=whole")
    calls = {"training_step": 15, "validation_step": 2}[hook]  # in the second epoch, or the first
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, hook, calls, torch.OutOfMemoryError("no room"))
        with pytest.raises(torch.OutOfMemoryError) as error:
            lit(f"{options} --run_name=cut")
    where, advice = error.value.__notes__
    assert where.startswith("in epoch ")
    assert "double trainer.accumulate_grad_batches" in advice
    cut = Path("runs/quickstart/cut")
    assert lit(f"fit --run {cut}").status == 0
    assert differences(whole.run, cut) == []


def test_a_batch_norm_error_for_a_single_sample_suggests_drop_last(lit):
    with pytest.raises(ValueError, match="more than 1 value per channel") as error:
        lit(f"{FIT} --model.net.norm=batch --data.batch_size=1")
    assert "--data.drop_last=true" in error.value.__notes__[1]


@pytest.mark.parametrize("reload", [0, 1])
def test_an_accumulation_schedule_resumes_mid_epoch(lit, monkeypatch, reload):
    name = "lightning.pytorch.callbacks.GradientAccumulationScheduler"
    scheduled = f"--trainer.callbacks+=[{{class_path: {name}, init_args: {{scheduling: {{0: 2, 1: 3}}}}}}]"
    command = [*FIT.split(), scheduled, f"--trainer.reload_dataloaders_every_n_epochs={reload}", "--run_name"]
    whole = lit([*command, "whole"])
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 15, signal.SIGUSR1)  # the fifth batch of the second epoch
        assert lit([*command, "cut"]).status == 128 + signal.SIGUSR1
    cut = Path("runs/quickstart/cut")
    assert lit(f"fit --run {cut}").status == 0
    assert differences(whole.run, cut) == []


@pytest.mark.parametrize("seed", ["", "--seed_everything=true"])  # a random seed is drawn only once
def test_the_same_command_with_resume_starts_and_resumes_a_run(lit, monkeypatch, seed):
    command = f"{FIT} {seed} --run_name=mine --resume"
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 3, signal.SIGUSR1)
        assert lit(command).status == 128 + signal.SIGUSR1
    second = lit(command)
    pages = [second.run / "index.html", second.run / "README.md"]
    for page in pages:  # as if the run had been killed before writing them
        page.unlink()
    third = lit(command)
    assert all(page.exists() for page in pages)
    assert (second.status, third.status) == (0, 0), second.err + third.err
    assert "resuming from" in second.out
    assert "nothing to do" in third.out
    assert second.run == third.run == Path("runs/quickstart/mine")
    assert len({entry["seed"] for entry in RunDir(third.run).entries()}) == 1
    other = lit(f"{command} --model.optimizer.lr=0.5 --data.batch_size=64")
    assert other.status == 2
    assert "data.batch_size was 128 and is 64" in other.err
    assert "model.optimizer.lr was 0.004 and is 0.5" in other.err
    assert "set --name" in lit(f"{FIT} --resume").err


def test_latest_selects_the_latest_run_overall_or_of_a_config(lit, trained):
    first = lit("test --run latest")
    assert (first.status, first.run) == (0, trained)
    for name in ("other", "unused"):
        shutil.copy("configs/quickstart.yaml", f"configs/{name}.yaml")
    fit = "fit -c configs/other.yaml -c configs/overlays/debug.yaml"
    newer = lit(f"{fit} --test_after_fit=false")
    assert lit(f"{fit} --plot_lr=true").status == 0  # creates only a figure
    (trained / "config.yaml").touch()  # as if the run had been copied
    assert lit("validate --run latest").run == newer.run
    assert RunDir.open("latest").path == newer.run
    of_config = lit("validate --run latest -c configs/quickstart.yaml")
    assert (of_config.status, of_config.run) == (0, trained)
    assert lit("validate latest label_smoothing").run == newer.run
    nothing = lit("test --run latest -c configs/unused.yaml")
    assert nothing.status == 2
    assert "there is no run in runs/unused" in nothing.err


def test_resuming_a_run_reports_changed_package_versions(lit, trained):
    file = trained / "provenance.json"
    entries = json.loads(file.read_text())
    entries[-1]["versions"]["torch"] = "1.13"
    file.write_text(json.dumps(entries))
    result = lit(f"fit --run {trained}")
    assert result.status == 0
    assert "the run was trained with torch 1.13 (now 2" in result.err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_signal_to_one_of_two_processes_stops_both(tmp_path):
    port, processes = str(free_port()), []
    words = FIT.replace("configs/", f"{TOY}/configs/").replace("max_epochs=2", "max_epochs=3000").split()
    words += ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp", "--run_name=both"]
    for rank in "01":
        environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "LOCAL_RANK": rank}
        with (tmp_path / f"{rank}.log").open("w") as log:
            processes.append(subprocess.Popen([sys.executable, "-m", "toy", *words], cwd=tmp_path, stdout=log,
                                              stderr=log, env={**os.environ, **environment}))  # fmt: skip
    last = tmp_path / "runs" / "quickstart" / "both" / "checkpoints" / "last.ckpt"
    try:
        while not last.exists():
            assert processes[0].poll() is None, (tmp_path / "0.log").read_text()
            time.sleep(0.05)
        processes[1].send_signal(signal.SIGTERM)
        assert [process.wait(60) for process in processes] == [143, 143]
    finally:
        for process in processes:
            process.kill()
    assert "interrupted; continue with" in (tmp_path / "0.log").read_text()


def test_rejects_changing_the_samples_per_step_when_resuming_mid_epoch(lit, monkeypatch):
    """With a different batch size or number of processes, the run would skip or repeat samples."""
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 3, signal.SIGTERM)
        cut = lit(f"{FIT} --model.schedulers=null")
    other = lit(f"fit --run {cut.run} --data.batch_size=64")
    assert other.status == 2
    assert "stopped mid-epoch. Each step had 128 samples (across all processes)" in other.err
    assert read(cut.run / "checkpoints" / "last.ckpt")["global_step"] == 3
