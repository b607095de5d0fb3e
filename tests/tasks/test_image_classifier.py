"""Tests that the image classifier's outputs and metrics match plain computations over all samples."""

import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, recall_score, top_k_accuracy_score
from torch import nn
from torch.nn import functional as F

from classifier_data import NAMES, Images, classifier, linear
from lit_engine.errors import UserError
from lit_project.models.losses import SmoothedCrossEntropy
from lit_project.tasks.classification import ImageClassifier


def test_forward_normalizes_and_returns_logits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
    mean, std = [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]
    task = ImageClassifier(net, torch.optim.SGD, ["a", "b", "c"], mean, std)
    x = torch.rand(5, 3, 4, 4)
    channels = [(x[:, c] - mean[c]) / std[c] for c in range(3)]
    assert torch.allclose(task(x), net(torch.stack(channels, dim=1)), atol=1e-6)
    with pytest.raises(UserError, match=r"Sequential returns shape \(5, 3\), expected \(B, 2\)"):
        ImageClassifier(net, torch.optim.SGD, ["a", "b"], mean, std)(x)


@pytest.mark.parametrize(("split", "batch_size"), [("val", 3), ("test", 100)])
def test_metrics_match_scikit_learn_over_all_samples(trainer, split, batch_size):
    torch.manual_seed(0)
    task, data = classifier(top_k=2), Images(eval_batch_size=batch_size)
    runner = trainer()
    evaluate = {"val": runner.validate, "test": runner.test}[split]
    evaluate(task, datamodule=data, verbose=False)
    (metrics,) = evaluate(task, datamodule=data, verbose=False)  # a second evaluation starts from zero
    images, targets = data.floats(split)
    with torch.no_grad():
        logits = task(images)
    predicted = logits.argmax(1)
    recall = recall_score(targets, predicted, average=None)
    expected = {
        "loss": F.cross_entropy(logits, targets).item(),
        "accuracy": accuracy_score(targets, predicted),
        "top2_accuracy": top_k_accuracy_score(targets, logits, k=2),
        "samples": 17,
        **{f"class_accuracy/{name}": value for name, value in zip(NAMES, recall, strict=True)},
    }
    assert metrics == {f"{split}/{name}": pytest.approx(value, rel=1e-6) for name, value in expected.items()}
    assert torch.equal(task.confusion_matrix, torch.from_numpy(confusion_matrix(targets, predicted)).double())


class CountsTheFirst(ImageClassifier):
    def evaluation_step(self, batch, split):
        outputs = super().evaluation_step(batch, split)
        self.evaluated.add(0, first=(outputs["targets"] == 0).sum())
        return outputs


def test_subclass_sums_are_logged_and_numpy_arrays_are_accepted(trainer):
    class Arrays(Images):
        def load(self, split):
            images, targets = super().load(split)
            return images.numpy(), targets.int().numpy()

    data = Arrays()
    task = CountsTheFirst(linear(), torch.optim.SGD, NAMES)
    (metrics,) = trainer().test(task, datamodule=data, verbose=False)
    targets = Images().load("test")[1]
    assert metrics["test/first"] == pytest.approx((targets == 0).double().mean().item())
    assert metrics["test/samples"] == len(targets)


@pytest.mark.parametrize(
    "smoothing",
    [
        {"label_smoothing": 0.3},
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.3)},
        {"loss": SmoothedCrossEntropy(0.3 * 3 / 4)},
    ],
    ids=["the task's", "torch's", "ours"],
)
def test_evaluation_loss_excludes_label_smoothing(trainer, smoothing):
    torch.manual_seed(0)
    task, data = classifier(lr=0.0, **smoothing), Images()
    runner = trainer(max_epochs=1)
    runner.fit(task, datamodule=data)
    for split, epsilon in (("train", 0.3), ("val", 0.0)):
        images, targets = data.floats(split)
        with torch.no_grad():
            expected = F.cross_entropy(task(images), targets, label_smoothing=epsilon).item()
        assert runner.callback_metrics[f"{split}/loss"].item() == pytest.approx(expected, rel=1e-6)


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="label_smoothing applies only to the default loss"):
        classifier(loss=nn.MultiMarginLoss(), label_smoothing=0.1)
    with pytest.raises(ValueError, match="top_k must be between 1 and 4 for 4 classes, got 5"):
        classifier(top_k=5)


def test_prediction_returns_one_row_per_sample():
    torch.manual_seed(0)
    task = classifier().eval()
    images, targets = Images().floats("val")
    indices = torch.arange(100, 117)
    with torch.no_grad():
        rows = task.predict_step((images, targets, indices), 0)
        probabilities = task(images).softmax(1)
    assert rows["index"] == list(range(100, 117))
    assert rows["prediction"] == probabilities.argmax(1).tolist()
    assert rows["class_name"] == [NAMES[k] for k in rows["prediction"]]
    assert rows["probability"] == pytest.approx(probabilities.amax(1).tolist())
    assert rows["target"] == targets.tolist()
    unknown = task.predict_step((images, torch.full_like(targets, -1), indices), 0)
    assert "target" not in unknown
    assert unknown["prediction"] == rows["prediction"]
    assert task.predict_step((images[:0], targets[:0], indices[:0]), 0) == {}


def test_normalization_is_not_part_of_the_state_dict():
    one = ImageClassifier(nn.Flatten(), torch.optim.SGD, ["a", "b"], [0.1], [0.2])
    two = ImageClassifier(nn.Flatten(), torch.optim.SGD, ["a", "b"], [0.5], [0.6])
    two.load_state_dict(one.state_dict())
    assert two(torch.full((1, 1, 1, 2), 0.5)).tolist() == [[0, 0]]


def test_flipped_views_are_averaged_only_in_test_and_predict(trainer):
    flips = ["horizontal", "vertical"]
    torch.manual_seed(0)
    net = linear()
    images, targets = Images().floats("test")
    plain, mirrored = classifier(net), classifier(net, test_time_flips=flips)
    views = [images]
    for flip in flips:  # four views, of which one is rotated by 180°
        views += [view.flip(-1 if flip == "horizontal" else -2) for view in views]
    with torch.no_grad():
        mean = torch.stack([plain(view).softmax(1) for view in views]).mean(0)
        rows = mirrored.predict_step((images, targets, torch.arange(len(images))), 0)
    assert rows["prediction"] == mean.argmax(1).tolist()
    assert rows["probability"] == pytest.approx(mean.amax(1).tolist(), rel=1e-5)
    runner = trainer()
    test = runner.test(mirrored, datamodule=Images(), verbose=False)[0]
    assert test["test/accuracy"] == pytest.approx((mean.argmax(1) == targets).float().mean().item())
    assert test["test/loss"] == pytest.approx(F.nll_loss(mean.log(), targets).item(), rel=1e-5)
    val = [trainer().validate(task, datamodule=Images(), verbose=False)[0]["val/loss"] for task in (plain, mirrored)]
    assert val[0] == val[1]
