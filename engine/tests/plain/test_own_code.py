"""Tests code that is common in LightningModules but not used by `Task`, such as hooks that freeze layers."""

import copy
import csv
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    EarlyStopping,
    EMAWeightAveraging,
    LearningRateFinder,
    ModelCheckpoint,
)
from metric_objects import Classifier, Data
from test_plain import StopAfter
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate
from torchmetrics import MeanMetric, MetricTracker

from helpers import differences
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.errors import UserError
from lit_engine.load import load_data, load_model
from lit_engine.run.directory import RunDir
from lit_engine.tools.export.parts import name_tensors
from lit_engine.tools.runs.reading import Run, lower_is_better
from lit_engine.training.plain import seed_data_hooks

DATA = "--data metric_objects.Data --trainer.log_every_n_steps=3 --epochs 2"
BATCHES = 10  # per epoch


class Unfrozen(Classifier):
    """Trains the first layer from the second epoch on."""

    def __init__(self):
        super().__init__()
        self.model[0].requires_grad_(False)

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.model[0].requires_grad_(True)


class FrozenAtStart(Unfrozen):
    """Freezes the layer in a hook that a resumed run repeats."""

    def __init__(self):
        super().__init__()
        self.model[0].requires_grad_(True)

    def on_train_start(self):
        self.model[0].requires_grad_(False)


class Occasional(Classifier):
    """Logs a value only in every sixth batch."""

    def training_step(self, batch, batch_idx):
        if batch_idx % 6 == 0:
            self.log("occasional", batch[0].mean())
        return super().training_step(batch, batch_idx)


class Simple(Classifier):
    """Module without a schedule."""

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Late(Simple):
    """Creates its layers in a hook."""

    def __init__(self):
        super().__init__()
        self.model = None

    def configure_model(self):
        if self.model is None:
            self.model = torch.nn.Linear(20, 3)


class InSetup(Late):
    """Creates lazy layers once the number of columns in the data is known."""

    configure_model = LightningModule.configure_model

    def setup(self, stage):
        if self.model is None:
            self.model = torch.nn.LazyLinear(3)
            self.model(self.trainer.datamodule.val_dataloader().dataset[0][0])


class Lazy(Simple):
    """Creates lazy layers in the constructor."""

    def __init__(self):
        super().__init__()
        self.model = torch.nn.LazyLinear(3)

    def setup(self, stage):
        self.model(torch.zeros(2, 20))


class Compiled(Simple):
    """Compiles its layers in a hook, but only for training, as in lightning-hydra-template."""

    def setup(self, stage):
        if stage == "fit":
            self.model = torch.compile(self.model, backend="eager")


class Observer(nn.Module):
    """Records the range of each feature in a buffer that is empty at first, as torch's quantization observers do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.zeros(0))
        self.batches = 0

    def forward(self, x):
        if self.training or not self.largest.numel():
            now = x.detach().abs().amax(0)
            self.largest = torch.maximum(self.largest, now) if self.largest.numel() else now
            self.batches += self.training
        return x / self.largest

    def get_extra_state(self):
        return {"batches": self.batches}

    def set_extra_state(self, state):
        self.batches = state["batches"]

    def _load_from_state_dict(self, state_dict, prefix, *args):
        self.largest.resize_(state_dict[f"{prefix}largest"].shape)
        super()._load_from_state_dict(state_dict, prefix, *args)


class Observing(Classifier):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(Observer(), self.model)


class Tracked(Classifier):
    """Logs the lowest epoch loss so far."""

    def __init__(self):
        super().__init__()
        self.losses = MetricTracker(MeanMetric(), maximize=False)

    def on_train_epoch_start(self):
        self.losses.increment()

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.losses.update(loss.detach())
        return loss

    def on_train_epoch_end(self):
        self.log("lowest", self.losses.best_metric())
        self.log("epochs", float(self.losses.n_steps))


class Teacher(Simple):
    """Omits a frozen teacher from its checkpoints, and adds it when a checkpoint is loaded."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.teacher = torch.nn.Linear(20, 3).requires_grad_(False)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["state_dict"] = {k: v for k, v in checkpoint["state_dict"].items() if "teacher" not in k}

    def on_load_checkpoint(self, checkpoint):
        checkpoint["state_dict"].update({f"teacher.{k}": v for k, v in self.teacher.state_dict().items()})


