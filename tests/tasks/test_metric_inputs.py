"""Tests the inputs that the tasks pass to torchmetrics."""

from functools import partial

import pytest
import torch
from sklearn.metrics import roc_auc_score
from test_regressor import regressor, table
from torch import nn
from torchmetrics.classification import MulticlassAUROC, MulticlassCalibrationError
from torchmetrics.regression import MeanAbsoluteError, PearsonCorrCoef

from classifier_data import NAMES, Images, classifier, linear


def evaluated(trainer, task, data):
    return trainer().test(task, datamodule=data, verbose=False)[0]


def test_classifiers_pass_the_probabilities_from_all_batches(trainer):
    """Logits of 0 must not be treated as probabilities: each class has probability 1/4."""
    zero, data = linear().requires_grad_(False), Images(eval_batch_size=3)
    for weights in zero.parameters():
        nn.init.zeros_(weights)
    found = evaluated(trainer, classifier(zero, metrics={"ece": MulticlassCalibrationError(4)}), data)
    assert found["test/ece"] == pytest.approx(abs(found["test/accuracy"] - 1 / 4), abs=1e-6)
    task = classifier(metrics=[partial(MulticlassAUROC, average="none")])  # the task adds the number of classes
    images, targets = data.floats("test")
    expected = roc_auc_score(targets, task(images).softmax(1).detach(), multi_class="ovr", average=None)
    found = evaluated(trainer, task, data)
    assert [found[f"test/multiclass_auroc/{name}"] for name in NAMES] == pytest.approx(expected, abs=1e-6)


def test_regressors_pass_unscaled_predictions_and_log_one_value_per_target(trainer):
    one, two = (table(targets=targets, eval_batch_size=5) for targets in (1, 2))
    found = evaluated(trainer, regressor(one, metrics=[MeanAbsoluteError()]), one)
    assert found["test/mean_absolute_error"] == pytest.approx(found["test/mae"], rel=1e-5)
    task = regressor(two, metrics=[PearsonCorrCoef(num_outputs=2)])
    features, targets = two.splits["test"]
    both = torch.cat([task(features).detach(), targets], dim=1).double().T.corrcoef()
    found = evaluated(trainer, task, two)
    for k, name in enumerate(two.target_names):
        assert found[f"test/pearson_corr_coef/{name}"] == pytest.approx(both[k, k + 2].item(), abs=1e-5)
