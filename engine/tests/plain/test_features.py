"""Tests features of plain modules that docs/lightning.md lists but test_plain.py does not cover."""

import csv
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from collection import Collected
from lightning.pytorch import LightningDataModule, LightningModule
from metric_objects import Classifier, Data
from safetensors.torch import load_file
from test_plain import KINDS, command, sections_of
from torch.utils.data import DataLoader, Dataset, TensorDataset

from helpers import differences, run_in
from lit_engine.callbacks import figures, progress
from lit_engine.checkpoints.io import read
from lit_engine.load import load_model
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import strip_stage
from lit_engine.training.signals import Signals


class Labelled(Classifier):
    """Predicts columns that `compare --test` can use."""

    def predict_step(self, batch, batch_idx):
        return {"prediction": self(batch[0]).argmax(dim=1), "target": batch[1]}


class Returning(Collected):
    """Returns logits and targets from test_step, as in tutorials. Its batches are dicts."""

    def test_step(self, batch, batch_idx):
        super().test_step(batch, batch_idx)
        return {"logits": self(batch["x"]), "targets": batch["y"]}


class FromFiles(Data):
    """Predicts on a folder of files, each with the 20 values of a sample."""

    predicts_on = "images"

    def predict_from(self, folder):
        self.files = sorted(Path(folder).glob("*.txt"))
        return {number: {"file": file.name} for number, file in enumerate(self.files)}

    def predict_dataloader(self):
        samples = torch.stack([torch.from_numpy(np.loadtxt(file, dtype=np.float32)) for file in self.files])
        return DataLoader(TensorDataset(samples), batch_size=2)


class FromTable(FromFiles):
    """Predicts on a table without a header, with one sample per line."""

    predicts_on = "table"

    def predict_from(self, file):
        self.files = [Path(file)]
        return {number: {"line": line} for number, line in enumerate(Path(file).read_text().splitlines())}

    def predict_dataloader(self):
        return DataLoader(TensorDataset(torch.from_numpy(np.loadtxt(self.files[0], dtype=np.float32))), batch_size=2)


class Mean(LightningModule):
    """Estimates a mean by gradient descent from 0 with a learning rate of 0.1."""

    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        return (self.mean - batch[0]).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("val_value", batch[0].mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Three(LightningDataModule):
    """Three samples in two batches of unequal size."""

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.tensor([0.0, 0.0, 3.0])), batch_size=2)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.tensor([1.0, 2.0, 3.0, 6.0])), batch_size=1)


class Padded(Mean):
    """Logs a metric at the end of each training epoch, and predicts more values for later batches."""

    def on_train_epoch_end(self):
        self.log("estimate", self.mean)

    def test_step(self, batch, batch_idx):
        self.log("value", batch[0].mean())

    def predict_step(self, batch, batch_idx):
        return batch[0][:, None].expand(-1, batch_idx + 1)


class ThreeWithTest(Three):
    """Data that uses the training samples as the test split."""

    def test_dataloader(self):
        return self.train_dataloader()


class Named(Three):
    """Returns a dict of training loaders, and counts how many times it is created."""

    created = 0

    def train_dataloader(self):
        type(self).created += 1
        return {"a": super().train_dataloader()}


class OfNamed(Mean):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch["a"], batch_idx)


def test_loaders_are_created_only_once(lit):
    """Formatting a data module as text makes Lightning create its loaders, and jsonargparse does so for debugging."""
    result = lit("fit --model=test_features.OfNamed --data=test_features.Named --trainer.max_epochs=1")
    assert result.status == 0, result.err
    assert Named.created == 1
    assert LightningDataModule.__str__ is not object.__str__


def rows_of(file):
    with file.open() as lines:
        return list(csv.DictReader(lines))


def test_epoch_end_metrics_are_recorded_and_ragged_predictions_are_padded(lit):
    run = lit("fit --model=test_features.Padded --data=test_features.ThreeWithTest --trainer.max_epochs=2").run
    estimate = json.loads((run / "metrics.json").read_text())["fit"]["estimate"]
    assert estimate == pytest.approx(float(rows_of(run / "metrics.csv")[-1]["estimate"]), abs=1e-6)
    assert lit(f"predict {run}").status == 0
    (file,) = (run / "predictions").glob("*.csv")
    assert [[*row.values()] for row in rows_of(file)] == [
        ["0", "0.0", ""],
        ["1", "0.0", ""],
        ["2", "3.0", "3.0"],
    ]


