"""`repeat` performs the same runs as `fit`, computes mean and standard deviation, and continues after interruptions."""

import csv
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from helpers import TINY
from lit_engine.data.corrections import sample_ids
from lit_engine.load import load_data
from lit_engine.run.directory import RunDir
from lit_engine.tools.runs.columns import number
from lit_engine.tools.sweep import command, repeat, worker
from toy import models

QUICK = f"-c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --trainer.limit_train_batches=2"


@pytest.fixture
def inline(monkeypatch):
    """Run each `fit` in this process. `at[run](workers)` is called first, and replaces `fit` if it returns a status."""
    from toy.__main__ import main

    at = {}

    def fit(self, trial, run, log, slot):
        words = self._words(trial, run)
        log.parent.mkdir(exist_ok=True)
        log.touch()
        status = at.pop(run.path.name, lambda _: None)(self)
        if status is None:
            with log.open("a") as output, redirect_stdout(output), redirect_stderr(output):
                status = main(words)
        values, _ = self._report(trial, run, reported=0)
        return status, False, values

    monkeypatch.setattr(worker.Workers, "_fit", fit)
    monkeypatch.setattr(worker, "ThreadPoolExecutor", lambda workers: nullcontext(SimpleNamespace(map=map)))
    return at


def summary(folder="repeats/quickstart"):
    return json.loads((Path(folder) / "summary.json").read_text())


def metrics(run, section="test"):
    return {k: v for k, v in json.loads((run / "metrics.json").read_text())[section].items() if k.startswith("test/")}


def test_runs_match_individual_fits_and_continue_after_an_interruption(lit, inline):
    def stopped(workers):
        workers.status = 128 + signal.SIGINT  # like Ctrl-C
        return workers.status

    inline["seed-2"] = stopped
    first = lit(f"repeat {QUICK} --seeds 1 2")
    assert (first.status, first.out.splitlines()[-1]) == (130, "interrupted; run the same command to continue")
    started = "repeat: 2 runs, 1 at a time\nrepeat: repeats/quickstart (2 of 2 runs left)\nseed 1 started\n"
    assert first.out.startswith(started)
    assert "left out of the mean: seed-2 (not started)\n" in first.out
    assert summary()["metrics"]["test/loss"]["n"] == 1
    again = lit(f"repeat {QUICK} --seeds 1 2")
    assert (again.status, again.out.splitlines()[-1]) == (0, "page: repeats/quickstart/compare.html"), again.err
    assert "seed 1 " not in again.out
    two = summary()["metrics"]["test/loss"]
    assert two["sd"] == pytest.approx(np.std([*two["values"].values()], ddof=1))
    fits = [lit(f"fit {QUICK} --test_after_fit=true --seed_everything={seed}").run for seed in (1, 2)]
    assert [metrics(Path(f"repeats/quickstart/quickstart/seed-{seed}")) for seed in (1, 2)] == [*map(metrics, fits)]
    shutil.rmtree("repeats/quickstart/quickstart/seed-1")
    lit(f"repeat {QUICK} --seeds 2 3")  # trains one more seed and the deleted run
    told = summary()
    printed = lit(f"repeat {QUICK} --seeds 2 3 --json")
    assert json.loads(printed.out) == {"dir": "repeats/quickstart", **summary()}
    assert "repeat: repeats/quickstart (0 of 3 runs left)" in printed.err
    assert [(name, run["state"]) for name, run in told["runs"].items()] == [
        (f"seed-{n}", "finished") for n in (1, 2, 3)
    ]
    assert told["config"] == "quickstart"
    assert {"command", "seconds", "git", "versions", "host", "over"} <= told.keys()
    for name, one in told["metrics"].items():
        values = [*one["values"].values()]
        assert one["n"] == len(values) == 3, name
        assert one["mean"] == pytest.approx(np.mean(values))
        assert one["sd"] == pytest.approx(np.std(values, ddof=1))
    assert one["values"].keys() == told["runs"].keys()
    assert "test/class_accuracy/3" in told["metrics"]
    page = Path("repeats/quickstart/compare.html").read_text()
    assert "Single runs" in page
    assert "<h1>quickstart: seeds 1, 2, 3</h1>" in page
    RunDir(Path("repeats/quickstart/quickstart/seed-1")).record("test", {"test/odd": math.nan})
    lit(f"repeat {QUICK} --seeds 1")
    assert summary()["metrics"]["test/odd"]["mean"] is None  # strict JSON has no NaN
    other = lit(f"repeat {QUICK} --seeds 1 --data.batch_size=64")
    assert (other.status, other.err) == (
        2, "error: repeats/quickstart was started with different data.batch_size: choose another --dir\n"
    )  # fmt: skip


