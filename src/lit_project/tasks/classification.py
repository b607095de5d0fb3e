"""Classification with one class per sample: of anything, and of images with the parts of their recipes."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassConfusionMatrix

from lit_engine.errors import UserError, did_you_mean
from lit_engine.training.exact import Totals
from lit_engine.training.schedules import OptimizerFactory
from lit_engine.training.task import Task
from lit_project.models.losses import WeightedCrossEntropy, WeightPenalty
from lit_project.tasks.mixup import Mixing
from lit_project.tasks.test_time_augmentation import Flip, mean_logits

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported


class Calibration(Metric):
    """Samples, sum of the confidence and right predictions in 15 equal bins of the confidence (Guo et al. 2017)."""

    sums: Tensor  # (3, 15)

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(3, 15), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Counts logits `(B, num_classes)` and targets `(B,)`."""
        confidence, predicted = logits.softmax(dim=1).max(dim=1)
        confidence = confidence.nan_to_num()  # RunRecord reports a net that has diverged
        bins = (confidence * 15).long().clamp(max=14)
        columns = torch.stack([torch.ones_like(confidence), confidence, (predicted == targets).to(confidence)])
        self.sums = self.sums.float().index_add(1, bins, columns.float())  # counts in bfloat16 would be wrong

    def compute(self) -> dict[str, Any]:
        """`ece`, the expected calibration error; lists of 15: `samples`, mean `confidence` and `accuracy`, or None."""
        samples, confidence, right = self.sums.cpu().double()  # Apple's GPUs have no float64
        means = [
            [round(float(s / n), 6) if n else None for s, n in zip(x, samples, strict=True)]
            for x in (confidence, right)
        ]
        error = float((confidence - right).abs().sum() / samples.sum())
        return {"ece": error, "samples": samples.int().tolist(), "confidence": means[0], "accuracy": means[1]}


def weights_of(
    given: Mapping[str, float] | Literal["balanced"], class_names: Sequence[str], counts: Sequence[int] | None
) -> list[float]:
    """The weight of each class in the order of `class_names`; see `Classifier`.

    Raises:
        ValueError: an unknown class, a weight that is not above 0, or unknown class counts.
    """
    if given == "balanced":
        if counts is None or not all(counts):
            raise ValueError("class_weights balanced: the data have no class_counts; give the weights by class name")
        return [sum(counts) / len(counts) / count for count in counts]
    assert not isinstance(given, str)
    for name, weight in given.items():
        if name not in class_names:
            raise ValueError(f"class_weights: there is no class {name!r}{did_you_mean(name, class_names)}")
        if not weight > 0:
            raise ValueError(f"class_weights: the weight of {name!r} must be above 0, got {weight}")
    return [given.get(name, 1.0) for name in class_names]