class Bank(Simple):
    """Stores samples in a buffer that grows, and resizes it when a checkpoint is loaded."""

    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.zeros(0, 20))

    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.bank = torch.cat([self.bank, batch[0]])

    def on_load_checkpoint(self, checkpoint):
        self.bank = torch.empty_like(checkpoint["state_dict"]["bank"])


class Probe(Callback):
    """Adds a layer to the module."""

    def setup(self, trainer, pl_module, stage):
        pl_module.probe = torch.nn.Linear(3, 3)


class Seen:
    """An object that torch loads from checkpoints only if the class is declared to be safe."""


class Storing(Simple):
    """Stores NumPy arrays and numbers in its checkpoints, and optionally an object."""

    stored = np.float64(3), np.arange(3), np.array([None, "a"], dtype=object)

    def __init__(self, with_object: bool = False):
        super().__init__()
        self.values = {"numpy": self.stored, "object": Seen() if with_object else None}

    def on_save_checkpoint(self, checkpoint):
        checkpoint["values"] = self.values

    def on_load_checkpoint(self, checkpoint):
        for loaded, stored in zip(checkpoint["values"]["numpy"], self.stored, strict=True):
            np.testing.assert_array_equal(loaded, stored, strict=True)
        assert type(checkpoint["values"]["object"]) is type(self.values["object"])


class Quiet(Classifier):
    """Logs no validation loss."""

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", 0.5)


class Endless(IterableDataset):
    """Endless dataset without a length."""

    def __iter__(self):
        while True:
            yield torch.zeros(20), 0


class Streaming(Data):
    def train_dataloader(self):
        return DataLoader(Endless(), batch_size=32)


class Staged(Data):
    """Creates the validation split only for `fit`, as in Lightning's documentation."""

    def setup(self, stage):
        if stage == "fit":
            self.validation = super().val_dataloader().dataset

    def val_dataloader(self):
        return DataLoader(self.validation, batch_size=32)


class StagedDict(Data):
    """Adds the validation split to a dict only for `fit`."""

    def setup(self, stage):
        self.splits = {"val": super().val_dataloader().dataset} if stage == "fit" else {}

    def val_dataloader(self):
        return DataLoader(self.splits["val"], batch_size=32)


class Untested(Data):
    """Data whose test samples cannot be loaded."""

    def setup(self, stage):
        if stage == "test":
            raise UserError("the test samples are missing")


class Drawing(Classifier):
    """Logs an image per validation, and configures a callback."""

    def on_validation_epoch_end(self):
        for logger in self.loggers:
            logger.experiment.add_image("noise", torch.rand(3, 8, 8), self.current_epoch)
        Path(self.logger.log_dir, "epoch.txt").write_text(str(self.current_epoch))

    def configure_callbacks(self):
        return [ModelCheckpoint(monitor="val_loss")]


class Buckets(Sampler):
    """Batch sampler without a length."""

    def __iter__(self):
        yield from map(list, torch.randperm(300).split(30))


class Bucketed(Data):
    def __init__(self, num_workers: int = 0):
        super().__init__()
        self.num_workers = num_workers

    def train_dataloader(self):
        data = super().train_dataloader().dataset
        return DataLoader(data, batch_sampler=Buckets(), num_workers=self.num_workers)


class Noise(IterableDataset):
    def __iter__(self):
        return ((torch.randn(20), index % 3) for index in range(300))


class Noisy(Data):
    def train_dataloader(self):
        return DataLoader(Noise(), batch_size=30)


def check_resumed(lit, fit, batches):
    """Check that a run stopped after `batches` batches and resumed matches an uninterrupted run. Return the latter."""
    whole = lit(fit, "--name whole")
    assert whole.status == 0, whole.err
    stop = f"{{class_path: {StopAfter.__module__}.StopAfter, init_args: {{batches: {batches}}}}}"
    cut = lit(fit, "--name cut", ["--trainer.callbacks+=" + stop])
    assert cut.status == 143, cut.err
    resumed = lit(f"fit --run {cut.run} --trainer.callbacks=null")
    assert resumed.status == 0, resumed.err
    assert differences(whole.run, resumed.run) == []
    return whole.run


@pytest.mark.parametrize(
    ("model", "batches"),
    [
        ("Simple --data test_own_code.Bucketed --data.num_workers=1", BATCHES - 1),
        ("Unfrozen", BATCHES + 5),
        ("FrozenAtStart", BATCHES + 5),
        ("FineTuned", BATCHES + 5),
        ("Occasional", 2),
        ("Observing", BATCHES + 5),
        ("Tracked", BATCHES + 5),
        ("Tracked", BATCHES),
    ],
)
def test_a_resumed_run_matches_an_uninterrupted_run_bit_for_bit(lit, model, batches):
    check_resumed(lit, f"fit {DATA} --model test_own_code.{model}", batches)