def test_arguments_may_be_added_or_removed_between_calls(lit, inline, monkeypatch):
    class Sloped(models.MLP):
        def __init__(self, input_shape: list[int], num_classes: int, hidden_sizes: list[int], slope: float = 0.1):
            super().__init__(input_shape, num_classes, hidden_sizes)

    inline["seed-1"] = lambda workers: 1  # fails without training
    assert lit(f"repeat {QUICK} --seeds 1").status == 1
    Sloped.__module__, Sloped.__qualname__ = "toy.models", "MLP"
    monkeypatch.setattr(models, "MLP", Sloped)
    again = lit(f"repeat {QUICK} --seeds 1")
    assert again.status == 0, again.err
    config = yaml.safe_load(Path("repeats/quickstart/quickstart/seed-1/config.yaml").read_text())
    assert config["model"]["init_args"]["net"]["init_args"] == {"hidden_sizes": [32], "slope": 0.1}


def test_failed_runs_are_excluded_from_the_mean_and_retried(lit, inline, workspace, monkeypatch):
    def broken(workers):
        with (workers.folder / "logs" / "0001.log").open("a") as log:
            log.write("error: no memory\nrun: mine/x\n")
        return 1

    inline.update({"seed-1": lambda workers: 1, "seed-2": broken})
    assert lit(f"repeat {QUICK} --trainer.callbacks=[] --seeds 1 2 --dir mine").status == 1
    assert {run["state"] for run in summary("mine")["runs"].values()} == {"failed"}
    assert summary("mine")["metrics"] == {}
    inline["seed-2"] = broken
    monkeypatch.setenv("HOME", str(workspace))  # a shell does not expand ~ after =
    first = lit(f"repeat {QUICK} --trainer.callbacks=[] --seeds 1 2 --dir=~/mine")
    assert first.status == 1
    assert first.out.count("no memory") == first.out.count("seed 2 failed: no memory (") == 1
    assert "left out of the mean: seed-2 (failed)\n" in first.out
    assert summary("mine")["runs"]["seed-2"]["error"] == "no memory"
    assert summary("mine")["metrics"]["test/accuracy"] | {"values": 0, "mean": 0} == {
        "n": 1,
        "mean": 0,
        "sd": None,
        "values": 0,
    }
    assert lit(f"repeat {QUICK} --trainer.callbacks=[] --seeds 1 2 --dir mine").status == 0
    assert summary("mine")["metrics"]["test/accuracy"]["n"] == 2


def test_without_a_monitor_the_last_checkpoint_is_tested(lit, inline):
    told = lit(f"repeat {QUICK} --trainer.callbacks=Checkpoint --trainer.max_epochs=2 --seeds 1")
    assert "seed 1 finished: epoch 2\n" in told.out
    run = Path("repeats/quickstart/quickstart/seed-1")
    assert json.loads((run / "metrics.json").read_text())["test"]["checkpoint"] == f"{run}/checkpoints/last.ckpt"
    tested = metrics(run)
    assert lit(f"test --run {run} --ckpt_path last").status == 0
    assert metrics(run) == tested


def test_sample_averaged_metrics_are_also_pooled_over_folds(lit, inline):
    typed = f"repeat {QUICK} --model.metrics=[MulticlassF1Score] --folds 3"
    result = lit(typed)
    assert result.status == 0, result.err
    told = summary("repeats/quickstart-3-folds")
    assert list(told["runs"]) == ["fold-0", "fold-1", "fold-2"]
    counts = np.array([*told["metrics"]["test/samples"]["values"].values()])
    assert counts.sum() == 1797
    accuracy = told["metrics"]["test/accuracy"]
    pooled = np.array([*accuracy["values"].values()]) @ counts / 1797
    assert accuracy["pooled"] == {"value": pytest.approx(pooled), "over": "test/samples", "count": 1797}
    assert "pooled" not in told["metrics"]["test/multiclass_f1_score"]
    page = Path("repeats/quickstart-3-folds/compare.html").read_text()
    shown = re.findall(r'">([^<]*)</td>', page.partition("test/accuracy</td>")[2])
    assert shown[0] == number(accuracy["mean"], accuracy["sd"])
    assert "<h1>quickstart: 3 folds</h1>" in page
    runs = [Path("repeats/quickstart-3-folds/quickstart", name) for name in told["runs"]]
    data = [yaml.safe_load((run / "config.yaml").read_text())["data"]["init_args"] for run in runs]
    assert [(one["folds"], one["fold"]) for one in data] == [(3, 0), (3, 1), (3, 2)]
    table = Path("repeats/quickstart-3-folds/predictions.csv").read_text()
    rows = list(csv.DictReader(table.splitlines()))
    assert len({(row["fold"], row["index"]) for row in rows}) == len(rows) == 1797  # each sample once
    right = [row["prediction"] == row["target"] for row in rows]
    assert np.mean(right) == pytest.approx(accuracy["pooled"]["value"], rel=1e-5)
    of_fold = [np.mean([hit for hit, row in zip(right, rows, strict=True) if row["fold"] == str(k)]) for k in range(3)]
    assert of_fold == pytest.approx(list(accuracy["values"].values()), rel=1e-5)
    assert {row["seed"] for row in rows} == {"42"}
    ids = sample_ids(load_data(RunDir(runs[1])), "test")
    assert [row["id"] for row in rows if row["fold"] == "1"] == ids
    assert shlex.split(told["command"]) == ["toy", *typed.split()]