def test_the_bar_shows_the_metrics_that_are_logged_with_prog_bar(lit, monkeypatch):
    shown = set()
    monkeypatch.setattr("lit_engine.session.ProgressLines", lambda: progress.TerminalProgress(Signals()))
    monkeypatch.setattr(progress, "SECONDS", 0)
    monkeypatch.setattr(progress, "display", lambda *args: shown.update(re.findall(r"[a-z_]+(?= \d)", args[-1])) or "")
    assert lit(command("metric_objects")).status == 0
    assert {"train_loss_step", "val_loss"} <= shown  # val_loss selects the best checkpoint
    assert not shown & {"train_acc", "val_acc"}


@pytest.fixture
def drawn(monkeypatch):
    found, draw = {}, figures.learning_curves
    monkeypatch.setattr(figures, "learning_curves", lambda curves, best: found.update(curves) or draw(curves, best))
    return found


def test_metrics_that_are_only_logged_in_training_have_learning_curves(lit, drawn):
    assert lit(command("gan"), "--trainer.callbacks+=Figures").status == 0
    splits = {name: set(curves) for name, curves in drawn.items()}
    assert splits == {"realism": {"val"}, "g_loss": {"train"}, "d_loss": {"train"}}


def test_learning_curves_plot_training_and_validation_values_together(lit, drawn):
    run = lit(command("metric_objects"), "--trainer.callbacks+=Figures").run
    assert {name: set(curves) for name, curves in drawn.items()} == {"loss": {"train", "val"}, "acc": {"train", "val"}}
    recorded = [float(row["val_acc"]) for row in rows_of(run / "metrics.csv") if row["val_acc"]]
    assert [value for _, value in drawn["acc"]["val"]] == recorded
    assert (run / "figures" / "learning_curves.png").exists()


