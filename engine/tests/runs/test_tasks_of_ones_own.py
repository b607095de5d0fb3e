"""Tests subclasses of a task that forward arguments, add metrics, skip batches or draw random numbers."""

import json
import signal
import sys
from functools import partial

import pytest
import torch

from helpers import TINY, differences, linear, same_weights
from killing import at_call
from lit_engine.classes.names import instantiate
from lit_engine.run.directory import RunDir
from toy.data import Digits, Images
from toy.tasks import ImageClassifier

MINE = """
from toy.tasks import ImageClassifier

class Mine(ImageClassifier):
    def __init__(self, *args, extra: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra
"""


def test_a_subclass_checkpoint_stores_values_from_the_data_module(lit, workspace, monkeypatch):
    (workspace / "passes_on.py").write_text(MINE)
    monkeypatch.syspath_prepend(workspace)
    run = lit(
        f"fit -c configs/quickstart.yaml {TINY} --model=passes_on.Mine --model.extra=3 --trainer.max_epochs=1"
    ).run
    best = next((run / "checkpoints").glob("best*.ckpt"))
    task = sys.modules["passes_on"].Mine.load_from_checkpoint(best)
    data = Digits()
    assert (task.extra, task.class_names, task.mean.flatten().tolist()) == (
        3,
        data.class_names,
        pytest.approx(data.mean),
    )
    tested = lit(f"test --run {run}")
    assert tested.status == 0
    assert "differs" not in tested.err


class Mixin:
    def __init__(self):
        self.extra = 3


class Base:
    def __init__(self, size=1):
        self.size = size


class OfBoth(Mixin, Base):
    def __init__(self, **kwargs):
        Mixin.__init__(self)
        Base.__init__(self, **kwargs)


def test_arguments_of_a_second_base_class_are_restored():
    assert instantiate(OfBoth, {"size": 7}, {}, "a.ckpt").size == 7


def test_arguments_that_no_longer_exist_are_reported(capsys):
    assert instantiate(OfBoth, {"size": 7, "shape": 8, "_kind": "x"}, {}, "a.ckpt").size == 7
    assert capsys.readouterr().err == "warning: a.ckpt contains shape, which OfBoth ignores\n"


class WithoutOptimizer(ImageClassifier):
    def __init__(self, optimizer, size=4, **kwargs):
        super().__init__(linear(), optimizer, list("abcd")[:size], **kwargs)
        self.save_hyperparameters(ignore=["optimizer"])


class OwnOptimizer(ImageClassifier):
    def __init__(self, size=4, **kwargs):
        super().__init__(linear(), partial(torch.optim.SGD, lr=0.1), list("abcd")[:size], **kwargs)
        self.save_hyperparameters()


@pytest.mark.parametrize("task", [WithoutOptimizer(partial(torch.optim.SGD, lr=0.1)), OwnOptimizer()])
def test_a_task_trained_without_the_command_line_is_loaded_without_its_optimizer(trainer, tmp_path, task):
    runner = trainer(max_epochs=1)
    runner.fit(task, datamodule=Images())
    runner.save_checkpoint(tmp_path / "a.ckpt")
    assert same_weights(type(task).load_from_checkpoint(tmp_path / "a.ckpt").state_dict(), task.state_dict())


class Extra(OwnOptimizer):
    def get_extra_state(self):
        return {"names": ["a", "b"]}

    def set_extra_state(self, state):
        self.names = state["names"]


def test_a_task_may_have_extra_state(trainer, tmp_path):
    runner = trainer(max_epochs=1)
    runner.fit(Extra(), datamodule=Images())
    runner.save_checkpoint(tmp_path / "a.ckpt")
    assert Extra.load_from_checkpoint(tmp_path / "a.ckpt").names == ["a", "b"]


COUNTS = """
import torch
from toy.tasks import ImageClassifier

class Counts(ImageClassifier):
    def evaluation_step(self, batch, split):
        found = super().evaluation_step(batch, split)
        ones = torch.ones(len(batch.targets))
        self.add_sums(ones=ones.sum())
        return found

class Twice(ImageClassifier):
    def evaluation_step(self, batch, split):
        super().evaluation_step(batch, split)
        return self.step(torch.tensor(1.0), len(batch.targets))

class TwiceInTraining(ImageClassifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return self.step(loss, len(batch.targets))
"""


