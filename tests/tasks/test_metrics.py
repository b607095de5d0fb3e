"""Metrics of torchmetrics by their names: what they are given, what they are called, what follows them."""

import csv
import json
import shutil
from functools import partial

import pytest
import torch
import yaml
from sklearn.metrics import roc_auc_score
from test_regressor import regressor, table
from torch import nn
from torchmetrics import MeanAbsoluteError, PearsonCorrCoef
from torchmetrics.classification import MulticlassAUROC, MulticlassCalibrationError, MulticlassROC, MultilabelF1Score

from classifier_data import NAMES, Images, classifier, linear
from lit_project.engine.checkpoints import read
from lit_project.engine.errors import UserError
from lit_project.engine.task import Task
from lit_project.tasks.classification import ImageClassifier
from tiny import TINY

F1 = "torchmetrics.classification.MulticlassF1Score"


def followed(trainer):
    """An overlay: three metrics, and a checkpoint, an end and a rate that follow one of them."""
    micro = {"class_path": F1, "init_args": {"average": "micro"}}
    auroc = {"class_path": "torchmetrics.classification.MulticlassAUROC", "init_args": {"average": "none"}}
    plateau = {"class_path": "torch.optim.lr_scheduler.ReduceLROnPlateau", "init_args": {"patience": 0, "mode": "min"}}
    watch = {"monitor": "val/f1", "mode": "max"}
    model = {
        "metrics": {"f1": {"class_path": F1}, "f1_micro": micro, "auroc": auroc},
        "schedulers": [{"scheduler": plateau, "interval": "epoch", "monitor": "val/f1"}],
    }
    callbacks = [
        {"class_path": "Checkpoint", "init_args": watch},
        {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {**watch, "min_delta": 2.0}},
    ]
    return {"model": {"init_args": model}, "trainer": {"callbacks": callbacks, **trainer}}


def test_callbacks_and_schedules_follow_a_metric_and_it_is_recorded_and_compared(lit, workspace):
    (workspace / "followed.yaml").write_text(yaml.safe_dump(followed({"max_epochs": 9})))
    run = lit(f"fit -c configs/quickstart.yaml {TINY} -c followed.yaml --test_after_fit=true").run
    metrics = json.loads((run / "metrics.json").read_text())
    rows = [row for row in csv.DictReader((run / "metrics.csv").open()) if row["val/f1"]]
    assert len(rows) == 4  # patience 3, and nothing grows by 2
    rates = [float(row["lr"]) for row in rows]
    assert rates == pytest.approx([0.004, 0.004, 0.0004, 0.00004])  # each F1 is above the first, where less is better
    best = max(float(row["val/f1"]) for row in rows)
    assert metrics["fit"]["best val/f1"] == pytest.approx(best, rel=1e-6)
    test = metrics["test"]
    assert test["test/f1_micro"] == test["test/accuracy"]  # which it is by definition, for one class per sample
    assert {f"test/auroc/{k}" for k in range(10)} <= test.keys()
    printed = lit(f"test --run {run}").out
    assert f"test/f1 {test['test/f1']:.4f}" in printed
    assert "auroc/3" not in printed
    file = run / "checkpoints" / metrics["fit"]["best_checkpoint"]
    assert not [name for name in read(file)["state_dict"] if not name.startswith("net.")]
    assert ImageClassifier.load_from_checkpoint(file).state_dict().keys() == read(file)["state_dict"].keys()
    shutil.copytree(run, run.with_name("other"))
    assert {"val/f1", "test/f1"} <= {*lit(f"compare {run} {run.with_name('other')}").out.split()}