@pytest.mark.parametrize("name", ["collection", "vae"])  # batches are dicts, or tuples with images
def test_metrics_and_images_are_logged_to_tensorboard(lit, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = lit(command(name), "-c configs/overlays/tensorboard.yaml --trainer.callbacks+=Figures")
    assert done.status == 0, done.err
    events = EventAccumulator(str(done.run / "tensorboard")).Reload()
    unchanged = {metric for metric in KINDS[name].fit if not strip_stage(metric).startswith("loss")}
    assert unchanged <= set(events.Tags()["scalars"])
    assert ("train/images" in events.Tags()["images"]) == (name == "vae")


def test_unsupported_test_step_outputs_are_not_drawn(lit):
    fit = "fit --model test_features.Returning --data collection.Data --epochs 1 --trainer.callbacks+=Figures"
    done = lit(fit, "--test_after_fit=true")
    assert done.status == 0, done.err
    assert {path.name for path in (done.run / "figures").iterdir()} == {"learning_curves.png"}


class Boxes(Mean):
    """Trains on box targets. Misclassifies all test images, which come with file names."""

    class_names = ("cat", "dog")
    confusion_matrix = torch.eye(2)

    def forward(self, images):
        return self.mean * images.mean()

    def training_step(self, batch, batch_idx):
        return self(batch[0])

    def test_step(self, batch, batch_idx):
        return {"logits": torch.tensor([[2.0, 1.0], [4.0, 1.0]]), "targets": batch[1]}


def collate(samples):
    images, targets = zip(*samples, strict=True)
    return torch.stack(images), list(targets)


class BoxData(LightningDataModule):
    """Images with five channels."""

    def train_dataloader(self):
        return DataLoader([(torch.rand(5, 8, 8), {"box": 1})] * 4, 2, collate_fn=collate)

    def test_dataloader(self):
        return DataLoader([(torch.rand(5, 8, 8), 1, f"{name}.jpg") for name in "ab"], 2)


def test_images_may_have_any_targets_and_channels(lit, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    captions, draw = {}, figures.gallery
    monkeypatch.setattr(figures, "gallery", lambda *args: captions.update({args[2]: args[1]}) or draw(*args))
    overlay = "-c configs/overlays/tensorboard.yaml --trainer.callbacks+=Figures --test_after_fit=true"
    done = lit(f"fit --model test_features.Boxes --data test_features.BoxData --epochs 1 {overlay}")
    assert done.status == 0, done.err
    assert captions["train: images as the net sees them"] == ["", ""]
    wrong = [f"true: dog\npredicted: cat\n{share}%, index {index}" for share, index in ((95, 1), (73, 0))]
    assert captions["test: most confidently wrong"] == wrong
    assert EventAccumulator(str(done.run / "tensorboard")).Reload().Tags()["graph"]


class Unnamed(Boxes):
    """Counts confusions, but does not name the classes."""

    class_names = None


def test_confusion_matrices_need_no_class_names(lit):
    options = "--trainer.callbacks+=Figures --test_after_fit=true"
    done = lit(f"fit --model test_features.Unnamed --data test_features.BoxData --epochs 1 {options}")
    assert done.status == 0, done.err
    assert (done.run / "figures" / "test_confusion_matrix.png").exists()


class Unusual(Boxes):
    """Logs values that are not numbers, names the classes in an array, and counts confusions per label."""

    class_names = np.array(["cat", "dog"])

    def __init__(self, labels: int = 0):
        super().__init__()
        self.confusion_matrix = torch.ones(labels, 2, 2) if labels else torch.eye(2)

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("g_loss", loss, on_step=False, on_epoch=True)
        return loss

    def on_train_epoch_end(self):
        self.logger.log_metrics({"warm": True, "phase": "start", "epoch": 0}, step=self.global_step)


@pytest.mark.parametrize("labels", [0, 3])
def test_values_that_cannot_be_drawn_are_left_out_of_the_figures(lit, drawn, labels):
    options = "--trainer.callbacks+=Figures --test_after_fit=true"
    model = f"test_features.Unusual --model.labels={labels}"
    done = lit(f"fit --model {model} --data test_features.BoxData --epochs 1 {options}")
    assert done.status == 0, done.err
    assert {name: set(curves) for name, curves in drawn.items()} == {"g_loss": {"train"}}
    assert (done.run / "figures" / "test_confusion_matrix.png").exists() == (labels == 0)


class Shared(Mean):
    """Logs the same names in all stages, and predicts a list with one tensor per sample, or NumPy arrays."""

    def __init__(self, arrays: bool = False):
        super().__init__()
        self.arrays = arrays

    def training_step(self, batch, batch_idx):
        self.log("stage", 1.0)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch, batch_idx):
        self.log("stage", 2.0)

    def test_step(self, batch, batch_idx):
        self.log("stage", 3.0)

    def predict_step(self, batch, batch_idx):
        if self.arrays:
            return {"prediction": [np.arange(1200) for _ in batch[0]]}
        return [torch.stack([value, value + 1, value + 2]) for value in batch[0]]


class Stepwise(Mean):
    def validation_step(self, batch, batch_idx):
        self.log("seen", batch[0].mean(), on_step=True, on_epoch=True)


def test_validation_metrics_logged_per_step_are_not_recorded_as_training_metrics(lit):
    run = lit("fit --model=test_features.Stepwise --data=test_features.Three --epochs 1").run
    fit = json.loads((run / "metrics.json").read_text())["fit"]
    assert {name: fit[name] for name in fit if "seen" in name} == {"val/seen": 3.0}


class InputsByName(NamedTuple):
    value: torch.Tensor
    target: torch.Tensor
    scale: torch.Tensor


class Scaled(Mean):
    """Module whose `forward` returns its inputs, which are the first and third elements of the batch."""

    def forward(self, value, scale):
        return torch.stack([value, scale], dim=1)

    def training_step(self, batch, batch_idx):
        return 0 * self.mean

    def validation_step(self, batch, batch_idx):
        pass


class ScaledData(Three):
    def train_dataloader(self):
        return DataLoader([InputsByName(*torch.tensor([n, 10.0 * n, 100.0 * n])) for n in range(3)], batch_size=2)

    val_dataloader = test_dataloader = train_dataloader


def test_the_inputs_of_forward_are_fields_of_a_named_tuple(lit):
    run = lit("fit --model=test_features.Scaled --data=test_features.ScaledData --epochs 1").run
    assert lit(f"predict {run}").status == 0
    rows = [[float(value) for value in row.values()] for row in rows_of(next((run / "predictions").glob("*.csv")))]
    assert rows == [[n, n, 100 * n] for n in range(3)]


class Optional(Scaled):
    """Module with an optional input, as in Hugging Face's models."""

    def forward(self, value, scale=None, labels=None):
        assert labels is None
        return super().forward(value, torch.zeros(()) if scale is None else scale)


class AnyName(Optional):
    def forward(self, **inputs):
        return super().forward(**inputs)


class OptionalData(Three):
    def train_dataloader(self):
        samples = [{"labels": 0, "scale": torch.tensor(100.0 * n), "value": torch.tensor(n)} for n in range(3)]
        return DataLoader(samples, batch_size=2)

    val_dataloader = test_dataloader = train_dataloader


@pytest.mark.parametrize("model", ["Optional", "AnyName"])
def test_optional_inputs_of_forward_are_found_by_name(lit, model):
    run = lit(f"fit --model=test_features.{model} --data=test_features.OptionalData --epochs 1").run
    assert lit(f"predict {run}").status == 0
    rows = [[float(value) for value in row.values()] for row in rows_of(next((run / "predictions").glob("*.csv")))]
    assert rows == [[n, n, 100 * n] for n in range(3)]
    assert lit(f"export {run} --format pt2").status == 0


class LateLayers(Mean):
    """Creates layers in `setup` or `configure_model`."""

    def __init__(self, in_setup: bool = True):
        super().__init__()
        self.in_setup, self.layer = in_setup, None

    def create(self):
        if self.layer is None:
            self.layer = torch.nn.Linear(1, 1)

    def setup(self, stage):
        if self.in_setup:
            self.create()

    def configure_model(self):
        self.create()

    def training_step(self, batch, batch_idx):
        return (self.layer(batch[0][:, None]) - self.mean).pow(2).mean()


@pytest.mark.parametrize("in_setup", ["true", "false"])
def test_layers_created_by_hooks_are_forked_and_initialized(lit, in_setup):
    model = f"--model=test_features.LateLayers --model.in_setup={in_setup} --data=test_features.Three"
    whole = lit(f"fit {model} --epochs 4 --name whole").run
    part = lit(f"fit {model} --epochs 2 --name part").run
    fork = lit(f"fit --fork {part} --epochs 4 --name fork")
    assert fork.status == 0, fork.err
    assert differences(whole, fork.run) == []
    initialized = lit(
        f"fit {model} --init_from {whole}/checkpoints/last.ckpt --trainer.limit_train_batches=1 --epochs 1"
    )
    assert "  loaded: 3\n" in initialized.out
    assert "missing" not in initialized.out
    assert "  loaded: 3\n" in lit(f"fit {model} --init_from {whole} --epochs 1 --find lr").out


class SetupLayers(LateLayers):
    def configure_model(self):
        """Do nothing, so that only `setup` creates layers."""


def test_a_module_whose_setup_creates_layers_can_be_loaded(lit):
    run = lit("fit --model=test_features.SetupLayers --data=test_features.ThreeWithTest --epochs 1").run
    weights = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    loaded = load_model(RunDir(run), "last")
    assert loaded.layer.weight.equal(weights["layer.weight"])
    assert not loaded.training


class NewLayers(Mean):
    """Module with its own dataloaders, and with weights outside `net`. Each call of `setup` changes all weights."""

    train_dataloader = Three.train_dataloader
    test_dataloader = Three.train_dataloader

    def setup(self, stage):
        torch.nn.init.ones_(self.mean)
        self.net = torch.nn.Linear(1, 1)
        if stage == "fit":
            self.val_loader = Three().val_dataloader()

    def val_dataloader(self):
        return self.val_loader

    def validation_step(self, batch, batch_idx):
        self.log("output", self(torch.zeros(1)).squeeze())

    def forward(self, values):
        return self.net(values[:, None])[:, 0] + self.mean


class ExampleLayers(NewLayers):
    """Module with an example input, but without a test split."""

    example_input_array = torch.arange(3.0)
    test_dataloader = LightningModule.test_dataloader


def test_all_commands_keep_the_weights_that_setup_changes(lit):
    run = lit("fit --model=test_features.NewLayers --epochs 1 --trainer.precision=64-true").run
    weights = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for words in ("validate", "predict", "export --format=safetensors"):
        assert lit(f"{words} {run} --ckpt_path=last").status == 0
    output = pytest.approx(float(weights["net.bias"] + weights["mean"]), rel=1e-4)  # for the value 0
    assert RunDir(run).metrics()["validate"]["val/output"] == output
    assert RunDir(run).predictions()[0]["prediction"] == output
    exported = load_file(run / "export" / "model.safetensors")
    assert exported.keys() == weights.keys()
    assert all(value.equal(weights[name].float()) for name, value in exported.items())
    loaded = load_model(RunDir(run), "last")
    for stage in ("predict", "test"):
        loaded.setup(stage)
        assert loaded.mean.equal(weights["mean"])


def test_a_module_with_an_example_input_is_exported_without_a_test_split(lit):
    run = lit("fit --model=test_features.ExampleLayers --epochs 1").run
    exported = lit(f"export {run} --format=safetensors")
    assert exported.status == 0, exported.err
    assert "(output values; 3 samples)" in exported.out


class SharedData(ThreeWithTest):
    def val_dataloader(self):
        return self.train_dataloader()


def test_metrics_logged_under_the_same_name_in_all_stages_are_kept_apart(lit):
    fit = lit("fit --model=test_features.Shared --data=test_features.SharedData --epochs 2 --test_after_fit=true")
    metrics = json.loads((fit.run / "metrics.json").read_text())
    assert "test/stage 3.0000" in fit.out.splitlines()
    assert (metrics["fit"]["stage"], metrics["fit"]["val/stage"], metrics["test"]["test/stage"]) == (1, 2, 3)


def test_predictions_may_be_a_list_of_tensors_or_arrays(lit):
    for arrays in ("false", "true"):
        options = f"--model.arrays={arrays} --epochs 1 --name {arrays}"
        run = lit(f"fit --model=test_features.Shared --data=test_features.ThreeWithTest {options}").run
        assert lit(f"predict {run}").status == 0
        rows = rows_of(next((run / "predictions").glob("*.csv")))
        if arrays == "true":
            assert json.loads(rows[0]["prediction"]) == list(range(1200))
        else:
            assert [float(row["prediction_1"]) - float(row["prediction_0"]) for row in rows] == [1] * len(rows)
        assert [int(row["index"]) for row in rows] == list(range(len(rows)))


class Counting(Mean):
    """Counts batches without an optimizer."""

    def training_step(self, batch, batch_idx):
        self.mean.data += 1

    def configure_optimizers(self):
        return None


def test_a_module_without_an_optimizer_can_be_forked_and_has_a_bar(lit, monkeypatch):
    monkeypatch.setattr("lit_engine.session.ProgressLines", lambda: progress.TerminalProgress(Signals()))
    parent = lit("fit --model=test_features.Counting --data=test_features.Three --epochs 1")
    assert parent.status == 0, parent.err
    fork = lit(f"fit --fork {parent.run} --epochs 3 --name longer")
    assert fork.status == 0, fork.err
    assert read(fork.run / "checkpoints" / "last.ckpt")["state_dict"]["mean"] == 3 * 2


class Listing(Mean):
    """Predicts a list with one tensor per sample. If `lengths` is true, the tensors have different lengths."""

    def __init__(self, lengths: bool = False):
        super().__init__()
        self.lengths = lengths

    def predict_step(self, batch, batch_idx):
        return [torch.arange(1 + int(value) if self.lengths else 2) + 10 * value for value in batch[0]]


class SixData(Three):
    """Samples 0 to 5, in batches of 4 and 2."""

    def test_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(6.0)), batch_size=4)


