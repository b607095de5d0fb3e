"""Tests torchmetrics that are configured by name: their inputs and names, and the callbacks that use them."""

import csv
import json
import shutil
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchmetrics import MeanAbsoluteError
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAUROC,
    MulticlassROC,
    MultilabelF1Score,
)
from torchmetrics.wrappers import MinMaxMetric

from helpers import NAMES, TINY, classifier, linear, same_weights
from lit_engine.checkpoints.io import read
from lit_engine.errors import UserError
from lit_engine.training.task import Task
from toy.data import Images
from toy.tasks import ImageClassifier

FOLLOWED = """
model:
  init_args:
    metrics:
      f1: {class_path: torchmetrics.classification.MulticlassF1Score}
      f1_micro: {class_path: torchmetrics.classification.MulticlassF1Score, init_args: {average: micro}}
      auroc: {class_path: torchmetrics.classification.MulticlassAUROC, init_args: {average: none}}
    schedulers:
      - scheduler: {class_path: torch.optim.lr_scheduler.ReduceLROnPlateau, init_args: {patience: 0}}
        interval: epoch
        monitor: val/f1
trainer:
  callbacks:
    - {class_path: Checkpoint, init_args: {monitor: val/f1, mode: max}}
    - class_path: lightning.pytorch.callbacks.EarlyStopping
      init_args: {monitor: val/f1, mode: max, min_delta: 2.0}
"""


def test_configured_metrics_can_be_monitored_recorded_and_compared(lit, workspace):
    (workspace / "followed.yaml").write_text(FOLLOWED)
    run = lit(f"fit -c configs/quickstart.yaml {TINY} -c followed.yaml").run
    metrics = json.loads((run / "metrics.json").read_text())
    fit, test = metrics["fit"], metrics["test"]
    rows = [row for row in csv.DictReader((run / "metrics.csv").open()) if row["val/f1"]]
    assert len(rows) == 4  # patience 3, and no improvement by 2
    # The mode of ReduceLROnPlateau is min, and every later F1 is higher than the first.
    assert [float(row["lr"]) for row in rows] == pytest.approx([0.004, 0.004, 0.0004, 0.00004])
    assert fit["best val/f1"] == pytest.approx(max(float(row["val/f1"]) for row in rows), rel=1e-6)
    assert test["test/f1_micro"] == test["test/accuracy"]  # equal by definition with one class per sample
    assert {f"test/auroc/{k}" for k in range(10)} <= test.keys()
    printed = lit(f"test --run {run}").out
    assert f"test/f1 {test['test/f1']:.4f}" in printed
    assert "auroc/3" not in printed
    file = run / "checkpoints" / fit["best_checkpoint"]
    loaded = ImageClassifier.load_from_checkpoint(file)
    assert loaded.state_dict().keys() == read(file)["state_dict"].keys()
    with pytest.raises(UserError, match="set optimizer_factory"):
        loaded.configure_optimizers()
    assert all(name.startswith("net.") for name in read(file)["state_dict"])
    shutil.copytree(run, run.with_name("other"))
    assert {"val/f1", "test/f1"} <= {*lit(f"compare {run} {run.with_name('other')}").out.split()}


def test_metrics_do_not_affect_training_even_in_a_resumed_run(lit):
    fit = f"fit -c configs/quickstart.yaml {TINY} --model.schedulers=null --test_after_fit=false"
    plain = lit(f"{fit} --trainer.max_epochs=2").run
    more = lit(f"{fit} --trainer.max_epochs=1 --model.metrics=[MulticlassF1Score]").run
    assert lit(f"fit --run {more} --trainer.max_epochs=2").status == 0
    first, second = (read(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (plain, more))
    assert same_weights(first, second)
    assert json.loads((more / "metrics.json").read_text())["fit"]["val/multiclass_f1_score"] > 0


def evaluated(trainer, task, data):
    return trainer().test(task, datamodule=data, verbose=False)[0]


class Bits(Task):
    """A user's task that predicts both bits of the class, and returns the metrics' inputs or None."""

    def __init__(self, gives=True, **kwargs):
        super().__init__(torch.optim.SGD, **kwargs)
        self.gives = gives

    def evaluation_step(self, batch, split):
        bits = torch.stack([batch.targets % 2, batch.targets // 2], dim=1)
        self.step(bits.float().mean(), len(bits))
        return {"predictions": bits.float(), "targets": bits} if self.gives else None


def test_a_task_without_metrics_of_its_own_reports_the_configured_metrics(trainer):
    class OnlyMetrics(Bits):
        def step(self, loss, count):
            return loss

    assert evaluated(trainer, OnlyMetrics(metrics=[MultilabelF1Score(2)]), Images()) == {"test/multilabel_f1_score": 1}


def test_a_metric_may_return_a_python_float(trainer):
    class Fraction(MultilabelF1Score):
        def compute(self):
            return float(super().compute())

    assert evaluated(trainer, Bits(metrics=[Fraction(2)]), Images())["test/fraction"] == 1


def test_a_metric_may_be_wrapped_and_data_of_unknown_length_may_be_empty(trainer):
    metrics = {"f1": MinMaxMetric(MultilabelF1Score(2))}
    assert evaluated(trainer, Bits(metrics=metrics), Images())["test/f1/raw"] == 1

    class Empty(IterableDataset):
        def __iter__(self):
            return iter(())

    trainer().test(Bits(metrics=metrics), DataLoader(Empty()))


def test_custom_tasks_provide_metric_inputs_and_misuse_causes_an_error(trainer):
    data, f1 = Images(), MultilabelF1Score(2)
    assert evaluated(trainer, Bits(metrics=[f1]), data)["test/multilabel_f1_score"] == 1
    for task, message in (
        (Bits(metrics=[partial(MultilabelF1Score)]), "MultilabelF1Score: Expected argument `num_labels`"),
        (Bits(gives=False, metrics=[f1]), "Bits.evaluation_step returns no predictions and targets"),
        (classifier(metrics=[MeanAbsoluteError()]), "MeanAbsoluteError: Predictions and targets are expected"),
        (classifier(metrics=[MulticlassROC(4)]), "MulticlassROC: it returns neither a number"),
        (classifier(metrics=[BinaryAUROC()]), r"BinaryAUROC: index .* have the shapes \(\d+, 4\), \(\d+,\)"),
        (classifier(metrics={"my f1": f1}), "'my f1' is not a valid name"),
        (classifier(metrics=[f1, f1]), "duplicate name multilabel_f1_score"),
        (classifier(metrics={"accuracy": MulticlassAUROC(4)}), "the task already logs accuracy"),
    ):
        with pytest.raises(UserError, match=f"^model.metrics: {message}"):
            evaluated(trainer, task, data)

    class Ordinary(ImageClassifier):
        def test_step(self, batch, batch_idx):
            self.log("test/size", len(batch[0]))

    own = Ordinary(linear(), partial(torch.optim.SGD, lr=0.1), NAMES, metrics=[MulticlassAUROC(4)])
    with pytest.raises(UserError, match=r"Ordinary\.test_step does not call self\.evaluate"):
        evaluated(trainer, own, data)
    own.validation_step = lambda batch, batch_idx: None
    with pytest.raises(UserError, match=r"Ordinary\.validation_step does not call self\.evaluate"):
        trainer().validate(own, datamodule=data)

    class Broken(MeanAbsoluteError):
        def update(self, preds, target):
            raise KeyError("a bug of the metric")

    with pytest.raises(KeyError, match="a bug of the metric"):  # not wrapped, so its traceback is shown
        evaluated(trainer, classifier(metrics=[Broken()]), data)