def test_metrics_change_nothing_else_also_in_a_run_that_is_resumed(lit):
    fit = f"fit -c configs/quickstart.yaml {TINY} --model.schedulers=null --test_after_fit=false"
    plain = lit(f"{fit} --trainer.max_epochs=2").run
    more = lit(f"{fit} --trainer.max_epochs=1 --model.metrics=[{F1}]").run
    assert lit(f"fit --run {more} --trainer.max_epochs=2").status == 0
    first, second = (read(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (plain, more))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert json.loads((more / "metrics.json").read_text())["fit"]["val/multiclass_f1_score"] > 0


def evaluated(trainer, task, data):
    (found,) = trainer().test(task, datamodule=data, verbose=False)
    return found


def test_classifiers_give_probabilities_over_all_batches(trainer):
    """Logits of 0 are not taken for probabilities: each class has 1/4."""
    zero = linear()
    nn.init.zeros_(zero[1].weight)
    nn.init.zeros_(zero[1].bias)
    data = Images(eval_batch_size=3)
    found = evaluated(trainer, classifier(zero, top_k=1, metrics={"ece": MulticlassCalibrationError(4, 15)}), data)
    assert found["test/ece"] == pytest.approx(abs(found["test/accuracy"] - 1 / 4), abs=1e-6)
    task = classifier(metrics=[partial(MulticlassAUROC, average="none")])  # which is told the number of classes
    images, targets = data.floats("test")
    expected = roc_auc_score(targets, task(images).softmax(1).detach(), multi_class="ovr", average=None)
    found = evaluated(trainer, task, data)
    assert [found[f"test/multiclass_auroc/{name}"] for name in NAMES] == pytest.approx(expected, abs=1e-6)


def test_regressors_give_predictions_in_units_and_metrics_know_the_targets(trainer):
    data = table(targets=1, eval_batch_size=5)
    found = evaluated(trainer, regressor(data, metrics=[MeanAbsoluteError()]), data)
    assert found["test/mean_absolute_error"] == pytest.approx(found["test/mae"], rel=1e-5)
    data = table(eval_batch_size=5)
    task = regressor(data, metrics=[PearsonCorrCoef(num_outputs=2)])
    features, targets = data.splits["test"]
    both = torch.cat([task(features).detach(), targets], dim=1).double().T.corrcoef()
    found = evaluated(trainer, task, data)
    pairs = {f"test/pearson_corr_coef/{name}": both[k, k + 2].item() for k, name in enumerate(data.target_names)}
    assert {name: found[name] for name in pairs} == pytest.approx(pairs, abs=1e-5)


class Signs(Task):
    """A task of one's own: returns what metrics are given, or nothing."""

    def __init__(self, gives=True, **kwargs):
        super().__init__(torch.optim.SGD, **kwargs)
        self.gives = gives

    def evaluation_step(self, batch, split):
        signs = torch.stack([batch.targets % 2, batch.targets // 2], dim=1)
        self.step(signs.float().mean(), len(signs))
        return {"scores": signs - 0.5, "targets": signs} if self.gives else None


def test_tasks_of_ones_own_return_what_metrics_are_given(trainer):
    data = Images()
    assert evaluated(trainer, Signs(metrics=[MultilabelF1Score(2)]), data)["test/multilabel_f1_score"] == 1
    for task, message in (
        (Signs(metrics=[partial(MultilabelF1Score)]), "MultilabelF1Score needs num_labels"),
        (Signs(gives=False, metrics=[MultilabelF1Score(2)]), "Signs.evaluation_step returns no predictions"),
        (classifier(metrics=[MeanAbsoluteError()]), "MeanAbsoluteError does not fit the task: Predictions and"),
        (classifier(metrics=[MulticlassROC(4)]), "MulticlassROC does not fit the task: it gives no number"),
        (classifier(metrics=[MultilabelF1Score(4), MultilabelF1Score(4)]), "two are called multilabel_f1_score"),
        (classifier(metrics={"accuracy": MulticlassAUROC(4)}), "the task itself logs accuracy"),
    ):
        with pytest.raises(UserError, match=f"^model.metrics: .*{message}"):
            evaluated(trainer, task, data)