def test_lists_of_tensors_are_interpreted_in_the_same_way_in_all_batches(lit):
    """The last batch has two samples, as many as each sample has outputs."""
    run = lit("fit --model=test_features.Listing --data=test_features.SixData --epochs 1").run
    assert lit(f"predict {run}").status == 0
    rows = [[float(value) for value in row.values()] for row in rows_of(next((run / "predictions").glob("*.csv")))]
    assert rows == [[n, 10 * n, 10 * n + 1] for n in range(6)]


def test_values_that_cannot_be_columns_in_every_batch_are_saved_unchanged(lit):
    run = lit("fit --model=test_features.Listing --model.lengths=true --data=test_features.SixData --epochs 1").run
    assert lit(f"predict {run}").status == 0
    saved = [one.tolist() for batch in torch.load(next((run / "predictions").glob("*.pt"))) for one in batch]
    assert saved == [[10 * n + k for k in range(n + 1)] for n in range(6)]


class Colliding(Mean):
    """Module whose attributes have the same names as attributes of `Task`."""

    def __init__(self):
        super().__init__()
        self.notes, self.accumulate = ["from the author"], 2

    def test_step(self, batch, batch_idx):
        self.log_dict({"value": batch[0].mean(), "samples": 1.0})

    def predict_step(self, batch, batch_idx):
        return batch[0]