def test_a_subclass_can_add_sums_but_not_count_a_batch_twice(lit, workspace, monkeypatch):
    (workspace / "counting.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(workspace)
    fit = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --test_after_fit=true"
    plain = lit(fit)
    counts = lit(f"{fit} --model=counting.Counts")
    metrics, more = (json.loads((r.run / "metrics.json").read_text())["test"] for r in (plain, counts))
    assert more.pop("test/ones") == 1
    assert {**more, "checkpoint": ""} == {**metrics, "checkpoint": ""}
    for name in ("Twice", "TwiceInTraining"):
        with pytest.raises(ValueError, match="step was called twice for a batch"):
            lit(f"{fit} --model=counting.{name}")


LAYERS = """
from torch import nn
from toy.tasks import ImageClassifier

class Layers(ImageClassifier):
    def setup(self, stage):
        super().setup(stage)
        if not hasattr(self, "last"):
            self.last = nn.Linear(10, len(self.trainer.datamodule.class_names))

    def forward(self, images):
        return self.last(super().forward(images))
"""


def test_a_subclass_may_create_layers_in_setup(lit, workspace, monkeypatch):
    (workspace / "layers.py").write_text(LAYERS)
    monkeypatch.syspath_prepend(workspace)
    run = lit(f"fit -c configs/quickstart.yaml {TINY} --model=layers.Layers --trainer.max_epochs=1").run
    for command in ("test", "predict", "fit --trainer.max_epochs=2 --model.schedulers=null"):
        assert (result := lit(f"{command} --run {run}")).status == 0, result.err


SCHEDULED = """
import torch
from toy.tasks import ImageClassifier

class Scheduled(ImageClassifier):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]
"""


@pytest.mark.parametrize("option", ["--fork", "--run"])
def test_schedulers_that_a_subclass_creates_are_continued(lit, workspace, monkeypatch, option):
    (workspace / "scheduled.py").write_text(SCHEDULED)
    monkeypatch.syspath_prepend(workspace)
    run = lit(f"fit -c configs/quickstart.yaml {TINY} --model=scheduled.Scheduled --trainer.max_epochs=1").run
    _, rows = RunDir(lit(f"fit {option} {run} --trainer.max_epochs=3").run).history()
    assert sorted({float(row["lr"]) for row in rows if row["lr"]}) == [0.025, 0.05, 0.1]


SKIPS = """
from toy.tasks import ImageClassifier

class Skips(ImageClassifier):
    def training_step(self, batch, batch_idx):
        return None if batch_idx == 1 else super().training_step(batch, batch_idx)
"""


def test_a_step_that_returns_none_skips_its_batch(lit, workspace, monkeypatch):
    (workspace / "skipping.py").write_text(SKIPS)
    monkeypatch.syspath_prepend(workspace)
    options = "--model=skipping.Skips --trainer.max_epochs=1 --trainer.log_every_n_steps=1 --data.batch_size=500"
    result = lit(f"fit -c configs/quickstart.yaml {TINY} {options}")
    assert result.status == 0, result.err
    rows = RunDir(result.run).history()[1]
    assert [row["step"] for row in rows if row["train/loss_step"]] == ["0", "2"]
    assert [float(row["train/samples"]) for row in rows if row["train/samples"]] == [757]  # 500, 500 and 257 samples


RANDOM = """
import random
import numpy as np
import torch
from torchmetrics import MeanMetric
from toy.tasks import ImageClassifier

class Random(ImageClassifier):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mean_scale = MeanMetric()

    def on_train_epoch_start(self):
        super().on_train_epoch_start()
        self.log("train/drawn", torch.rand(()))

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch._replace(images=batch.images + torch.randint_like(batch.images, 9))

    def training_step(self, batch, batch_idx):
        scale = np.random.rand() + random.random()
        self.mean_scale(scale)
        self.log("train/scale", scale, on_step=False, on_epoch=True)
        self.log("train/mean_scale", self.mean_scale, on_step=False, on_epoch=True)
        return scale * super().training_step(batch, batch_idx)

    def evaluation_step(self, batch, split):
        outputs = super().evaluation_step(batch, split)
        self.add_sums(noise=torch.randn(()))
        return outputs
"""


def test_resuming_restores_random_states_and_logged_values_exactly(lit, workspace, monkeypatch):
    (workspace / "drawing.py").write_text(RANDOM)
    monkeypatch.syspath_prepend(workspace)
    fit = f"fit -c configs/quickstart.yaml {TINY} --model=drawing.Random --test_after_fit=false"
    fit += " --trainer.max_epochs=2 --trainer.log_every_n_steps=1"
    whole = lit(f"{fit} --run_name whole").run
    # Stop within an epoch, in the first validation (the first two calls are the sanity check), and right after it.
    for hook, call in (("training_step", 15), ("validation_step", 3), ("on_train_epoch_end", 1)):
        with monkeypatch.context() as patch:
            at_call(patch, ImageClassifier, hook, call, signal.SIGTERM)
            cut = lit(f"{fit} --run_name {hook}")
        assert cut.status == 143, cut.err
        assert lit(f"fit --run {cut.run}").status == 0
        assert differences(whole, cut.run) == [], hook
