"""LightningModules and LightningDataModules as people write them get every feature, unchanged."""

import csv
import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from lit_engine.checkpoints.io import read
from lit_engine.run.metric_names import base_of, find_metric
from lit_engine.tools.runs.columns import number


@dataclass
class Kind:
    """A module in this folder, and what is expected of its runs."""

    model: str
    data: str
    options: str = ""
    fit: tuple[str, ...] = ()  # metrics of training and validation in metrics.json
    test: tuple[str, ...] = ()
    monitor: str | None = None  # chosen for the best checkpoint
    columns: tuple[str, ...] | None = None  # of the predictions; None if they are saved as they are


INJECTED = (
    "--model.net=hydra_style.Net --model.optimizer=torch.optim.Adam --model.optimizer.lr=0.01 "
    "--model.scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau --model.scheduler.patience=0"
)
KINDS = {
    "first_example": Kind(
        "AutoEncoder", "Pictures", fit=("train_loss",), columns=("index", *(f"prediction_{k}" for k in range(3)))
    ),
    "hydra_style": Kind(
        "LitModule", "LitData", INJECTED,
        fit=("train/loss", "train/acc", "val/loss", "val/acc", "val/acc_best"), test=("test/loss", "test/acc"),
        monitor="val/loss", columns=("index", *(f"prediction_{k}" for k in range(3))),
    ),
    "metric_objects": Kind(
        "Classifier", "Data", fit=("train_loss", "train_acc", "val_loss", "val_acc"), test=("test_f1",),
        monitor="val_loss", columns=("index", *(f"prediction_{k}" for k in range(3))),
    ),
    "collection": Kind(
        "Collected", "Data",
        fit=("loss", "val/loss", "val_MulticlassAccuracy", "val_MulticlassPrecision"),
        test=("test/loss", "test_MulticlassAccuracy", "test_MulticlassPrecision"), monitor="loss",
        columns=("index", "predicted", *(f"logits_{k}" for k in range(3))),
    ),
    "plateau": Kind(
        "Plateau", "Weighted", fit=("loss/train", "acc/train", "loss/val", "acc/val"), test=("loss/test", "acc/test"),
        monitor="loss/val", columns=("index", "prediction_0", "prediction_1"),
    ),
    "several_loaders": Kind(
        "Several", "Sites",
        fit=("objective", *(f"val/{name}/dataloader_idx_{k}" for k in range(2) for name in ("loss", "my_metric"))),
        test=tuple(f"test/{name}/dataloader_idx_{k}" for k in range(2) for name in ("loss", "my_metric")),
        monitor="loss/dataloader_idx_0", columns=("index", "prediction"),
    ),
    "gan": Kind("GAN", "Pictures", fit=("g_loss", "d_loss", "val_realism")),
    "vae": Kind(
        "VAE", "Pictures", fit=("train/loss", "train/kl", "valid/loss", "valid/kl"), test=("test/loss", "test/kl"),
        monitor="valid/loss",
    ),
}  # fmt: skip
FACTS = {"epochs", "steps", "seconds", "parameters", "best_checkpoint"}


class StopAfter(Callback):
    """Sends this process SIGTERM after a number of batches."""

    def __init__(self, batches: int):
        self.left = batches

    def on_train_batch_end(self, *args):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)


def command(name, **options):
    kind = KINDS[name]
    extra = " ".join(f"--{key}={value}" for key, value in options.items())
    size = "--trainer.max_epochs=2 --trainer.log_every_n_steps=3"
    return f"fit --model {name}.{kind.model} --data {name}.{kind.data} {size} {kind.options} {extra}"


def sections_of(run):
    return json.loads((run / "metrics.json").read_text())


def columns_of(file):
    with file.open() as lines:
        return tuple(next(csv.reader(lines)))


def leaves(value, path=""):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{place}")
    else:
        yield path, value


