"""A generic task for single-label classification, and an image classification task with common training recipes."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torchmetrics.classification import MulticlassConfusionMatrix

from lit_engine.data.sampling import weights_by_class
from lit_engine.errors import UserError
from lit_engine.training.exact import Totals
from lit_engine.training.schedules import OptimizerFactory, build_optimizer, build_schedulers
from lit_engine.training.task import Task
from lit_project.models.losses import WeightPenalty, at_least_float32, build_loss, remove_smoothing
from lit_project.tasks.classification_results import (
    Calibration,
    accuracies,
    check_top_k,
    confusion_by_name,
    exported,
    prediction_columns,
)
from lit_project.tasks.mixup import Mixing, check_soft_targets
from lit_project.tasks.test_time_augmentation import Flip, mean_logits

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported


class Classifier(Task):
    """Classification task for batches `(inputs, targets, indices)` and networks that return `(B, num_classes)` logits.

    At the end of each epoch, the task logs `loss` and `accuracy` over all samples and processes. `val` and `test` also
    log `top{k}_accuracy`, `class_accuracy/NAME` (recall) and `samples`. Only `train/loss` uses label smoothing.

    Args:
        net: model that returns logits (no softmax).
        optimizer: creates the optimizer for the parameters.
        class_names: class names in the order of the logits. Set from the data and stored in the checkpoint.
        loss: maps logits `(B, num_classes)` and classes `(B,)` to the mean loss of the batch. Default: cross-entropy.
        label_smoothing: fraction of the target that is spread evenly over all classes in training (Szegedy et al.,
            2016). It requires the default loss.
        class_weights: weight of each class in the default loss, by name (default: 1). To balance rare and frequent
            classes, use `data.sampling: balanced` instead.
        top_k: log the fraction of samples whose target is among the k most likely classes. 1 disables this metric.
            Default: 3 if there are more than 3 classes, otherwise 1.
        **kwargs: the other arguments of `Task`, such as `schedulers` and `parameter_groups`.

    Raises:
        ValueError: there are fewer than two classes, an option does not apply to the loss, or a value is invalid.
        DataError: `class_weights` contains an unknown class.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        class_names: Sequence[str],
        loss: nn.Module | None = None,
        label_smoothing: float = 0.0,
        class_weights: dict[str, float] | None = None,
        top_k: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self.net = net
        self.class_names = list(class_names)
        weights = weights_by_class("class_weights", class_weights, self.class_names) if class_weights else None
        self.loss = build_loss(self.class_names, loss, label_smoothing, weights)
        self.top_k = check_top_k(top_k, len(self.class_names))
        # The data module checks the targets once per split, so the metric does not need to check every batch.
        self.confusion = MulticlassConfusionMatrix(len(self.class_names), validate_args=False)
        self.calibration = Calibration()
        self.all_probabilities = False  # whether `predict_step` returns the probabilities of all classes
        self.confusion_matrix: Tensor | None = None  # counts in the last evaluation, as [target, prediction]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits `(B, num_classes)` for inputs `(B, …)`. Raise UserError if they have any other shape."""
        logits, count = self.net(inputs), len(self.class_names)
        if logits.shape[1:] != (count,):  # the confusion matrix would count extra outputs as other classes
            raise UserError(f"{type(self.net).__name__} returns shape {tuple(logits.shape)}, expected (B, {count})")
        return logits

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedulers. If there are several schedulers, their factors are multiplied."""
        optimizer = build_optimizer(self.optimizer_factory, self.parameter_groups())
        return [optimizer], build_schedulers(self.schedules, optimizer, self.length)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits, targets = self(batch[0]), batch[1]
        return self.step(self.loss(logits, targets), len(targets), accuracy=(logits.argmax(dim=1) == targets).sum())

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "test")

    def evaluation_step(self, batch: Any, split: str) -> dict[str, Tensor]:
        """Add a batch to the sums. Return `logits` `(B, num_classes)` and `targets` `(B,)` for callbacks."""
        inputs, targets = batch[0], batch[1]
        logits = at_least_float32(self(inputs)) if split == "val" else self.test_logits(inputs)
        sums = {}
        if self.top_k > 1:
            sums[f"top{self.top_k}_accuracy"] = (logits.topk(self.top_k).indices == targets[:, None]).sum()
        self.step(self.evaluation_loss(logits, targets), len(targets), **sums)
        self.confusion.update(logits, targets)
        if self.in_detail:
            self.calibration.update(logits, targets)
        return {"logits": logits, "targets": targets}

    def evaluation_start(self) -> None:
        super().evaluation_start()
        self.evaluation_loss = remove_smoothing(self.loss)
        self.in_detail = self.trainer.state.fn != "fit"  # Validation during training skips calibration.
        self.confusion.reset()
        self.calibration.reset()

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        self.confusion_matrix = counts = self.confusion.compute().cpu().double()
        if self.in_detail:
            self.notes["confusion"] = confusion_by_name(counts, self.class_names)
            self.notes["calibration"] = self.calibration.compute()
        # `totals` contains the loss, the top-k accuracy and any sums that a subclass adds.
        return {**totals.means(), **accuracies(counts, self.class_names)}

    def metric_inputs(self, outputs: Any) -> Iterable[Tensor]:
        """Return probabilities `(B, num_classes)` and targets `(B,)`. Metrics may misread logits as probabilities."""
        return outputs["logits"].softmax(dim=1), outputs["targets"]

    def test_logits(self, inputs: Tensor) -> Tensor:
        """Return the logits `(B, num_classes)` for `test` and `predict`, in at least float32."""
        return at_least_float32(self(inputs))

    def probabilities(self, inputs: Tensor) -> Tensor:
        """Return the class probabilities `(B, num_classes)` for `test` and `predict`, in at least float32."""
        return self.test_logits(inputs).softmax(dim=1)

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Return the columns of the prediction table (see `prediction_columns`)."""
        inputs, targets, indices = batch
        if len(indices) == 0:
            return {}
        probabilities, names = self.probabilities(inputs), self.class_names
        return prediction_columns(indices, targets, probabilities, names, self.all_probabilities)

    def exported(self, batch: Any) -> "Exported":
        """Return the function to export. It maps a batch of inputs to `probabilities`."""
        return exported(self, batch)