class Classifier(Task):
    """Trains a net that gives logits `(B, num_classes)` on batches of `(inputs, targets, indices)`.

    Logged at each epoch's end, over all samples and processes: `train/loss`, `train/accuracy`; for `val` and `test`
    also `top{k}_accuracy`, `class_accuracy/NAME` (recall) and `samples`. `val/loss` and `test/loss` are without label
    smoothing, `train/loss` is with it.

    Args:
        net: inputs in, logits out (no softmax).
        optimizer: makes the optimizer of the parameters.
        class_names: in the order of the logits; from the data, kept in the checkpoint.
        loss: of logits `(B, num_classes)` and classes `(B,)`, averaged over the batch; default: cross-entropy.
        label_smoothing: share of the target spread evenly over all classes (Szegedy et al. 2016), in training; only for
            the default loss.
        class_weights: the weights in the default loss by class name, 1 for the others; or `balanced`: inversely
            proportional to the samples of the class in training, with a mean of 1 over these samples.
        class_counts: samples of each class in training; from the data, if they know them.
        top_k: also report how often the class is among the k likeliest; 1: do not; default: 3 if there are more
            classes.
        **kwargs: of `Task`: schedulers, parameter_groups, channels_last, compile, metrics.

    Raises:
        ValueError: fewer than two classes; `label_smoothing` or `class_weights` next to a `loss`; weights of unknown
            classes or not above 0; `top_k` beyond the number of classes.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        class_names: Sequence[str],
        loss: nn.Module | None = None,
        label_smoothing: float = 0.0,
        class_weights: dict[str, float] | Literal["balanced"] | None = None,
        class_counts: Sequence[int] | None = None,
        top_k: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        num_classes = len(class_names)
        if num_classes < 2:
            raise ValueError(f"a classifier needs two classes at least, got {', '.join(class_names) or 'none'}")
        for name, value in (("label_smoothing", label_smoothing), ("class_weights", class_weights)):
            if loss is not None and value:
                raise ValueError(f"{name} is for the default loss: leave out either {name} or the loss")
        weight = getattr(loss, "weight", None)
        if isinstance(weight, Tensor) and len(weight) != num_classes:
            raise ValueError(f"the loss has {len(weight)} weights for {num_classes} classes; class_weights takes names")
        if top_k is None:
            top_k = 3 if num_classes > 3 else 1
        if not 1 <= top_k <= num_classes:
            raise ValueError(f"top_k must be between 1 and the {num_classes} classes, got {top_k}")
        self.net = net
        if loss is None and class_weights:
            loss = WeightedCrossEntropy(weights_of(class_weights, class_names, class_counts), label_smoothing)
        self.loss = loss or nn.CrossEntropyLoss(label_smoothing=label_smoothing)
        self.class_names = list(class_names)
        # The data module checks the targets once per split, so that the metrics need not at each step.
        self.confusion = MulticlassConfusionMatrix(num_classes, validate_args=False)
        self.top_k = top_k
        self.calibration = Calibration()
        self.all_probabilities = False  # whether `predict_step` gives those of all classes
        self.confusion_matrix: Tensor | None = None  # of the last evaluation: [target, prediction], counts

    def forward(self, inputs: Tensor) -> Tensor:
        """Inputs `(B, …)` → logits `(B, num_classes)`."""
        return self.net(inputs)

    def test_logits(self, inputs: Tensor) -> Tensor:
        """Logits of `test` and `predict`, float32 `(B, num_classes)`."""
        return self(inputs).float()

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Of the classes in `test` and `predict`, float32 `(B, num_classes)`."""
        return self.test_logits(inputs).softmax(dim=1)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits, targets = self(batch[0]), batch[1]
        return self.step(self.loss(logits, targets), len(targets), accuracy=(logits.argmax(dim=1) == targets).sum())

    def evaluation_start(self) -> None:
        super().evaluation_start()
        loss = copy(self.loss)
        if hasattr(loss, "label_smoothing"):  # only training smooths the labels
            loss.label_smoothing = 0.0  # type: ignore[assignment]
        self.evaluation_loss = loss.forward  # a module here would be saved in checkpoints a second time
        # The validations of a fit show neither calibration nor confusion.
        self.in_detail = self.trainer.state.fn != "fit"
        self.confusion.reset()
        self.calibration.reset()

    def evaluation_step(self, batch: Any, split: str) -> dict[str, Tensor]:
        """Counts one batch; gives its `logits` `(B, num_classes)` and `targets` `(B,)` to callbacks."""
        inputs, targets = batch[0], batch[1]
        logits = self(inputs).float() if split == "val" else self.test_logits(inputs)
        sums = {}
        if self.top_k > 1:
            sums[f"top{self.top_k}_accuracy"] = (logits.topk(self.top_k).indices == targets[:, None]).sum()
        self.step(self.evaluation_loss(logits, targets), len(targets), **sums)
        self.confusion.update(logits, targets)
        if self.in_detail:
            self.calibration.update(logits, targets)
        return {"logits": logits, "targets": targets}

    def metric_inputs(self, outputs: Any) -> Iterable[Tensor]:
        """Probabilities `(B, num_classes)`, which logits between 0 and 1 would be taken for, and targets `(B,)`."""
        return outputs["logits"].softmax(dim=1), outputs["targets"]

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        self.confusion_matrix = counts = self.confusion.compute().cpu().double()
        right, samples = counts.diagonal(), counts.sum(dim=1)
        if self.in_detail:
            # metrics.json holds true class → predicted class → samples.
            confusion: dict[str, dict[str, int]] = {name: {} for name in self.class_names}
            for (true, predicted), count in zip(counts.nonzero().tolist(), counts[counts > 0].tolist(), strict=True):
                confusion[self.class_names[true]][self.class_names[predicted]] = int(count)
            self.notes["confusion"] = confusion
            self.notes["calibration"] = self.calibration.compute()
        values = {
            **totals.means(),  # the loss, top-k accuracy, and the sums that a subclass adds
            "accuracy": (right.sum() / counts.sum()).item(),
            "samples": counts.sum().item(),
        }
        for name, hits, count in zip(self.class_names, right.tolist(), samples.tolist(), strict=True):
            if count > 0:  # a class without samples has no recall
                values[f"class_accuracy/{name}"] = hits / count
        return values

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Rows of a table, one per sample: index, class, its name and its probability; the target if it is known.

        With `all_probabilities` there is a column `probability/CLASS` for each class.
        """
        inputs, targets, indices = batch
        if len(indices) == 0:
            return {}
        of_all = self.probabilities(inputs)
        probabilities, classes = of_all.max(dim=1)
        rows: dict[str, list[Any]] = {
            "index": indices.tolist(),
            "prediction": classes.tolist(),
            "class_name": [self.class_names[k] for k in classes.tolist()],
            "probability": probabilities.tolist(),
        }
        if (targets >= 0).all():
            rows["target"] = targets.tolist()
        if self.all_probabilities:
            rows |= {f"probability/{n}": p.tolist() for n, p in zip(self.class_names, of_all.T, strict=True)}
        return rows

    def exported(self, batch: Any) -> "Exported":
        """For `export`: inputs as `predict` gets them → `probabilities`."""
        from lit_engine.tools.export.parts import Exported, Part

        name = getattr(batch, "_fields", ("inputs",))[0]
        part = Part(self, self.probabilities, {name: batch[0]}, ["probabilities"])

        def difference(runs: Any, batch: Any, rows: Any) -> float:
            (found,) = runs["model"](batch[0])
            chosen = found.gather(1, torch.tensor(rows["prediction"])[:, None])[:, 0]
            gaps = found - self.probabilities(batch[0]), chosen - torch.tensor(rows["probability"])
            return float(torch.cat([gap.flatten() for gap in gaps]).abs().max())

        return Exported({"model": part}, difference, "probability")


class ImageClassifier(Classifier):
    """A `Classifier` of images `(B, C, H, W)`: normalisation, and what recipes do to images in training and test.

    The checkpoint holds all that prediction needs: class names, `mean` and `std` are hyper-parameters that the
    config takes from the data, and `forward` normalises.

    Args:
        net: images in, logits out (no softmax).
        optimizer: makes the optimizer of the parameters.
        class_names: in the order of the logits; from the data.
        mean: of each channel, of values in [0, 1]; from the data.
        std: the same.
        mixing: mixup and cutmix in training; see `Mixing`. The training accuracy is then the expected one: the share of
            the target that lies on the predicted class.
        penalty: of large weights, added to the loss in training; logged as `train/penalty`, no part of `train/loss`.
        test_time_flips: `test` and `predict` average the probabilities of the image and of these mirror images of it.
        test_time_shift: and of the image shifted by so many pixels into each corner, black behind it; see `views`.
        **kwargs: of `Classifier` and `Task`.

    Raises:
        ValueError: a negative `test_time_shift`; a loss that does not take the soft targets of `mixing`.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        class_names: Sequence[str],
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        mixing: Mixing | None = None,
        penalty: WeightPenalty | None = None,
        test_time_flips: Sequence[Flip] = (),
        test_time_shift: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(net, optimizer, class_names, **kwargs)
        if test_time_shift < 0:
            raise ValueError(f"test_time_shift must be at least 0 pixels, got {test_time_shift}")
        if mixing is not None:
            _check_soft(self.loss, len(class_names))
        self.mixing, self.penalty = mixing, penalty
        self.notes["task"] = "image-classification"  # as the Hugging Face Hub calls it
        self.test_time_flips, self.test_time_shift = test_time_flips, test_time_shift
        self.epochs: int | None = None  # of the run, if its end is known
        self.mean: Tensor
        self.std: Tensor
        # They are hyper-parameters and no weights: a warm start on other data keeps the statistics of those data.
        self.register_buffer("mean", torch.tensor(list(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Float images in [0, 1] `(B, C, H, W)` → logits `(B, num_classes)`."""
        normalised = (images - self.mean).div_(self.std)
        return self.net(normalised.to(self.mean.dtype))  # which the precision may have changed

    def test_logits(self, images: Tensor) -> Tensor:
        """Logits `(B, num_classes)`, or the logarithm of the mean probabilities over the views of the images."""
        return mean_logits(self, images, self.test_time_flips, self.test_time_shift)

    def configure_model(self) -> None:
        """Shards the net; raises UserError for a penalty, which needs whole weights."""
        if self.device_mesh is not None and self.penalty is not None:
            raise UserError("a penalty of the weights needs whole ones, and those of this run are sharded")
        super().configure_model()

    def on_train_start(self) -> None:
        """Learns how long the run is, for mixing that ends before it does."""
        super().on_train_start()
        self.epochs = self.length("epoch")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, targets = batch[0], batch[1]
        if self.mixing is not None and self.mixing.active(self.current_epoch, self.epochs):
            images, targets = self.mixing(images, targets, len(self.class_names))
        logits = self(images)
        loss, size = self.loss(logits, targets), len(targets)
        classes = logits.detach().argmax(dim=1)
        correct = (classes == targets).sum() if targets.ndim == 1 else targets.gather(1, classes[:, None]).sum()
        if self.penalty is None:
            return self.step(loss, size, accuracy=correct)
        penalty = self.penalty(self)
        return self.step(loss + penalty, size, loss=loss * size, accuracy=correct, penalty=penalty * size)


def _check_soft(loss: nn.Module, num_classes: int) -> None:
    """Raises ValueError unless a loss takes probabilities `(B, K)` for targets."""
    soft = torch.full((2, num_classes), 1 / num_classes)
    try:
        value = loss(torch.zeros_like(soft), soft)
        fine = value.ndim == 0 and bool(value.isfinite())
    except Exception:  # a user's loss may raise anything
        fine = False
    if not fine:
        raise ValueError(
            f"mixing needs a loss that takes probabilities (B, K) as targets; {type(loss).__name__} does not: take the "
            "default loss, or SmoothedCrossEntropy"
        )