class CollidingData(SixData):
    """Data with attributes named like the library's methods, and with a sampler that yields tensors."""

    def __init__(self):
        super().__init__()
        self.inputs, self.size_of = torch.arange(6.0), {"test": 6}

    def test_dataloader(self):
        return DataLoader(TensorDataset(self.inputs), batch_size=4, sampler=torch.arange(6).flip(0))


def test_attributes_may_have_the_names_of_the_librarys_own_attributes(lit):
    fit = lit("fit --model=test_features.Colliding --data=test_features.CollidingData --epochs 1")
    assert "1 epoch × 2 steps" in fit.out
    run = fit.run
    assert lit(f"test {run}").status == 0
    assert lit(f"predict {run}").status == 0
    rows = rows_of(next((run / "predictions").glob("*.csv")))
    assert [(int(row["index"]), float(row["prediction"])) for row in rows] == [(n, n) for n in range(6)]


class Squeezed(Mean):
    """Predicts a scalar for a batch with a single sample."""

    def predict_step(self, batch, batch_idx):
        return batch[0][:, None].squeeze()


def test_a_last_batch_of_one_sample_may_be_squeezed(lit):
    run = lit("fit --model=test_features.Squeezed --data=test_features.ThreeWithTest --epochs 1").run
    assert lit(f"predict {run}").status == 0
    assert [[*row.values()] for row in rows_of(run / "predictions" / "test.csv")] == [
        ["0", "0.0"], ["1", "0.0"], ["2", "3.0"],
    ]  # fmt: skip


