"""Ordinary LightningModules and LightningDataModules support every feature without changes."""

import csv
import gc
import json
import os
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback, LightningModule
from metric_objects import Classifier
from several_loaders import Several, Sites

from helpers import differences
from killing import at_call
from lit_engine.callbacks.predictions import PredictionTable
from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.distributed.sharded import Sharded
from lit_engine.errors import UserError
from lit_engine.load import load_data, load_model
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import find_metric, strip_stage
from lit_engine.tools.runs.columns import number


@dataclass
class Kind:
    """A module in this folder, and the expected results of its runs."""

    model: str
    data: str | None  # None if the module has its own dataloaders
    options: str = ""
    fit: tuple[str, ...] = ()  # training and validation metrics in metrics.json
    test: tuple[str, ...] = ()
    monitor: str | None = None  # metric that selects the best checkpoint
    columns: tuple[str, ...] | None = None  # prediction columns; None if predictions are saved unchanged


INJECTED = (
    "--model.net=hydra_style.Net --model.optimizer=torch.optim.Adam --model.optimizer.lr=0.01 "
    "--model.scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau --model.scheduler.patience=0"
)
KINDS = {
    "first_example": Kind(
        "AutoEncoder", "Pictures", fit=("train_loss",), columns=("index", *(f"prediction_{k}" for k in range(3)))
    ),
    "own_loaders": Kind(
        "Whole", None, fit=("val_loss",), test=("test_loss",), monitor="val_loss",
        columns=("index", *(f"prediction_{k}" for k in range(3))),
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
        fit=("loss", "val/loss", "val_loss/norm", "val_MulticlassAccuracy", "val_MulticlassPrecision"),
        test=("test/loss", "test_loss/norm", "test_MulticlassAccuracy", "test_MulticlassPrecision"), monitor="loss",
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
FACTS = {"epochs", "steps", "seconds", "parameters", "best_checkpoint", "best_mode"}


class StopAfter(Callback):
    """Sends SIGTERM to this process after a number of batches."""

    def __init__(self, batches: int):
        self.left = batches

    def on_train_batch_end(self, *args):
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGTERM)


def command(name, **options):
    kind = KINDS[name]
    extra = " ".join(f"--{key}={value}" for key, value in options.items())
    size = "--trainer.max_epochs=2 --trainer.log_every_n_steps=3"
    return f"fit {' '.join(classes_of(name))} {size} {kind.options} {extra}"


def classes_of(name):
    """Return the options that set the model and the data."""
    classes = {"model": KINDS[name].model, "data": KINDS[name].data}
    return [f"--{option}={name}.{kind}" for option, kind in classes.items() if kind]


def sections_of(run):
    return json.loads((run / "metrics.json").read_text())


def columns_of(file):
    with file.open() as lines:
        return tuple(next(csv.reader(lines)))


@pytest.mark.parametrize("name", KINDS)
def test_every_command_supports_plain_modules(lit, name):
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
            assert all(f"{metric} " in result.out for metric in names)
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
        text = (run / file).read_text()
        assert all(strip_stage(metric) in text for metric in (*kind.fit, *kind.test))
        assert "predict runs" in text
        assert "serve" not in text  # the command would fail
    listed = lit("runs").out
    assert not kind.monitor or f"{find_metric(kind.monitor, kind.fit)} {number(fit['best ' + kind.monitor])}" in listed


ENDS = ("hydra_style", "metric_objects", "plateau")  # also stopped after the last batch of an epoch


@pytest.mark.parametrize(("name", "within"), [*((name, True) for name in KINDS), *((name, False) for name in ENDS)])
def test_a_resumed_run_matches_an_uninterrupted_run_bit_for_bit(lit, name, within):
    whole = lit(command(name, run_name="whole"))
    assert whole.status == 0, whole.err
    steps = sections_of(whole.run)["fit"]["steps"] // (4 if name == "gan" else 2)  # batches per epoch
    at = steps + steps // 2 if within else steps
    stop = f"{{class_path: test_plain.StopAfter, init_args: {{batches: {at}}}}}"
    cut = lit(command(name, run_name="cut"), ["--trainer.callbacks+=" + stop])
    assert cut.status == 143, cut.err
    resumed = lit(f"fit --run {cut.run} --trainer.callbacks=null")
    assert resumed.status == 0, resumed.err
    assert differences(whole.run, resumed.run) == []


def test_compare_accepts_a_metric_name_without_the_stage(lit):
    rates = (0.01, 0.1)
    runs = [lit(command("metric_objects", run_name=f"lr-{lr}", **{"model.learning_rate": lr})).run for lr in rates]
    lines = lit(f"compare {runs[0]} {runs[1]} --metric acc").out.splitlines()
    accuracies = {run.name: sections_of(run)["fit"]["val_acc"] for run in runs}
    assert "val_acc" in lines[0].split()
    for run in runs:
        (line,) = (line for line in lines if line.startswith(f"{run.name} "))
        assert number(accuracies[run.name]) in line.split()


@pytest.mark.parametrize(
    ("name", "found"), [("plateau", "suggested: --model.lr="), ("vae", "suggested: a learning rate")]
)
def test_find_lr_suggests_a_learning_rate(lit, name, found):
    result = lit(command(name), "--find lr")
    assert result.status == 0, result.err
    assert found in result.out


@pytest.mark.parametrize(
    ("name", "suggested"), [("metric_objects", "--data.batch_size=256 ("), ("own_loaders", "--model.batch_size=128 (")]
)
def test_find_batch_size_stops_at_the_dataset_size(lit, name, suggested):
    result = lit(command(name), "--find batch_size")
    assert f"suggested: {suggested}" in result.out  # 32 · 2^k up to 300 and 200


@pytest.mark.parametrize("name", ["first_example", "metric_objects", "collection", "vae"])
def test_plot_lr_matches_the_learning_rates_of_a_run(lit, name):
    """`configure_optimizers` returns an optimizer, a dict, or lists, with a schedule per step or per epoch."""
    command_ = command(name)
    planned = lit(command_, "--plot_lr=true", "--trainer.accumulate_grad_batches=2")
    assert planned.status == 0, planned.err
    seen = []

    class Rates(Callback):
        def on_before_optimizer_step(self, trainer, pl_module, optimizer):
            seen.append(optimizer.param_groups[0]["lr"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_engine.callbacks.progress.ProgressLines", Rates)
        patch.setattr("lit_engine.session.ProgressLines", Rates)
        assert lit(command_, "--trainer.accumulate_grad_batches=2").status == 0
    (line,) = (line for line in planned.out.splitlines() if line.startswith("lr: "))
    assert line == f"lr: starts at {seen[0]:.3g}, peaks at {max(seen):.3g}, ends at {seen[-1]:.3g}"


@pytest.mark.parametrize("option", ["--find lr", "--plot_lr=true"])
def test_find_lr_and_plot_lr_reject_manual_optimization(lit, option):
    result = lit(command("gan"), option)
    assert result.status == 2
    assert result.err.strip().endswith("needs automatic optimization, but GAN optimizes manually")


def test_a_run_with_model_checkpoint_records_the_best_score_and_can_resume(lit):
    chosen = "[{class_path: ModelCheckpoint, init_args: {monitor: acc/val, mode: max, save_last: true}}]"
    fit = lit(command("plateau"), ["--trainer.callbacks=" + chosen])
    fit_section = sections_of(fit.run)["fit"]
    with (fit.run / "metrics.csv").open() as file:
        accuracies = [float(row["acc/val"]) for row in csv.DictReader(file) if row["acc/val"]]
    assert fit_section["best acc/val"] == pytest.approx(max(accuracies))
    assert (fit.run / "checkpoints" / fit_section["best_checkpoint"]).exists()
    assert read(fit.run / "checkpoints" / "last.ckpt")["global_step"] == fit_section["steps"]
    more = lit(f"fit --run {fit.run} --trainer.max_epochs=3")
    assert sections_of(more.run)["fit"]["epochs"] == 3
    assert f"checkpoint: {fit.run}/checkpoints/epoch" in lit(f"predict --run {fit.run}").out


def test_the_weights_and_the_module_of_a_run_can_be_loaded(lit):
    fit = lit(command("hydra_style", **{"trainer.precision": "64-true"}))
    module = load_model(RunDir.open(fit.run))
    weights = read(choose_checkpoint(RunDir.open(fit.run)))["state_dict"]
    assert type(module).__name__ == "LitModule"
    assert {value.dtype for value in module.parameters()} == {torch.double}
    assert all(torch.equal(value, weights[name]) for name, value in module.state_dict().items())
    assert len(load_data(RunDir.open(fit.run)).test_dataloader().dataset) == 100
    warm = lit(command("hydra_style"), f"--init_from {fit.run} --trainer.max_epochs=1")
    assert "loaded: " in warm.out


NEEDS_MORE = {
    "predict --run {run} --probabilities=true": "Classifier does not support --probabilities: return them as columns",
    "predict --run {run} --images .": "Data cannot predict on a folder of images: define predicts_on = 'images'",
    "serve {run} --port 0": "Data cannot predict on new samples: it has no `predict_from`",
    "fit --run {run} --data.folds=2": "data.folds needs a data module that extends lit_engine's SplitData",
    "fit --run {run} --data.global_batch_size=8": "data.global_batch_size needs a data module that extends",
    "fit --run {run} --data.batch_size=16": "the length of OneCycleLR was 20 and would be 38, but a resumed run",
}


def test_errors_report_what_a_plain_module_lacks_for_a_feature(lit):
    stop = "{class_path: test_plain.StopAfter, init_args: {batches: 4}}"
    run = lit(command("metric_objects", run_name="cut"), ["--trainer.callbacks+=" + stop]).run
    for typed, message in NEEDS_MORE.items():
        result = lit(shlex.split(typed.format(run=run)))
        lines = [line for line in result.err.splitlines() if line.startswith("error: ")]
        assert result.status == 2, (typed, result.err)
        assert len(lines) == 1, (typed, result.err)
        assert message in lines[0]


def test_sharding_rejects_a_module_without_configure_model():
    strategy = Sharded()
    strategy.connect(LightningModule())
    with pytest.raises(UserError, match="Sharded needs configure_model, which LightningModule lacks"):
        strategy.setup_environment()


UNUSUAL = """
import copy
from collections.abc import Callable
from functools import partial

import torch
from lightning.pytorch import LightningModule
from metric_objects import Classifier, Data
from torchdata.stateful_dataloader import StatefulDataLoader

class NoForward(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(20, 3)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

class Sampling(Classifier):
    def forward(self, x):
        return torch.randn_like(self.model(x))

    def training_step(self, batch, batch_idx):
        return self.model(batch[0]).square().mean()

class Three(Classifier):
    def forward(self, a, b, c):
        return self.model(a)

    def training_step(self, batch, batch_idx):
        return torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    validation_step = test_step = predict_step = None

class Vector(Classifier):
    def training_step(self, batch, batch_idx):
        self.log("losses", torch.ones(3))

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield from ((torch.full((20,), float(k)), k % 3) for k in range(320))

class Streaming(Data):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(Stream(), batch_size=32)

class Stateful(Data):
    def train_dataloader(self):
        return StatefulDataLoader(super().train_dataloader().dataset, batch_size=32, shuffle=True, num_workers=2)

class Sized(Stream):
    def __len__(self):
        return 320

class StatefulStream(Data):
    def train_dataloader(self):
        return StatefulDataLoader(Sized(), batch_size=32)

class Persistent(Data):
    def train_dataloader(self):
        dataset = super().train_dataloader().dataset
        return torch.utils.data.DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True)

class Accumulating(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx) / 3)
        if batch_idx % 3 == 2:
            self.optimizers().step()
            self.optimizers().zero_grad()

class Alternating(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        every, second = self.optimizers()
        self.manual_backward(super().training_step(batch, batch_idx) / 2)
        every.step()
        every.zero_grad()
        if batch_idx % 2:
            second.step()
            second.zero_grad()

    def configure_optimizers(self):
        return [torch.optim.SGD(self.model[layer].parameters(), 0.1) for layer in (0, 3)]

class Minimal(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("lowest", loss, on_step=True, on_epoch=True, reduce_fx=min)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self(batch[0]).square().mean(), on_step=True, on_epoch=True)

class Defaults(Classifier):
    def __init__(self, act: Callable = torch.nn.ReLU, slope=partial(torch.nn.LeakyReLU, 0.2), scale=torch.ones(1)):
        super().__init__()
        self.model = torch.nn.Sequential(torch.nn.Linear(20, 8), act(), torch.nn.Linear(8, 3), slope())
        self.scale = scale

    def forward(self, x):
        return self.scale * self.model(x)

class Frozen(Classifier):
    strict_loading = False

    def __init__(self, hidden: int = 32):
        super().__init__(hidden)
        torch.manual_seed(0)
        self.backbone = torch.nn.Linear(20, 20).requires_grad_(False)

    def forward(self, x):
        return self.model(self.backbone(x))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if "backbone" not in k}

class Partial(Frozen):
    on_save_checkpoint = LightningModule.on_save_checkpoint

    def state_dict(self, *args, **kwargs):
        return {k: v for k, v in super().state_dict(*args, **kwargs).items() if "backbone" not in k}

class Averaged(Classifier):
    def __init__(self):
        super().__init__()
        self.average = copy.deepcopy(self.model).requires_grad_(False)

    def on_train_batch_end(self, *args):
        for mean, weight in zip(self.average.parameters(), self.model.parameters()):
            mean.lerp_(weight.detach(), 0.1)

    def on_validation_epoch_start(self):
        self.model, self.average = self.average, self.model

    on_validation_epoch_end = on_validation_epoch_start

class Counting(Classifier):
    def __init__(self):
        super().__init__()
        self.register_buffer("validated", torch.zeros((), dtype=torch.long))

    def validation_step(self, batch, batch_idx):
        self.validated += 1
        super().validation_step(batch, batch_idx)

class WithoutDropout(Classifier):
    def on_train_epoch_start(self):
        if self.current_epoch == 0:
            self.model[2].eval()

class Skipping(Classifier):
    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 5 else None

class StepPlateau(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=9.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "monitor": "loss", "interval": "step", "frequency": 2},
        }

class Ending(Classifier):
    last_batch = 9

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if self.current_epoch == 1 and batch_idx == self.last_batch:
            self.trainer.should_stop = True

class EndingWithin(Ending):
    last_batch = 4

class Images(Classifier):
    validation_step = None

    def training_step(self, batch, batch_idx):
        return super().training_step((batch.images.flatten(1)[:, :20], batch.targets % 3), batch_idx)

class Growing(Classifier):
    def configure_optimizers(self):
        return torch.optim.Adam(self.model[3].parameters())

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.optimizers().add_param_group({"params": self.model[0].parameters()})

class MultiEpochs(torch.utils.data.DataLoader):  # as in timm
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

class Keeping(Data):
    def train_dataloader(self):
        sampler = torch.utils.data.RandomSampler(range(300), replacement=True, num_samples=10**6)
        return MultiEpochs(super().train_dataloader().dataset, batch_size=32, sampler=sampler)

class Scaled(Classifier):  # float32 rounds these outputs by more than 0.01
    def forward(self, x):
        y = self.model(x)
        return {"scaled": 1e6 * y, "masked": y.masked_fill(y > 0, -torch.inf), "bias": self.model[0].bias.sum()}

    def training_step(self, batch, batch_idx):
        return self.model(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx))

class Recurrent(Scaled):
    def __init__(self):
        super().__init__()
        self.model = self.backend = torch.nn.LSTM(5, 3, batch_first=True)

    def forward(self, x):
        h, (state, _) = self.backend(x.unflatten(1, (-1, 5)))
        return h, state

    def training_step(self, batch, batch_idx):
        return self(batch[0])[0].square().mean()

class Lengths(Data):
    def predict_dataloader(self):
        return torch.utils.data.DataLoader([(torch.ones(5 * (1 + k // 8)), 0) for k in range(16)], batch_size=8)

class Quiet(Classifier):
    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 0.5)

class Positional(Data):
    def test_dataloader(self):
        return torch.utils.data.DataLoader(super().test_dataloader().dataset, 32)

class Odd(Classifier):
    def predict_step(self, batch, batch_idx):
        return object()

class Two(Data):
    def val_dataloader(self):
        return [super().val_dataloader()] * 2

class Empty(Data):
    def train_dataloader(self):
        return torch.utils.data.DataLoader([], batch_size=4)

class Diverging(Classifier):
    def validation_step(self, batch, batch_idx, dataloader_idx=0):
        self.log("val_loss", float("nan") if dataloader_idx and not self.trainer.sanity_checking else 1.0)
"""


OLD = """
import pytorch_lightning
from metric_objects import Classifier
from several_loaders import Several, Sites

class PytorchLightning(pytorch_lightning.LightningModule):
    pass

class Hook(Classifier):
    def validation_epoch_end(self, outputs):
        pass
"""


@pytest.fixture
def unusual(workspace, monkeypatch):
    """Make a module with unusual code importable."""
    (workspace / "unusual.py").write_text(UNUSUAL)
    monkeypatch.syspath_prepend(workspace)
    sys.modules.pop("unusual", None)


def line_of_error(result):
    assert result.status == 2, result.err
    (line,) = (line for line in result.err.splitlines() if line.startswith("error: "))
    return line


def test_unusual_code_works_or_causes_a_one_line_error(lit, unusual):
    fit = "fit --trainer.max_epochs=1"
    run = lit(f"{fit} --model unusual.Odd --data metric_objects.Data").run
    assert "predict_step returned object, which cannot be saved" in line_of_error(lit(f"predict --run {run}"))
    run = lit(f"{fit} --model unusual.NoForward --data metric_objects.Data").run
    for again in (f"predict --run {run}", f"export {run}"):
        assert "NoForward has no forward" in line_of_error(lit(again))
    run = lit(f"{fit} --model unusual.Sampling --data metric_objects.Data").run
    assert "because `forward` draws random numbers" in line_of_error(lit(f"export {run}"))
    vector = lit(f"{fit} --model unusual.Vector --data metric_objects.Data")
    assert "the tensor must have a single element" in line_of_error(vector)
    run = lit(f"{fit} --model metric_objects.Classifier --data unusual.Positional").run
    for again in (f"predict --run {run}", f"export {run}"):
        assert "pass the loader's arguments by name (batch_size=32)" in line_of_error(lit(again))


def test_an_empty_training_dataloader_causes_a_one_line_error(lit, unusual):
    done = lit("fit --model unusual.Ending --data unusual.Empty --epochs 1")
    assert "the training dataloader is empty" in line_of_error(done)


def test_a_validation_loss_that_is_not_finite_stops_the_run(lit, unusual):
    done = lit("fit --model unusual.Diverging --data unusual.Two --epochs 2")
    assert "epoch 0: val_loss/dataloader_idx_1 is nan" in line_of_error(done)


USES = "old.PytorchLightning uses pytorch_lightning, so import lightning.pytorch instead"


@pytest.mark.parametrize(("options", "message"), [
    ("--model old.PytorchLightning", USES),
    ("-c old.yaml", USES),
    ("--model old.Hook", "Support for `validation_epoch_end` has been removed"),
    ("--model old.py", "old.py is a file; use a class instead, such as old.NAME"),
])  # fmt: skip
def test_outdated_code_and_file_paths_cause_a_one_line_error(lit, workspace, monkeypatch, options, message):
    pytest.importorskip("pytorch_lightning")
    (workspace / "old.py").write_text(OLD)
    monkeypatch.syspath_prepend(workspace)
    sys.modules.pop("old", None)
    (workspace / "old.yaml").write_text("model:\n  class_path: old.PytorchLightning\n")
    assert message in line_of_error(lit(f"fit {options} --data metric_objects.Data --epochs 1"))


@pytest.mark.parametrize("name", ["Scaled", "Recurrent"])
def test_dict_and_tuple_outputs_of_forward_can_be_exported(lit, unusual, name):
    run = lit(f"fit --model unusual.{name} --data metric_objects.Data --trainer.max_epochs=1").run
    exported = lit(f"export {run}")
    assert exported.status == 0, exported.err


def test_exporting_inputs_of_different_lengths_causes_a_one_line_error(lit, unusual):
    run = lit("fit --model unusual.Recurrent --data unusual.Lengths --trainer.max_epochs=1").run
    assert "the file rejects a batch" in line_of_error(lit(f"export {run}"))


@pytest.mark.parametrize("data", ["Streaming", "Keeping"])
def test_an_iterable_dataset_starts_over_when_a_run_resumes_mid_epoch(lit, unusual, data):
    """A loader that keeps its own iterator also starts over."""
    stop = "{class_path: test_plain.StopAfter, init_args: {batches: 4}}"
    options = "--trainer.max_epochs=1 --trainer.max_steps=50"
    cut = lit(f"fit --model plateau.Plateau --data unusual.{data} {options}", ["--trainer.callbacks+=" + stop])
    assert cut.status == 143, cut.err
    resumed = lit(f"fit --run {cut.run} --trainer.callbacks=null")
    assert resumed.status == 0, resumed.err
    assert "warning: the dataloader cannot resume mid-epoch" in resumed.out


@pytest.mark.parametrize("data", ["Stateful", "StatefulStream"])
def test_a_stateful_dataloader_from_torchdata_resumes_bit_for_bit(lit, unusual, monkeypatch, data):
    # torch waits this long for a worker of an iterator that is garbage-collected. The default is 5 s.
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    fit = f"fit --model metric_objects.Classifier --data unusual.{data}"
    fit += " --trainer.max_epochs=2 --trainer.max_steps=20 --trainer.log_every_n_steps=3"
    whole = lit(f"{fit} --run_name whole")
    assert whole.status == 0, whole.err
    cut = lit(
        f"{fit} --run_name cut", ["--trainer.callbacks+={class_path: test_plain.StopAfter, init_args: {batches: 14}}"]
    )
    assert cut.status == 143, cut.err
    resumed = lit(f"fit --run {cut.run} --trainer.callbacks=null")
    assert "cannot resume mid-epoch" not in resumed.out
    assert differences(whole.run, resumed.run) == []
    gc.collect()


SCHEDULED = "{class_path: GradientAccumulationScheduler, init_args: {scheduling: {0: 1, 1: 3}}}"


@pytest.mark.parametrize(("options", "batch"), [
    (["--model=unusual.Accumulating", "--trainer.limit_val_batches=0"], 10),  # validation would clear the gradients
    (["--model=unusual.Accumulating"], 14),
    (["--model=unusual.Alternating"], 13),
    (["--model=unusual.Minimal"], 13),
    (["--model=metric_objects.Classifier", "--trainer.callbacks+=" + SCHEDULED], 13),
    (["--model=metric_objects.Classifier", "--trainer.accumulate_grad_batches=2", "--trainer.val_check_interval=3"], 0),
    (["--model=unusual.Averaged"], 0),
    (["--model=unusual.Counting"], 0),
    (["--model=unusual.Skipping"], 7),
    (["--model=unusual.StepPlateau"], 14),
    (["--model=unusual.StepPlateau", "--trainer.val_check_interval=2"], 0),
    (["--model=unusual.Images", "--data=toy.data.Digits", "--data.batch_size=100"], 3),
    (["--model=unusual.WithoutDropout"], 13),
    (["--model=unusual.WithoutDropout"], 0),
])  # fmt: skip
def test_resuming_restores_state_changed_by_hooks(lit, unusual, monkeypatch, options, batch):
    fit = "fit --data=metric_objects.Data --trainer.max_epochs=2 --trainer.log_every_n_steps=1"
    whole = lit(fit, options, "--run_name whole")
    assert whole.status == 0, whole.err
    with monkeypatch.context() as patch:
        if batch:  # an epoch has 10 batches
            at_call(patch, Classifier, "training_step", batch, signal.SIGTERM)
        else:
            at_call(patch, Classifier, "validation_step", 3, signal.SIGTERM)  # the first two are the sanity check
        cut = lit(fit, options, "--run_name cut")
    assert cut.status == 143, cut.err
    assert lit(f"fit --run {cut.run}").status == 0
    assert differences(whole.run, cut.run) == []


@pytest.mark.parametrize(("name", "steps"), [("Ending", 20), ("EndingWithin", 15)])
def test_a_run_stopped_by_its_module_counts_as_finished(lit, unusual, name, steps):
    fit = f"fit --model unusual.{name} --data metric_objects.Data --trainer.max_epochs=4 --name a"
    run = lit(fit).run
    before = (run / "metrics.csv").read_text(), (run / "metrics.json").read_text()
    for again in (f"fit {run}", f"{fit} --resume"):
        assert "nothing to do: the run has already finished" in lit(again).out
    assert before == ((run / "metrics.csv").read_text(), (run / "metrics.json").read_text())
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == steps
    assert lit(f"fit {run} --trainer.max_epochs=3").status == 0
    assert read(run / "checkpoints" / "last.ckpt")["global_step"] == 30


def test_default_arguments_may_be_objects_that_the_config_omits(lit, unusual):
    run = lit("fit --data=metric_objects.Data --model=unusual.Defaults --trainer.max_epochs=1").run
    assert yaml.safe_load((run / "config.yaml").read_text())["model"] == {"class_path": "unusual.Defaults"}
    assert lit(f"fit {run}").status == 0
    assert lit(f"test {run}").status == 0


@pytest.mark.parametrize(("options", "stop"), [
    ("save_on_train_epoch_end: true", 0), ("save_on_train_epoch_end: false", 0), ("save_on_train_epoch_end: false", 4),
    ("every_n_train_steps: 5", 4),
])  # fmt: skip
def test_a_fork_of_the_best_checkpoint_matches_its_parent(lit, monkeypatch, options, stop):
    """The first validation is the best. The parent may have been stopped and resumed during this validation."""
    best = f"{{class_path: ModelCheckpoint, init_args: {{monitor: val_loss, mode: max, {options}}}}}"
    fit = "fit --model=metric_objects.Classifier --data=metric_objects.Data --trainer.max_epochs=2"
    with monkeypatch.context() as patch:
        at_call(patch, Classifier, "validation_step", stop, signal.SIGTERM)  # the first two are the sanity check
        run = lit(fit, [f"--trainer.callbacks=[{best}]"]).run
    assert lit(f"fit {run}").status == 0
    fork = lit(f"fit --fork {run}@best")
    assert fork.status == 0, fork.err
    assert differences(run, fork.run) == []


def test_the_curves_of_a_fork_with_two_optimizers_have_a_time_axis(lit):
    """The global step counts the steps of both optimizers, but metrics.csv counts batches."""
    child = lit(f"fit --fork {lit(command('gan')).run} --epochs 3 --name child").run
    assert lit(f"compare {child} --metric val_realism --html page.html").status == 0
    assert "val_realism by minutes" in Path("page.html").read_text()


@pytest.mark.parametrize("options", ["", "--trainer.val_check_interval=5"])
def test_resuming_from_an_interrupted_validation_can_disable_validation(lit, monkeypatch, options):
    fit = f"fit --model=metric_objects.Classifier --data=metric_objects.Data --trainer.max_epochs=2 {options}"
    with monkeypatch.context() as patch:
        at_call(patch, Classifier, "validation_step", 3, signal.SIGTERM)  # the first two are the sanity check
        cut = lit(fit)
    resumed = lit(f"fit {cut.run} --trainer.limit_val_batches=0")
    assert resumed.status == 0, resumed.err
    assert read(cut.run / "checkpoints" / "last.ckpt")["global_step"] == 20


@pytest.mark.parametrize(("model", "average"), [("Frozen", ""), ("Frozen", "{class_path: EMA}"), ("Partial", "")])
def test_checkpoints_may_omit_weights_if_strict_loading_is_false(lit, unusual, model, average):
    stop = "{class_path: test_plain.StopAfter, init_args: {batches: 14}}"
    fit = f"fit --data=metric_objects.Data --model=unusual.{model} --trainer.max_epochs=2"
    run = lit(fit, [f"--trainer.callbacks=[{stop}, {average}]"]).run
    resumed = lit(f"fit {run}", [f"--trainer.callbacks=[{average}]"])
    assert resumed.status == 0, resumed.err
    assert lit(f"test {run}").status == 0
    assert "backbone.weight" not in read(run / "checkpoints" / "last.ckpt")["state_dict"]
    forked = lit(f"fit --fork {run} --trainer.max_epochs=3 --trainer.callbacks=null")
    assert forked.status == 0, forked.err
    assert "not restored" not in forked.err
    if model == "Frozen":
        assert "of a different shape" in lit(f"test {run} --model.hidden=64").err


def test_a_parameter_group_added_by_a_hook_prevents_resuming_but_not_forking(lit, unusual):
    stop = "--trainer.callbacks+={class_path: test_plain.StopAfter, init_args: {batches: 14}}"
    run = lit("fit --data=metric_objects.Data --model=unusual.Growing --trainer.max_epochs=2", [stop]).run
    resumed = lit(f"fit {run} --trainer.callbacks=null")
    assert "a different number of parameter groups" in line_of_error(resumed)
    forked = lit(f"fit --fork {run} --trainer.callbacks=null")
    assert forked.status == 0, forked.err


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stopped_run_does_not_wait_for_its_workers(unusual, workspace, number):
    words = "fit --model metric_objects.Classifier --data unusual.Persistent --trainer.max_epochs=500 --run_name a"
    # A background job of a shell may ignore SIGINT.
    child = subprocess.Popen(
        [sys.executable, "-m", "toy", *words.split()], stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    for line in child.stdout:
        if line.startswith("epoch 1 "):
            child.send_signal(number)
    assert child.wait(60) == 128 + number


def test_lr_option_sets_the_learning_rate_without_a_config(lit):
    run = lit("fit --model metric_objects.Classifier --data metric_objects.Data --lr 0.5 --epochs 1").run
    assert yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]["learning_rate"] == 0.5


def test_load_data_supports_a_module_with_its_own_dataloaders(lit):
    run = RunDir(lit(command("own_loaders")).run)
    data = load_data(run, "fit")
    assert data.module.prepared
    assert sum(len(images) for images, _ in data.train_dataloader()) == 200
    assert len(load_data(run, "test").test_dataloader().dataset) == 64


def test_commands_need_data_or_a_module_with_dataloaders(lit):
    for command in ("fit", "test --ckpt_path=last.ckpt"):
        message = line_of_error(lit(f"{command} --model metric_objects.Classifier"))
        assert message.startswith("error: Classifier has no dataloaders: set --data to a LightningDataModule")


def test_reports_that_no_best_checkpoint_is_kept_without_a_validation_loss(lit, unusual):
    often = "--trainer.val_check_interval=0.25"
    result = lit(f"fit --model unusual.Quiet --data metric_objects.Data --epochs 2 {often}")
    assert result.out.count("no best checkpoint is kept, because no validation loss is logged") == 1


class Described(Sites):
    def inputs(self, split):
        return {index: {"file": f"{index}.png"} for index in range(60)}


def test_inputs_of_the_test_split_are_not_added_to_several_tables(trainer, tmp_path):
    table = PredictionTable(tmp_path / "test.csv")
    trainer(callbacks=[table]).predict(Several(), datamodule=Described())
    assert {columns_of(file) for file in table.files} == {("index", "prediction")}


def test_predictions_of_two_processes_match_one_process(lit):
    run = lit(command("first_example")).run
    assert lit(f"predict --run {run}").status == 0
    (file,) = (run / "predictions").glob("*.csv")
    alone = np.loadtxt(file, delimiter=",", skiprows=1)
    file.unlink()
    two = shlex.split(f"predict --run {run} --trainer.devices=2 --trainer.strategy=ddp --trainer.accelerator=cpu")
    done = subprocess.run([sys.executable, "-m", "toy", *two], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-2000:]
    assert alone.shape == (39, 4)  # an odd number, so the shares differ
    np.testing.assert_allclose(np.loadtxt(file, delimiter=",", skiprows=1), alone, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_repeat_supports_plain_modules(lit, name):
    kind = KINDS[name]
    result = lit(command(name).replace("fit ", "repeat ", 1), "--seeds 1 2")
    assert result.status == 0, result.err
    (summary,) = Path("repeats").rglob("summary.json")
    metrics = json.loads(summary.read_text())["metrics"]
    assert all(metrics[metric]["n"] == 2 for metric in kind.fit if "dataloader" not in metric)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_sweep_supports_plain_modules(lit, name):
    metric = KINDS[name].monitor or KINDS[name].fit[-1]
    options = [word for word in command(name).split() if word.startswith("--model.")]
    words = ["toy", "fit", *classes_of(name), *options]
    content = {
        "method": "grid",
        "metric": {"name": metric, "goal": "minimize"},
        "parameters": {"seed_everything": {"values": [1, 2]}},
        "command": [*words, "--trainer.max_epochs=1", "--trainer.log_every_n_steps=3", "${args}"],
    }
    Path("sweep.yaml").write_text(yaml.safe_dump(content))
    result = lit("sweep sweep.yaml --workers 2")
    assert result.status == 0, result.out + result.err
    assert len(list(Path("sweeps").rglob("last.ckpt"))) == 2
    assert f"{metric} " in result.out