class ImageClassifier(Classifier):
    """A `Classifier` for images `(B, C, H, W)`, with normalization and common recipes for training and testing.

    `mean`, `std` and the class names are set from the data and stored in the checkpoint. Prediction therefore needs no
    other file.

    Args:
        net: model that maps images to logits (no softmax).
        optimizer: creates the optimizer for the parameters.
        class_names: class names in the order of the logits; set from the data.
        mean: mean of each channel for pixel values in [0, 1]; set from the data.
        std: standard deviation of each channel; set from the data.
        mixing: mixup and cutmix in training (see `Mixing`). With mixing, the training accuracy is the average fraction
            of the target that belongs to the predicted class.
        penalty: penalty for large weights. It is added to the training loss, but logged separately as `train/penalty`.
        test_time_flips: `test` and `predict` also average the probabilities over these flips of the image.
        test_time_shift: `test` and `predict` also average the probabilities over four images that are each shifted by
            this many pixels (see `views`).
        **kwargs: arguments of `Classifier` and `Task`.

    Raises:
        ValueError: `test_time_shift` is negative, or the loss does not support the soft targets of `mixing`.
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
            check_soft_targets(self.loss, len(class_names))
        self.mixing, self.penalty = mixing, penalty
        self.notes["task"] = "image-classification"  # task name on the Hugging Face Hub
        self.test_time_flips, self.test_time_shift = test_time_flips, test_time_shift
        self.epochs: int | None = None  # length of the run, or None if it is unlimited
        self.mean: Tensor
        self.std: Tensor
        # Non-persistent, because a warm start on a different dataset must use the statistics of that dataset.
        self.register_buffer("mean", torch.tensor(list(mean)).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(list(std)).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, num_classes)` for float images `(B, C, H, W)` in [0, 1]."""
        normalized = (images - self.mean).div_(self.std)
        return super().forward(normalized.to(self.mean.dtype))  # the trainer's precision determines the buffers' dtype

    def test_logits(self, images: Tensor) -> Tensor:
        """Return logits `(B, num_classes)`. If there are several views, return the log of the mean probabilities."""
        return mean_logits(self, images, self.test_time_flips, self.test_time_shift)

    def configure_model(self) -> None:
        """Shard the network if requested. Raise UserError if it is sharded and a penalty is set."""
        if self.device_mesh is not None and self.penalty is not None:
            raise UserError("model.penalty requires unsharded weights, but this run shards them")
        super().configure_model()

    def on_train_start(self) -> None:
        """Store the length of the run, because mixing can be disabled in the last epochs."""
        super().on_train_start()
        self.epochs = self.length("epoch")

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, targets = batch[0], batch[1]
        if self.mixing is not None and self.mixing.is_active(self.current_epoch, self.epochs):
            images, targets = self.mixing(images, targets, len(self.class_names))
        logits = self(images)
        loss, size = at_least_float32(self.loss(logits, targets)), len(targets)
        classes = logits.detach().argmax(dim=1)
        correct = (classes == targets).sum() if targets.ndim == 1 else targets.gather(1, classes[:, None]).sum()
        if self.penalty is None:
            return self.step(loss, size, accuracy=correct)
        penalty = self.penalty(self)
        return self.step(loss + penalty, size, loss=loss * size, accuracy=correct, penalty=penalty * size)