class Detector(Mean):
    """Predicts a box for each positive sample. Only the last of three samples is positive."""

    def predict_step(self, batch, batch_idx):
        return {"box": [float(value) for value in batch[0] if value > 0]}


def test_rows_are_numbered_if_a_batch_does_not_have_one_row_per_sample(lit):
    run = lit("fit --model=test_features.Detector --data=test_features.ThreeWithTest --epochs 1").run
    assert lit(f"predict {run}").status == 0
    assert rows_of(next((run / "predictions").glob("*.csv"))) == [{"index": "0", "box": "3.0"}]


class Detections(Mean):
    """Returns a dict per sample, as torchvision's detectors do. Sample n has n boxes."""

    def predict_step(self, batch, batch_idx):
        sizes = [int(value) for value in batch[0]]
        return [{"boxes": torch.arange(4.0 * n).view(n, 4), "labels": torch.arange(n)} for n in sizes]


def test_lists_of_dicts_become_one_row_per_sample(lit):
    run = lit("fit --model=test_features.Detections --data=test_features.SixData --epochs 1").run
    assert lit(f"predict {run}").status == 0
    rows = [{name: json.loads(value) for name, value in row.items()} for row in RunDir(run).predictions(convert=False)]
    assert [row["index"] for row in rows] == list(range(6))
    assert [row["boxes"] for row in rows] == [[[4 * k + i for i in range(4)] for k in range(n)] for n in range(6)]
    assert [row["labels"] for row in rows] == [[*range(n)] for n in range(6)]