def test_folds_with_drawn_seeds_form_one_group_and_can_be_continued(lit, inline):
    inline.update({"fold-0": lambda workers: 1, "fold-1": lambda workers: 1})
    assert lit(f"repeat {QUICK} --seed_everything=true --folds 2").status == 1
    again = lit(f"repeat {QUICK} --seed_everything=true --folds 2")
    assert again.status == 0, again.err
    assert "±" in again.out


def test_an_interrupted_prediction_ends_the_command(lit, inline, monkeypatch):
    commands, main = [], repeat.main

    def interrupted(project, args):
        commands.append(args)
        return 130 if len(commands) == 2 else main(project, args)

    monkeypatch.setattr(repeat, "main", interrupted)
    command, table = f"repeat {QUICK} --folds 2", Path("repeats/quickstart-2-folds/predictions.csv")
    done = lit(command)
    assert (done.status, done.out.splitlines()[-1]) == (130, "interrupted; run the same command to continue")
    assert not table.exists()
    assert lit(command).status == 0
    assert len(commands) == 3
    assert len(table.read_text().splitlines()) == 1 + 1797


def test_data_columns_named_fold_or_seed_get_a_prefix(tmp_path, monkeypatch):
    monkeypatch.setattr(repeat, "_test_ids", lambda run: {0: "s0", 1: "s1"})
    texts = {"2": "index,fold,seed,prediction\n0,09,,1\n1,8,5,0\n", "3": "index,prediction,probability\n0,1,0.6\n"}
    for fold, text in texts.items():  # the second table has an additional column
        (tmp_path / fold / "predictions").mkdir(parents=True)
        (tmp_path / fold / "config.yaml").write_text("seed_everything: 7\n")
        (tmp_path / fold / "predictions" / "test.csv").write_text(text)
    trials = [SimpleNamespace(run=tmp_path / fold, values={"data.fold": int(fold)}) for fold in texts]
    repeat._write_predictions(tmp_path / "predictions.csv", trials)
    rows = [*csv.reader((tmp_path / "predictions.csv").read_text().splitlines())]
    assert rows == [
        ["fold", "seed", "id", "index", "input/fold", "input/seed", "prediction", "probability"],
        ["2", "7", "s0", "0", "09", "", "1", ""],
        ["3", "7", "s0", "0", "", "", "1", "0.6"],
        ["2", "7", "s1", "1", "8", "5", "0", ""],
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "toy repeat needs --seeds 1 2 3, or --folds 5"),
        ("--seeds", "--seeds: expected at least one argument"),
        ("--seeds 1 2 1", "--seeds must be distinct, got 1 2 1"),
        ("--seeds -1", "seed_everything must be from 0"),
        ("--folds 1", "--folds must be at least 2, got 1"),
        ("--folds 2000", "1797 samples cannot be divided into 2000 folds"),
        ("--data=Images --folds 2", "Images has its own test split, so folds are not supported"),
        ("--seeds 1 --seed_everything=3", "--seed_everything cannot be set, because `repeat` sets it"),
        ("--folds 2 --data.init_args.fold=0", "--data.fold cannot be set, because `repeat` sets it"),
        ("--folds 2 --data.folds=3", "--data.folds cannot be set, because `repeat` sets it"),
        (
            "--seeds 1 --run_name=mine",
            "--run_name cannot be set, because `repeat` names the runs. Use --dir to set the folder",
        ),
        ("--seeds 1 --trainer.max_epoch=2", "did you mean --trainer.max_epochs?"),
        ("--seeds 1 --dir configs/quickstart.yaml", "cannot use the study in configs/quickstart.yaml: "),
    ],
)
def test_invalid_options_are_reported_before_the_first_run(lit, options, message):
    result = lit(f"repeat -c configs/quickstart.yaml {options}")
    assert result.status == 2
    assert re.fullmatch(r"(repeat: \d+ runs, \d at a time\n)?", result.out)
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not Path("repeats").exists()


def test_missing_optuna_is_reported_with_the_install_command(lit, monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert lit("repeat --seeds 1").err == "error: toy repeat needs Optuna: pip install optuna\n"


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_killed_repeat_ends_with_the_same_metrics_as_an_uninterrupted_one(lit, workspace):
    """After `kill -9`, the `fit` processes continue. The next `repeat` waits for them or resumes their runs."""
    patched = "from lit_engine.tools.sweep import study; study.LOST_AFTER = 2; "
    code = f"{patched}from toy.__main__ import entry_point; entry_point()"
    options = f"repeat {QUICK} --trainer.max_epochs=6 --seeds 1 2 --workers 2".split()
    told = []
    for folder in ("whole", "cut"):
        words = [sys.executable, "-c", code, *options, "--dir", folder]
        if folder == "cut":
            process = subprocess.Popen(words)
            while not list(workspace.glob("cut/quickstart/*/checkpoints/best*.ckpt")):
                assert process.poll() is None
                time.sleep(0.1)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run(words, check=True, timeout=200)
        told.append({k: v for k, v in summary(folder)["metrics"].items() if "second" not in k})
    assert told[0] == told[1]
