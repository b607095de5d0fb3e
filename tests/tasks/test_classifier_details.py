"""Tests class weights, calibration bins, double precision, and the views for test-time augmentation."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from classifier_data import NAMES, Images, classifier, linear
from lit_engine.data.sampling import weights_by_class
from lit_engine.errors import DataError
from lit_project.models.losses import FocalLoss, WeightedCrossEntropy, build_loss
from lit_project.tasks.classification_results import Calibration
from lit_project.tasks.test_time_augmentation import mean_logits, views


def test_class_weights_are_given_by_name():
    first, second, *others = NAMES
    assert classifier(class_weights={second: 3.0}).loss.weight.tolist() == [1, 3, *[1] * len(others)]
    assert weights_by_class("class_weights", {5: 2.0}, ["3", "5"]) == [1, 2]  # YAML reads 5 as a number
    for options, message in (
        ({"class_weights": {"nobody": 1.0}}, "there is no class 'nobody'"),
        ({"class_weights": {False: 1.0}}, "there is no class 'False'; put yes, no, on and off in quotes"),
        ({"class_weights": {first: -1.0}}, "class weights must be finite and not negative, got -1.0$"),
        ({"class_weights": {first: 2.0}, "loss": FocalLoss()}, "class_weights applies only to the default loss"),
        ({"label_smoothing": 1.5}, r"label_smoothing must be in \[0, 1\], got 1.5"),
        ({"loss": FocalLoss(weight=[1.0, 2.0])}, f"2 weights for {len(NAMES)} classes"),
    ):
        with pytest.raises((ValueError, DataError), match=message):
            classifier(**options)


def test_shifted_views_move_the_image_towards_each_corner():
    image = torch.zeros(1, 1, 9, 9)
    image[..., 4, 4] = 1
    places = [divmod(int(view.flatten().argmax()), 9) for view in views(image, shift=2)]
    assert places == [(4, 4), (6, 6), (6, 2), (2, 6), (2, 2)]


def test_views_are_averaged_if_the_net_reuses_its_output_buffer():
    """Compiled nets reuse this buffer if they use CUDA graphs."""
    net, images, buffer = linear(), torch.rand(3, 1, 4, 4), torch.empty(3, 4)
    with torch.no_grad():
        found = mean_logits(lambda view: buffer.copy_(net(view)), images, ["horizontal"], shift=1)
        expected = torch.stack([net(view).softmax(1) for view in views(images, ["horizontal"], shift=1)]).mean(0)
    torch.testing.assert_close(found.exp(), expected)


def test_evaluation_keeps_double_precision(trainer):
    task = classifier(test_time_flips=["horizontal"])
    found = trainer(precision="64-true").validate(task, datamodule=Images(), verbose=False)[0]["val/loss"]
    images, targets = Images().floats("val")
    assert found == pytest.approx(F.cross_entropy(task(images.double()), targets).item(), rel=1e-12)
    assert task.test_logits(images).dtype == torch.double


def test_calibration_has_15_bins_of_equal_width():
    calibration = Calibration()
    confidence = torch.tensor([0.59, 0.61, 0.79, 0.81])  # on both sides of 9/15 and 12/15
    logits = torch.stack([torch.log(confidence / (1 - confidence)), torch.zeros(4)], dim=1)
    calibration.update(logits, torch.zeros(4, dtype=torch.long))
    assert [place for place, samples in enumerate(calibration.compute()["samples"]) if samples] == [8, 9, 11, 12]


def test_weighted_loss_is_a_mean_over_samples():
    torch.manual_seed(0)
    logits, targets = torch.randn(7, 5, dtype=torch.double), torch.randint(5, (7,))
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=torch.double)
    each = F.cross_entropy(logits, targets, reduction="none") * weights[targets]
    loss = WeightedCrossEntropy(weights.tolist()).double()
    torch.testing.assert_close(loss(logits, targets), each.mean())
    halves = (4 * loss(logits[:4], targets[:4]) + 3 * loss(logits[4:], targets[4:])) / 7
    torch.testing.assert_close(halves, loss(logits, targets))  # torch's own weighting does not satisfy this
    smoothed = WeightedCrossEntropy([1.0] * 5, 0.1)(logits, targets)
    torch.testing.assert_close(smoothed, F.cross_entropy(logits, targets, label_smoothing=0.1))


@pytest.mark.parametrize("weight", [torch.tensor(0.5), torch.ones(2)], ids=["scalar", "one per term"])
def test_weights_of_a_custom_loss_need_not_be_class_weights(weight):
    loss = nn.Module()
    loss.register_buffer("weight", weight)
    assert build_loss(["a", "b", "c"], loss) is loss
