"""Two processes (gloo, CPU) share a run directory, use each sample once and compute the same metrics as one process."""

import csv
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from helpers import TINY, TOY, free_port, run_in
from toy.__main__ import main

METRICS = "[MulticlassF1Score, MulticlassAUROC, {class_path: MulticlassCalibrationError, init_args: {n_bins: 15}}]"


def by_scikit_learn(table):
    """Return F1, one-vs-rest AUROC and ECE (Guo et al. 2017, computed here) for a table of predictions."""
    rows = list(csv.DictReader(table.open()))
    target, predicted = (np.array([int(row[name]) for row in rows]) for name in ("target", "prediction"))
    shares = np.array([[float(row[f"probability/{k}"]) for k in range(10)] for row in rows])
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
    assert (shares.argmax(axis=1) == predicted).all()
    sure, right = shares.max(axis=1), predicted == target
    bins = np.ceil(sure * 15)  # bin b contains (b - 1) / 15 < p <= b / 15
    gaps = [abs((right[bins == b] - sure[bins == b]).sum()) for b in range(1, 16)]
    return {
        "test/multiclass_f1_score": f1_score(target, predicted, average="macro"),
        "test/multiclass_auroc": roc_auc_score(target, shares, multi_class="ovr", average="macro", labels=range(10)),
        "test/multiclass_calibration_error": sum(gaps) / len(rows),
    }


def test_a_run_with_two_processes_matches_a_single_process(tmp_path):
    """Every sample counts once, metrics match a single process with the same weights, and only one process writes.

    The values of torchmetrics match scikit-learn's, both with one process and with two.
    """
    printed = run_in(
        tmp_path, "fit", "-c", f"{TOY}/configs/quickstart.yaml", "-c", f"{TOY}/configs/overlays/ddp.yaml",
        "--trainer.accelerator=cpu", "--trainer.max_epochs=2", "--data.eval_batch_size=37", *TINY.split(),
        f"--model.metrics={METRICS}",
    )  # fmt: skip
    (two,) = (tmp_path / "runs" / "quickstart").iterdir()
    file = next((two / "checkpoints").glob("best*.ckpt"))
    single = f"--run_name=one --runs_dir={tmp_path}/runs --trainer.devices=1 --trainer.strategy=auto"
    assert main(["test", "-c", f"{two}/config.yaml", "--ckpt_path", str(file), *single.split()]) == 0
    metrics = json.loads((two / "metrics.json").read_text())
    assert metrics["fit"]["train/samples"] == 1257
    assert metrics["fit"]["val/samples"] == 180
    assert metrics["test"]["test/samples"] == 360
    one = json.loads((two.parent / "one" / "metrics.json").read_text())["test"]
    assert metrics["test"].keys() == one.keys()
    numbers = [name for name in one if name.startswith("test/")]
    assert [metrics["test"][name] for name in numbers] == pytest.approx([one[name] for name in numbers], rel=1e-5)
    assert (two / "index.html").exists()
    predict = f"predict --run {two} --probabilities --trainer.devices=1 --trainer.strategy=auto"
    assert main(predict.split()) == 0
    expected = by_scikit_learn(two / "predictions" / "test.csv")
    for found in (metrics["test"], one):
        assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6, rel=0)
    rows = list(csv.DictReader((two / "metrics.csv").open()))
    losses = [float(row["train/loss"]) for row in rows if row["train/loss"]]
    told = [float(loss) for loss in re.findall(r"^epoch . \(. of 2\) .*train/loss (\S+)", printed, re.MULTILINE)]
    assert told == pytest.approx(losses, abs=1e-4)
    assert [row["epoch"] for row in rows if row["val/loss"]] == ["0", "1"]
    assert len({row["step"] for row in rows}) == len(rows)
    (entry,) = json.loads((two / "provenance.json").read_text())
    assert entry["processes"] == 2


SLOW = """
import time
from lightning.pytorch import Callback
from lightning.pytorch.loggers.logger import DummyLogger
from lit_engine.errors import UserError

class Fails(Callback):
    def on_train_start(self, trainer, module):
        if trainer.is_global_zero:
            raise UserError("a mistake")

class Slow(DummyLogger):
    def finish(self, status):
        time.sleep(7)
"""


@pytest.mark.slow
def test_a_failed_run_that_closes_slowly_keeps_its_exit_status(tmp_path):
    """Lightning kills the first process within five seconds after noticing that another was killed."""
    (tmp_path / "slow.py").write_text(SLOW)
    command = ["fit", "-c", TOY / "configs" / "quickstart.yaml", "-c", TOY / "configs/overlays/ddp.yaml"]
    options = ["--trainer.accelerator=cpu", "--trainer.logger=slow.Slow", "--trainer.callbacks+=slow.Fails"]
    run = [sys.executable, "-m", "toy", *command, *options]
    done = subprocess.run(run, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=200)
    assert "error: a mistake" in done.stderr
    assert done.returncode == 2


@pytest.mark.slow
def test_rejects_processes_with_different_configs(tmp_path):
    port = str(free_port())
    command = ["fit", "-c", str(TOY / "configs" / "quickstart.yaml"), "-c", str(TOY / "configs/overlays/ddp.yaml")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "toy", *command, "--trainer.accelerator=cpu", f"--seed_everything={rank}"],
            cwd=tmp_path,
            env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "LOCAL_RANK": rank},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    errors = [process.communicate(timeout=200)[1].splitlines()[-1] for process in processes]
    assert [process.returncode for process in processes] == [2, 2]
    assert errors[0] == "error: the processes of this run have different configs"
    assert errors[1] == f"{errors[0]}; seed_everything is 1 here and 0 on rank 0"
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
def test_nodes_that_the_user_starts_train_the_same_run(tmp_path):
    """NODE_RANK identifies each node, as Lightning documents for clusters without a scheduler."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    options = "--trainer.accelerator=cpu --trainer.num_nodes=2 --trainer.devices=1 --trainer.max_epochs=1"
    config = ["-c", str(TOY / "configs" / "quickstart.yaml"), "-c", str(TOY / "configs/overlays/ddp.yaml")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "toy", "fit", *config, *options.split(), *TINY.split()],
            cwd=tmp_path,
            env={**os.environ, **address, "NODE_RANK": rank},
            stdout=subprocess.DEVNULL,
        )
        for rank in "01"
    ]
    assert [process.wait(timeout=200) for process in processes] == [0, 0]
    (run,) = tmp_path.glob("runs/*/*")
    assert json.loads((run / "metrics.json").read_text())["fit"]["train/samples"] == 1257