def state_of(run):
    """The weights, optimizers, schedulers and metric states of a run, and metrics.csv."""
    content = read(run / "checkpoints" / "last.ckpt")
    parts = {name: content[name] for name in ("state_dict", "optimizer_states", "lr_schedulers", "logged_so_far")}
    with (run / "metrics.csv").open() as file:
        rows = [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    return {key: value.tolist() if isinstance(value, torch.Tensor) else value for key, value in leaves(parts)}, rows


@pytest.mark.parametrize("name", KINDS)
def test_every_command_works(lit, name):
    kind = KINDS[name]
    result = lit(command(name, run_name="a", test_after_fit="true"))
    assert result.status == 0, result.err
    run, fit = result.run, sections_of(result.run)["fit"]
    assert {key for key in fit if not key.startswith("best ")} - FACTS == set(kind.fit)
    assert [key for key in fit if key.startswith("best ")] == ([f"best {kind.monitor}"] if kind.monitor else [])
    epochs = [line for line in result.out.splitlines() if line.startswith("epoch ")]
    assert all(f"{metric} " in epochs[-1] for metric in kind.fit)
    logged = {column.removesuffix("_epoch") for column in columns_of(run / "metrics.csv")}
    assert set(kind.fit) <= logged
    assert {path.name for path in (run / "checkpoints").glob("last.ckpt")} == {"last.ckpt"}
    for stage, names in (("validate", [n for n in kind.fit if "val" in n]), ("test", kind.test)):
        result = lit(f"{stage} --run {run}")
        if names:
            assert result.status == 0, result.err
            assert set(sections_of(run)[stage]) >= set(names)
        else:
            assert result.status == 2, result.out
            assert result.err.startswith("error: ")
    result = lit(f"predict --run {run}")
    assert result.status == 0, result.err
    files = sorted((run / "predictions").glob("*"))
    if kind.columns is None:
        (file,) = files
        batches = torch.load(file, weights_only=True)
        assert sum(len(next(iter(b.values())) if isinstance(b, dict) else b) for b in batches) == 64
    else:
        assert {columns_of(file) for file in files} == {kind.columns}
        assert all(f"{file}" in result.out for file in files)
    result = lit(f"export {run}")
    assert result.status == 0, result.err
    assert "differs from `forward`" in result.out
    for file in ("index.html", "README.md"):
        assert all(base_of(metric) in (run / file).read_text() for metric in (*kind.fit, *kind.test))
    listed = lit("runs").out
    assert not kind.monitor or f"{find_metric(kind.monitor, kind.fit)} {number(fit['best ' + kind.monitor])}" in listed


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("batches", ["within an epoch", "at its end"])
def test_a_run_that_is_stopped_and_resumed_is_the_same_to_the_bit(lit, name, batches):
    whole = lit(command(name, run_name="whole"))
    assert whole.status == 0, whole.err
    steps = sections_of(whole.run)["fit"]["steps"] // (4 if name == "gan" else 2)  # batches of an epoch
    at = steps + steps // 2 if batches == "within an epoch" else steps
    stop = f"{{class_path: test_plain.StopAfter, init_args: {{batches: {at}}}}}"
    cut = lit(command(name, run_name="cut"), ["--trainer.callbacks+=" + stop])
    assert cut.status == 143, cut.err
    resumed = lit(f"fit --run {cut.run} --trainer.callbacks=null")
    assert resumed.status == 0, resumed.err
    assert state_of(resumed.run) == state_of(whole.run)


def test_runs_are_compared_by_the_metrics_that_they_have_in_common(lit):
    rates = (0.01, 0.1)
    runs = [lit(command("metric_objects", run_name=f"lr-{lr}", **{"model.learning_rate": lr})).run for lr in rates]
    lines = lit(f"compare {runs[0]} {runs[1]} --metric acc").out.splitlines()
    accuracies = {run.name: sections_of(run)["fit"]["val_acc"] for run in runs}
    assert "val_acc" in lines[0].split()
    for run in runs:
        (line,) = (line for line in lines if line.startswith(f"{run.name} "))
        assert number(accuracies[run.name]) in line.split()