class Unreadable(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise ValueError("sample cannot be read")


class UnreadableData(Three):
    def train_dataloader(self):
        return DataLoader(Unreadable(), num_workers=2)


def test_an_error_in_a_worker_ends_the_program(workspace):
    fit = "fit --model=test_features.Mean --data=test_features.UnreadableData --epochs 1"
    with pytest.raises(AssertionError, match="ValueError: sample cannot be read"):  # a hang would raise TimeoutExpired
        run_in(workspace, *fit.split())


class Heads(Mean):
    """Returns a dict per head, not per sample. The last batch has as many samples as there are heads."""

    def predict_step(self, batch, batch_idx):
        return [{"age": batch[0]}, {"height": 2 * batch[0]}]


def test_lists_of_dicts_with_different_keys_are_saved_unchanged(lit):
    run = lit("fit --model=test_features.Heads --data=test_features.SixData --epochs 1").run
    assert lit(f"predict {run}").status == 0
    saved = torch.load(run / "predictions" / "test.pt")
    assert [{**one, **other}["height"].tolist() for one, other in saved] == [[0, 2, 4, 6], [8, 10]]


def test_warnings_of_installed_packages_are_printed_without_paths(workspace):
    fit = "fit --model=metric_objects.Classifier --data=metric_objects.Data --epochs 1"
    lines = run_in(workspace, *fit.split(), in_terminal=True).splitlines()
    assert any(line.startswith("warning: The number of training batches (10) is smaller") for line in lines)
    assert not any("packages" in line for line in lines)


def test_predictions_on_new_samples_match_the_model(lit):
    samples = np.random.default_rng(0).normal(size=(3, 20))
    Path("new").mkdir()
    for number, sample in enumerate(samples):
        np.savetxt(f"new/{number}.txt", sample)
    np.savetxt("new.csv", samples)
    found = []
    for data, option in (("FromFiles", "--images new"), ("FromTable", "--table new.csv")):
        run = lit(f"fit --model test_features.Classifier --data test_features.{data} --epochs 1").run
        assert lit(f"predict --run {run} {option}").status == 0
        found.append(rows_of(run / "predictions" / f"{option[2:].split()[0]}_new.csv"))
    assert [row["file"] for row in found[0]] == [f"{number}.txt" for number in range(3)]
    model = Classifier()
    model.load_state_dict(read(run / "checkpoints" / "last.ckpt")["state_dict"])
    expected = model.eval()(torch.from_numpy(samples).float()).softmax(dim=1)
    for rows in found:
        probabilities = [[float(row[f"prediction_{k}"]) for k in range(3)] for row in rows]
        np.testing.assert_allclose(probabilities, expected.detach(), rtol=1e-5)


def test_columns_named_prediction_and_target_are_compared(lit):
    runs, accuracies = [], []
    for lr in (0.001, 0.1):
        runs.append(lit(f"fit --model test_features.Labelled --data metric_objects.Data --lr {lr} --epochs 1").run)
        assert lit(f"predict --run {runs[-1]}").status == 0
        rows = rows_of(runs[-1] / "predictions" / "test.csv")
        accuracies.append(np.mean([row["prediction"] == row["target"] for row in rows]))
    (found,) = json.loads(lit(f"compare {runs[0]} {runs[1]} --test accuracy --json").out)["tests"]
    assert (found["a"], found["b"]) == pytest.approx(tuple(accuracies))
    assert found["n"] == 100


def test_accumulated_gradients_are_the_mean_of_the_batch_means(lit):
    run = lit("fit --model test_features.Mean --data test_features.Three --epochs 1 "
              "--trainer.accumulate_grad_batches=2").run  # fmt: skip
    mean = read(run / "checkpoints" / "last.ckpt")["state_dict"]["mean"]
    assert mean == pytest.approx(0.1 * 2 * (0 + 3) / 2)  # divided by two batches, not by three samples


def test_two_processes_average_gradients_and_metrics_and_share_one_bar(workspace):
    fit = "fit --model test_features.Mean --data test_features.Three --epochs 1 --name two --trainer.devices=2"
    shown = run_in(workspace, *f"{fit} --trainer.strategy=ddp --trainer.accelerator=cpu".split(), in_terminal=True)
    assert shown.count("\x1b[?25l") == 1  # a bar hides the cursor when it appears
    run = workspace / "runs" / "unnamed" / "two"
    assert sections_of(run)["fit"]["val_value"] == 3.0
    assert sections_of(run)["fit"]["steps"] == 1


class Unequal(Three):
    """The first process validates one sample, and the second one validates three."""

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.arange(1.0, 2 + 2 * self.trainer.global_rank)), batch_size=1)