@pytest.mark.parametrize("data", ["Bucketed", "Noisy"])
def test_extending_a_finished_run_matches_a_longer_run_bit_for_bit(lit, data):
    fit = f"fit {DATA} --model test_own_code.Simple --data test_own_code.{data}"
    whole = lit(fit, "--name whole")
    assert whole.status == 0, whole.err
    part = lit(fit, "--name part --epochs 1")
    continued = lit(f"fit {part.run} --epochs 2")
    assert continued.status == 0, continued.err
    assert differences(whole.run, part.run) == []


class Curriculum(Sampler):
    """Yields one batch with all samples below an index, which the module changes."""

    end = 0

    def __iter__(self):
        yield list(range(self.end))

    def __len__(self):
        return 1


class Curricular(Data):
    def train_dataloader(self):
        return DataLoader(super().train_dataloader().dataset, batch_sampler=Curriculum())


class Learning(Simple):
    def on_train_epoch_start(self):
        loader = self.trainer.train_dataloader
        loader.batch_sampler.end = 20 * (self.current_epoch + 1)
        loader.collate_fn = lambda samples: default_collate(samples[: len(samples) // 2])

    def training_step(self, batch, batch_idx):
        self.logger.log_metrics({"samples": torch.tensor(len(batch[1]))}, step=self.global_step)
        return super().training_step(batch, batch_idx)


def test_a_hook_may_change_the_loader_and_pass_a_tensor_to_the_logger(lit):
    fit = lit(f"fit --model test_own_code.Learning {DATA} --data test_own_code.Curricular")
    assert fit.status == 0, fit.err
    rows = csv.DictReader((fit.run / "metrics.csv").open())
    assert [row["samples"] for row in rows if row["samples"]] == ["10", "20"]


def test_buffers_of_different_shapes_are_loaded_if_their_module_resizes_them(lit):
    run = lit(f"fit --model test_own_code.Observing {DATA} --name parent").run
    assert lit(f"predict {run}").status == 0
    forked = lit(f"fit --fork {run} --name child --epochs 3")
    assert forked.status == 0, forked.err
    assert "not restored" not in forked.err
    state = read(forked.run / "checkpoints" / "last.ckpt")["state_dict"]
    assert state["model.0.largest"].shape == (20,)
    assert state["model.0._extra_state"] == {"batches": 3 * BATCHES}


class Neighbors(Classifier):
    """Iterates over all training samples in validation, for example to find nearest neighbors."""

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.log("val/known", float(sum(len(y) for _, y in self.trainer.train_dataloader)))


def test_a_run_resumes_exactly_if_a_hook_iterates_over_the_training_data(lit):
    whole = check_resumed(
        lit, f"fit --model test_own_code.Neighbors {DATA} --trainer.val_check_interval=5", BATCHES + 5
    )
    known = [row["val/known"] for row in csv.DictReader((whole / "metrics.csv").open()) if row["val/known"]]
    assert known == 4 * ["300"]


class Choosing(Classifier):
    """Selects the best checkpoint by an accuracy metric whose name contains a slash."""

    def validation_step(self, batch, batch_idx):
        self.val_acc(self(batch[0]), batch[1])
        self.log_dict({"val/acc": self.val_acc, "val/loss": self.current_epoch})

    def configure_callbacks(self):
        best = ModelCheckpoint(monitor="val/acc", mode="max", filename="{epoch}-{val/acc:.2f}", save_last=True)
        return [EarlyStopping("val/loss"), best]


def test_the_checkpoint_callback_of_a_module_selects_the_best_checkpoint(lit):
    run = lit(f"fit --model test_own_code.Choosing {DATA}").run
    assert sorted(path.name for path in (run / "checkpoints").glob("*.ckpt")) == ["last.ckpt"]
    (best,) = (run / "checkpoints").glob("*/*.ckpt")
    fit = json.loads((run / "metrics.json").read_text())["fit"]
    assert fit["best_checkpoint"] == str(best.relative_to(run / "checkpoints"))
    assert "best val/acc" in fit
    assert not lower_is_better(Run.read(run), "val/acc")
    run = run.rename(run.with_name("moved"))
    done = lit(f"test {run}")
    assert f"checkpoint: {run}/checkpoints/{fit['best_checkpoint']}\n" in done.out
    assert "warning" not in done.err


class Keeping(Simple):
    """Configures a Checkpoint that depends on the data and monitors a metric that the sanity check does not log."""

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.log("val_auc", float(-self.current_epoch))

    def configure_callbacks(self):
        return [Checkpoint("val_auc", "max", keep_last=self.trainer.datamodule.batch_size // 16)]


def test_the_library_checkpoint_of_a_module_replaces_the_default(lit):
    done = lit(f"fit --model test_own_code.Keeping {DATA} --epochs 3")
    assert done.status == 0, done.err
    assert "warning: monitor: val_auc is not logged in validation" in done.err
    files = {path.name for path in (done.run / "checkpoints").glob("*.ckpt")}
    assert files == {"best-epoch000.ckpt", "epoch001.ckpt", "epoch002.ckpt", "last.ckpt"}


class Counting(Callback):
    def __init__(self):
        self.epochs = 0

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs += 1
        pl_module.log("epochs_counted", float(self.epochs))

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


class Counted(Simple):
    def configure_callbacks(self):
        return [Counting()]


class LooksAround(Classifier):
    """Uses attributes of the trainer and the logger, as third-party code does."""

    def configure_callbacks(self):
        return [ModelCheckpoint(monitor="val_loss")]

    def train_dataloader(self):
        return Data().train_dataloader()

    def val_dataloader(self):
        return Data().val_dataloader()

    def test_dataloader(self):
        return Data().test_dataloader()

    def on_train_epoch_end(self):
        assert self.trainer.datamodule is None
        assert isinstance(self.trainer.train_dataloader, DataLoader)
        assert isinstance(self.trainer.val_dataloaders, DataLoader)
        Path(self.logger.experiment.log_dir, "images").mkdir(exist_ok=True)

    def on_train_end(self):
        assert torch.load(self.trainer.checkpoint_callback.best_model_path, weights_only=True)

    def on_test_epoch_end(self):
        assert self.trainer.datamodule is None
        assert isinstance(self.trainer.test_dataloaders, DataLoader)

    def predict_step(self, batch, batch_idx):
        Path(self.trainer.default_root_dir, f"{batch_idx}.txt").write_text(str(len(batch[0])))


def test_the_trainer_has_the_attributes_that_plain_code_expects(lit):
    fitted = lit("fit --model test_own_code.LooksAround --epochs 2")
    assert fitted.status == 0, fitted.err
    assert (fitted.run / "images").is_dir()
    tested, predicted = lit(f"test {fitted.run}"), lit(f"predict {fitted.run}")
    assert (tested.status, predicted.status) == (0, 0), tested.err + predicted.err
    assert "no table was written" in predicted.out
    assert sum(int(file.read_text()) for file in fitted.run.glob("*.txt")) == 100


def test_files_of_predict_step_are_kept_without_a_run(lit):
    file = next(lit("fit --model test_own_code.LooksAround --epochs 1").run.glob("checkpoints/last.ckpt"))
    predicted = lit(f"predict --model test_own_code.LooksAround --ckpt_path {file} --name predicted")
    assert predicted.status == 0, predicted.err
    assert (predicted.run / "0.txt").exists()


class Sized(Data):
    """Has a length, but only after `setup`."""

    def setup(self, stage):
        self.rows = range(100)

    def __len__(self):
        return len(self.rows)


def test_a_data_module_may_have_a_length(lit):
    fitted = lit("fit --model test_own_code.Simple --data test_own_code.Sized --epochs 1")
    assert fitted.status == 0, fitted.err


def test_reading_a_checkpoint_keeps_the_classes_that_were_declared_to_be_safe(tmp_path):
    torch.save({"state_dict": {}}, tmp_path / "a.ckpt")
    with torch.serialization.safe_globals([np.ndarray]):
        read(tmp_path / "a.ckpt")
        assert np.ndarray in torch.serialization.get_safe_globals()
    assert np.ndarray not in torch.serialization.get_safe_globals()


class FrozenBackbone(BackboneFinetuning):
    """Also freezes batch norm statistics, as in Lightning's transfer learning example."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.backbone, train_bn=False)


class FineTuned(Simple):
    """Configures a callback that adds a parameter group after the first epoch."""

    def __init__(self):
        super().__init__()
        self.model.insert(1, nn.BatchNorm1d(self.model[0].out_features))
        self.backbone = self.model[:2]

    def configure_callbacks(self):
        return [FrozenBackbone(unfreeze_backbone_at_epoch=1)]

    def configure_optimizers(self):
        return torch.optim.Adam(self.model[2:].parameters(), lr=0.01)


def test_forks_keep_the_states_of_module_callbacks(lit):
    run = lit(f"fit --model test_own_code.Counted {DATA}").run
    fork = lit(f"fit --fork {run} --epochs 3 --name longer").run
    assert json.loads((fork / "metrics.json").read_text())["fit"]["epochs_counted"] == 3


def test_a_fork_of_a_fine_tuned_run_matches_an_uninterrupted_run(lit):
    fit = f"fit --model test_own_code.FineTuned {DATA}"
    whole = lit(f"{fit} --epochs 3 --name whole").run
    fork = lit(f"fit --fork {lit(fit).run} --epochs 3 --name longer")
    assert fork.status == 0, fork.err
    a, b = (read(run / "checkpoints" / "last.ckpt")["optimizer_states"] for run in (whole, fork.run))
    assert len(a[0]["param_groups"]) == 2
    assert str(a) == str(b)


def test_a_fork_of_the_best_checkpoint_can_change_the_number_of_batches_and_steps(lit):
    """The checkpoint is saved in the validation at the end of the epoch."""
    run = lit(f"fit --model test_own_code.Simple {DATA} --epochs 1").run
    options = {"data.batch_size=16": 19, "data.batch_size=64": 5, "trainer.accumulate_grad_batches=4": 3}
    for option, steps in options.items():
        fork = lit(f"fit --fork {run}@best --{option} --epochs 2")
        assert fork.status == 0, fork.err
        assert read(fork.run / "checkpoints" / "last.ckpt")["global_step"] == BATCHES + steps, option


class Averaging(Simple):
    def configure_callbacks(self):
        return [EMAWeightAveraging()]


def test_weights_averaged_by_a_module_callback_are_restored_and_tested(lit):
    run = check_resumed(lit, f"fit --model test_own_code.Averaging {DATA}", BATCHES + 5)
    content = read(run / "checkpoints" / "last.ckpt")
    name = "model.0.weight"
    assert not torch.equal(content["state_dict"][name], content["current_model_state"][name])
    rows = {}
    for model in ("Averaging", "Simple"):
        assert lit(f"predict {run} --ckpt_path last --model test_own_code.{model}").status == 0
        rows[model] = (run / "predictions" / "test.csv").read_text()
    assert rows["Averaging"] == rows["Simple"]  # the latter has no callback that could change the weights


def test_module_callbacks_that_would_restart_a_resumed_run_are_rejected(lit):
    done = lit(f"fit --model test_own_code.Finding {DATA}")
    assert "LearningRateFinder would restart a resumed run from its first epoch" in error_of(done)


class Finding(Simple):
    def configure_callbacks(self):
        return LearningRateFinder()


def test_find_lr_works_for_a_module_with_its_own_callbacks(lit):
    done = lit(f"fit --model test_own_code.Choosing {DATA} --find lr")
    assert done.status == 0, done.err
    assert "suggested: --model.learning_rate=" in done.out


@pytest.mark.parametrize("folder", ["elsewhere", "checkpoints"])
def test_the_best_checkpoint_may_be_outside_the_run(lit, folder):
    callback = f"{{class_path: ModelCheckpoint, init_args: {{monitor: val_acc, mode: max, dirpath: {folder}}}}}"
    run = lit(f"fit --model test_own_code.Simple {DATA}", ["--trainer.callbacks+=" + callback]).run
    (best,) = Path(folder).resolve().glob("*.ckpt")
    assert json.loads((run / "metrics.json").read_text())["fit"]["best_checkpoint"] == str(best)
    assert f"checkpoint: {best}\n" in lit(f"test {run}").out


@pytest.mark.parametrize("overlay", ["", "-c configs/overlays/tensorboard.yaml"])
def test_images_are_logged_to_tensorboard(lit, overlay):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    fit = f"fit --model test_own_code.Drawing {DATA} {overlay} --trainer.callbacks+=Figures"
    done = lit(fit, "--trainer.callbacks+=Timer")  # one of Timer's arguments is an Enum
    assert done.status == 0, done.err
    assert done.out.count("note: `logger.experiment.add_image` needs a logger") == (not overlay)
    assert {file.parent for file in done.run.rglob("*.ckpt")} == {done.run / "checkpoints"}
    assert (done.run / ("tensorboard" if overlay else "") / "epoch.txt").read_text() == "1"
    assert lit(f"fit {done.run}").status == 0
    if overlay:
        events = EventAccumulator(str(done.run / "tensorboard")).Reload()
        assert "noise" in events.Tags()["images"]


def test_runs_with_layers_added_by_a_callback_can_be_resumed_and_tested(lit):
    run = lit(f"fit --model test_own_code.Simple {DATA} --trainer.callbacks+=test_own_code.Probe").run
    for command in ("fit --epochs 3", "test"):
        again = lit(f"{command} --run {run}")
        assert again.status == 0, (command, again.err)
    assert "belongs to a different model" in error_of(lit(f"test {run} --trainer.callbacks=null"))


def test_weights_that_a_load_hook_no_longer_adds_are_reported_as_missing(lit, monkeypatch):
    run = lit(f"fit --model test_own_code.Teacher {DATA}").run
    monkeypatch.setattr(Teacher, "on_load_checkpoint", lambda self, checkpoint: None)
    for command in ("test", "export"):
        done = lit(f"{command} {run}")
        assert "Error(s) in loading state_dict for Teacher" in error_of(done)
        assert "Missing key(s)" in done.err


@pytest.mark.parametrize("model", ["Late", "InSetup", "Lazy", "Compiled", "Teacher", "Bank"])
def test_commands_support_weights_that_a_hook_creates_adds_or_resizes(lit, model):
    done = lit(f"fit --model test_own_code.{model} {DATA}")
    assert done.status == 0, done.err
    assert f"{model}: " in done.out
    assert f"{model}: 0 parameters" not in done.out
    for command in ("fit --trainer.max_epochs=3 --run", "test --run", "predict --run", "export"):
        again = lit(f"{command} {done.run}")
        assert again.status == 0, (command, again.err)


def test_weights_of_compiled_and_uncompiled_modules_are_interchangeable(lit):
    fit = f"fit --test_after_fit=true {DATA} --model test_own_code"
    plain, compiled = lit(f"{fit}.Simple").run, check_resumed(lit, f"{fit}.Compiled", BATCHES + 4)
    saved = torch.load(compiled / "checkpoints" / "last.ckpt")["state_dict"]
    assert "model._orig_mod.0.weight" in saved  # as in Lightning's own checkpoints
    assert len({RunDir(run).metrics()["test"]["test_f1"] for run in (plain, compiled)}) == 1
    weights = [load_model(RunDir(run)).state_dict() for run in (plain, compiled)]
    torch.testing.assert_close(*weights, rtol=0, atol=0)
    for model, run, other in (("Compiled", compiled, plain), ("Simple", plain, compiled)):
        tested = lit(f"test --run {run} --ckpt_path {other / 'checkpoints' / 'last.ckpt'}")
        assert tested.status == 0, tested.err
        warm = lit(
            f"{fit}.{model} --init_from {other} --init_strict=true", ["--init_prefixes={model._orig_mod.0.: model.0.}"]
        )
        assert "loaded: 4" in warm.out, warm.err
        forked = lit(f"fit --fork {run} --epochs 3")
        assert (forked.status, "do not fit" in forked.err) == (0, False), forked.err


def error_of(done):
    assert done.status == 2, done.out + done.err
    (line,) = (line for line in done.err.splitlines() if line.startswith("error: "))
    return line


def test_unsupported_callbacks_and_checkpoint_contents_are_rejected(lit):
    fit = f"fit --model test_own_code.Classifier {DATA}"
    assert "use the overlay configs/overlays/swa.yaml" in error_of(
        lit(fit, "--trainer.callbacks+=StochasticWeightAveraging --trainer.callbacks.swa_lrs=0.01")
    )
    for finder, what in (("BatchSizeFinder", "batch_size"), ("LearningRateFinder", "lr")):
        line = error_of(lit(fit, f"--trainer.callbacks+={finder}"))
        assert finder in line
        assert f"--find {what}" in line
    line = error_of(lit(fit, "--trainer.callbacks+=OnExceptionCheckpoint --trainer.callbacks.dirpath=."))
    assert "failed runs continue from last.ckpt" in line
    line = error_of(lit(f"fit --model test_own_code.Storing {DATA} --model.with_object=true"))
    assert "it would contain test_own_code.Seen, which cannot be loaded safely. Store only tensors, arrays" in line


def test_checkpoints_may_contain_numpy_arrays_and_classes_that_are_declared_to_be_safe(lit):
    fit = f"fit --model test_own_code.Storing {DATA}"
    for run in (fit, f"{fit} --model.with_object=true"):
        with torch.serialization.safe_globals([Seen]):
            run = lit(run).run
            for command in ("fit --epochs 3", "test", "predict"):
                done = lit(f"{command} --run {run}")
                assert done.status == 0, done.err
    assert "could run code while being loaded (test_own_code.Seen)" in error_of(lit(f"test {run}"))


class Collating(Data):
    def collate(self, samples):
        return default_collate(samples)


def test_methods_of_modules_and_data_can_be_pickled_for_spawned_workers():
    """A spawned worker receives the object to which its `collate_fn` belongs."""
    data, module = Collating(), Simple()
    seed_data_hooks(data, 0)
    seed_data_hooks(module, 0)
    data.trainer = lambda: None  # cannot be pickled
    for one in (pickle.loads(pickle.dumps(data.collate)).__self__, copy.deepcopy(data)):
        assert one.trainer is None
        assert one.setup.__func__ is Collating.setup
    assert copy.deepcopy(module).setup.__func__ is Simple.setup
    assert pickle.loads(pickle.dumps(module)).setup.__func__ is Simple.setup


class Scaled(Simple):
    """Accepts `**kwargs`, has a frozen 8-bit scale, and skips some steps."""

    def __init__(self, **options):
        super().__init__()
        self.save_hyperparameters()
        self.register_buffer("scale", torch.full((1,), options.get("scale", 1.0)).to(torch.float8_e4m3fn))

    def forward(self, x):
        return self.scale.float() * self.model(x)

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) if batch_idx % 3 else None

    def predict_step(self, batch, batch_idx):
        return {"sparse": self(batch[0]).to_sparse(), "samples": len(batch[0])}


class Free(Data):
    """Accepts any options."""

    def __init__(self, **options):
        super().__init__()
        self.options = options


def test_free_options_low_precision_buffers_skipped_steps_and_sparse_outputs_are_supported(lit, workspace):
    (workspace / "scaled.yaml").write_text("model: {class_path: test_own_code.Scaled, dict_kwargs: {scale: 4.0}}\n")
    fit = f"fit -c scaled.yaml {DATA} --epochs 1"
    run = lit(f"{fit} --data test_own_code.Free --name free").run
    assert load_model(RunDir(run)).scale.float().item() == 4
    assert lit(f"predict {run}").status == 0
    assert torch.load(next((run / "predictions").glob("*.pt")))[0]["sparse"].is_sparse
    assert lit(f"{fit} --find lr").status == 0
    source = ["--data.dict_kwargs={source: web}"]
    other = lit(f"{fit} --data test_own_code.Free --name free --resume", source)
    assert "data.dict_kwargs was None and is {'source': 'web'}" in error_of(other)


class Remembering(Classifier):
    """Stores its best result, which is an unsafe object after the first validation."""

    best = None

    def on_validation_epoch_end(self):
        if not self.trainer.sanity_checking:
            self.best = Seen()

    def on_save_checkpoint(self, checkpoint):
        checkpoint["best"] = self.best


def test_a_checkpoint_that_could_not_be_loaded_does_not_replace_an_earlier_one(lit):
    fit = lit(f"fit --model test_own_code.Remembering {DATA} --name stopped")
    assert "it would contain test_own_code.Seen" in error_of(fit)
    assert read("runs/unnamed/stopped/checkpoints/last.ckpt")["best"] is None


def test_plan_needs_the_length_of_the_data(lit):
    fit = "fit --model test_own_code.Simple --data test_own_code.Streaming --epochs 2 --plan"
    assert "set trainer.limit_train_batches" in error_of(lit(fit))
    assert lit(fit, "--trainer.limit_train_batches=5").status == 0


class Masked(Classifier):
    """Has a frozen mask with infinite values, and passes whole batches, which are dicts, to `forward`."""

    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(torch.tensor([0, -torch.inf]), requires_grad=False)

    def forward(self, batch):
        return self.model(batch["x"])

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch), batch["y"])

    validation_step = test_step = None
    predict_step = LightningModule.predict_step


class Dicts(Data):
    def train_dataloader(self):
        inputs = torch.randn(40, 20, generator=torch.Generator().manual_seed(0))
        return DataLoader([{"x": x, "y": k % 3} for k, x in enumerate(inputs)], batch_size=30)

    val_dataloader = LightningDataModule.val_dataloader
    test_dataloader = predict_dataloader = train_dataloader


def test_forward_may_take_the_whole_batch_and_frozen_weights_may_be_infinite(lit):
    fit = lit("fit --model test_own_code.Masked --data test_own_code.Dicts --epochs 1 --test_after_fit=true")
    assert fit.status == 0, fit.err
    assert "Masked has no test_step, so the run is not tested after training" in fit.out
    run = fit.run
    done = lit(f"predict {run}")
    assert done.status == 0, done.err
    rows = list(csv.DictReader(next((run / "predictions").glob("*.csv")).open()))
    model = Masked()
    model.load_state_dict(read(run / "checkpoints" / "last.ckpt")["state_dict"])
    with torch.no_grad():
        expected = torch.cat([model.eval()(batch) for batch in Dicts().train_dataloader()])
    found = [[float(row[f"prediction_{k}"]) for k in range(expected.shape[1])] for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Saved(Data):
    """Data whose argument `size` may be an object."""

    def __init__(self, batch_size: int = 32, sizes: list[int] | None = None, size: Path | None = None):
        super().__init__(batch_size)
        self.save_hyperparameters()


@pytest.mark.parametrize("options", ["", "--data.size=large"])
def test_a_checkpoint_contains_the_hyperparameters_of_the_data_if_they_are_plain(lit, options):
    fit = "fit --model test_own_code.Simple --data test_own_code.Saved --epochs 1 --data.batch_size=50"
    last = lit(fit, f"--data.sizes=[2,3] {options}").run / "checkpoints" / "last.ckpt"
    if options:
        assert "datamodule_hyper_parameters" not in read(last)
    else:
        data = Saved.load_from_checkpoint(last)
        assert (data.batch_size, data.hparams["sizes"]) == (50, [2, 3])


class AccuracyEarlyStopping(EarlyStopping):
    def __init__(self, patience: int = 1):
        super().__init__("val_acc", mode="max", patience=patience)


def test_early_stopping_may_have_a_fixed_metric_and_mode(lit):
    fit = "fit --model test_own_code.Quiet --data metric_objects.Data --epochs 5 --trainer.limit_train_batches=1"
    done = lit(fit, "--trainer.callbacks+=test_own_code.AccuracyEarlyStopping")
    assert done.status == 0, done.err
    assert json.loads((done.run / "metrics.json").read_text())["fit"]["epochs"] == 2


def test_early_stopping_minimizes_a_loss_by_default(lit):
    fit = "fit --model metric_objects.Classifier --data metric_objects.Data --epochs 9 --trainer.limit_train_batches=1"
    patience = "--trainer.callbacks.patience=1 --trainer.callbacks.min_delta=9"
    done = lit(fit, f"--trainer.callbacks+=EarlyStopping --trainer.callbacks.monitor=val_loss {patience}")
    assert done.status == 0, done.err
    assert json.loads((done.run / "metrics.json").read_text())["fit"]["epochs"] == 2


def test_validate_prints_no_hint_about_keeping_the_best_checkpoint(lit):
    run = lit(
        "fit --model test_own_code.Quiet --data metric_objects.Data --epochs 1 --trainer.limit_train_batches=1"
    ).run
    assert "no best checkpoint is kept" not in lit(f"validate --run {run}").out


@pytest.mark.parametrize("data", ["Staged", "StagedDict"])
def test_validate_can_use_a_split_that_setup_creates_only_for_fit(lit, data):
    run = lit(f"fit --model test_own_code.Simple --data test_own_code.{data} --epochs 1").run
    done = lit(f"validate {run}")
    assert done.status == 0, done.err
    sections = json.loads((run / "metrics.json").read_text())
    assert sections["validate"]["val_loss"] == pytest.approx(sections["fit"]["val_loss"])
    assert len(load_data(RunDir(run), "validate").val_dataloader()) > 0


def test_a_test_that_fails_prints_no_training_metrics(lit):
    done = lit("fit --model test_own_code.Simple --data test_own_code.Untested --epochs 1 --test_after_fit=true")
    assert "the test samples are missing" in error_of(done)
    assert "test/" not in done.out


def test_nested_outputs_cannot_be_exported():
    x = torch.zeros(1)
    with pytest.raises(UserError, match="forward returned a nested tuple: only tensors and tuples or dicts of tensors"):
        name_tensors((x, (x, x)))