class OnFirst(Mean):
    """Logs the loss only in the first process."""

    def on_validation_epoch_end(self):
        if self.trainer.is_global_zero:
            self.log("val_loss", 1.0, rank_zero_only=True)


def test_processes_may_validate_different_batches_and_log_different_metrics(workspace):
    fit = "fit --model test_features.OnFirst --data test_features.Unequal --epochs 1 --name unequal --trainer.devices=2"
    options = "--trainer.strategy=ddp --trainer.accelerator=cpu --trainer.use_distributed_sampler=false"
    run_in(workspace, *f"{fit} {options}".split())
    assert sections_of(workspace / "runs" / "unnamed" / "unequal")["fit"]["val_value"] == (1 + 1 + 2 + 3) / 4


class Diverging(Mean):
    """Logs a loss that falls in the first process and rises in the second one."""

    def on_validation_epoch_end(self):
        self.log("val_loss", float(self.current_epoch * (1 if self.trainer.global_rank else -1)))


def test_one_process_may_stop_the_run_and_reject_the_checkpoint(workspace):
    fit = "fit --model test_features.Diverging --data test_features.Three --epochs 4 --trainer.devices=2"
    options = "--trainer.strategy=ddp --trainer.accelerator=cpu --trainer.num_sanity_val_steps=0"
    stop = "--trainer.callbacks+={class_path: EarlyStopping, init_args: {monitor: val_loss, patience: 1}}"
    lines = run_in(workspace, *f"{fit} {options}".split(), stop).splitlines()
    epochs = [line.endswith("best") for line in lines if line.startswith("epoch ")]
    assert epochs == [True, False]
    assert "stopped early: val_loss did not improve in the last 1 records in process 1" in lines


def test_a_run_includes_custom_figures_and_provenance(lit):
    run = lit(command("vae", seed_everything=3), "--epochs 1").run
    assert (run / "figures" / "decoded_origin.png").exists()
    assert "figures/decoded_origin.png" in (run / "index.html").read_text()
    (entry,) = json.loads((run / "provenance.json").read_text())
    assert entry["seed"] == 3
    assert "trainer.max_epochs" in str(entry["changed"])
    assert entry["versions"]["torch"] == version("torch")


class Sized(Three):
    """Data whose batch size is set by an option with a different name."""

    def __init__(self, size: int = 2):
        super().__init__()
        self.batch_size = size


def test_plan_and_find_batch_size_suggest_only_options_that_exist(lit):
    fit = "fit --model test_features.Mean --data test_features.Sized --epochs 1"
    planned = lit(fit, "--trainer.accumulate_grad_batches=2 --plan --json")
    assert planned.status == 0, planned.err
    assert "micro_batch" not in json.loads(planned.out)
    assert "suggested: a batch size of 2 (" in lit(fit, "--find batch_size").out


def test_runs_of_a_plain_module_can_be_planned_and_forked(lit):
    planned = lit(command("metric_objects"), "--plan --json")
    assert planned.status == 0, planned.err
    assert json.loads(planned.out)["steps"] == 20
    parent = lit(command("metric_objects", run_name="parent")).run
    forked = lit(f"fit --fork {parent}@best --trainer.max_epochs=3 --name child")
    assert forked.status == 0, forked.err
    assert sections_of(forked.run)["fit"]["epochs"] == 3
