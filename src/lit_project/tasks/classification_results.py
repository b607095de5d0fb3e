"""A classifier's accuracies, confusion matrix, calibration, prediction table and exported function."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torchmetrics import Metric

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported
    from lit_project.tasks.classification import Classifier


class Calibration(Metric):
    """Sample count, total confidence and number of correct predictions in 15 equal-width bins (Guo et al., 2017)."""

    sums: Tensor  # (3, 15)

    def __init__(self) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(3, 15), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Add logits `(B, num_classes)` and targets `(B,)` to the sums."""
        confidence, predicted = logits.softmax(dim=1).max(dim=1)
        confidence = confidence.nan_to_num()  # `RunRecord` already reports diverged models.
        bins = (confidence * 15).long().clamp(max=14)
        columns = torch.stack([torch.ones_like(confidence), confidence, (predicted == targets).to(confidence)])
        self.sums = self.sums.float().index_add(1, bins, columns.float())  # bfloat16 would round the counts.

    def compute(self) -> dict[str, Any]:
        """Return the expected calibration error `ece`, and the `samples`, `confidence` and `accuracy` of each bin."""
        samples, confidence, right = self.sums.cpu().double()  # Apple GPUs do not support float64.
        means = [
            [round(float(s / n), 6) if n else None for s, n in zip(x, samples, strict=True)]
            for x in (confidence, right)
        ]
        error = float((confidence - right).abs().sum() / samples.sum())
        return {"ece": error, "samples": samples.int().tolist(), "confidence": means[0], "accuracy": means[1]}


def check_top_k(top_k: int | None, num_classes: int) -> int:
    """Return `top_k`, by default 3 for more than 3 classes and 1 otherwise. Raise ValueError if it is out of range."""
    if top_k is None:
        top_k = 3 if num_classes > 3 else 1
    if not 1 <= top_k <= num_classes:
        raise ValueError(f"top_k must be between 1 and {num_classes} for {num_classes} classes, got {top_k}")
    return top_k


def accuracies(counts: Tensor, class_names: Sequence[str]) -> dict[str, float]:
    """Return the accuracy, the number of samples, and the recall of each class that has samples.

    Args:
        counts: float64 confusion matrix `(num_classes, num_classes)`, indexed by [target, prediction].
        class_names: class names, in the order of the rows of `counts`.
    """
    correct, samples = counts.diagonal(), counts.sum(dim=1)
    values = {"accuracy": (correct.sum() / counts.sum()).item(), "samples": counts.sum().item()}
    for name, hits, count in zip(class_names, correct.tolist(), samples.tolist(), strict=True):
        if count > 0:
            values[f"class_accuracy/{name}"] = hits / count
    return values


def confusion_by_name(counts: Tensor, class_names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return a confusion matrix's nonzero counts, keyed by true class and then by predicted class."""
    found: dict[str, dict[str, int]] = {name: {} for name in class_names}
    for (true, predicted), count in zip(counts.nonzero().tolist(), counts[counts > 0].tolist(), strict=True):
        found[class_names[true]][class_names[predicted]] = int(count)
    return found


def prediction_columns(
    indices: Tensor, targets: Tensor, probabilities_BK: Tensor, class_names: Sequence[str], all_probabilities: bool
) -> dict[str, list[Any]]:
    """Return columns with the index, predicted class, class name, probability and, if known, target of each sample.

    `all_probabilities` adds a column `probability/CLASS` for each class.
    """
    probabilities, classes = probabilities_BK.max(dim=1)
    columns: dict[str, list[Any]] = {
        "index": indices.tolist(),
        "prediction": classes.tolist(),
        "class_name": [class_names[k] for k in classes.tolist()],
        "probability": probabilities.tolist(),
    }
    if (targets >= 0).all():
        columns["target"] = targets.tolist()
    if all_probabilities:
        columns |= {f"probability/{n}": p.tolist() for n, p in zip(class_names, probabilities_BK.T, strict=True)}
    return columns


def exported(task: "Classifier", batch: Any) -> "Exported":
    """Return the function to export. It maps a batch of inputs to `probabilities`."""
    from lit_engine.tools.export.parts import Exported, Part

    name = getattr(batch, "_fields", ("inputs",))[0]
    part = Part(task, task.probabilities, {name: batch[0]}, ["probabilities"])

    def difference(runs: Any, batch: Any, rows: Any) -> float:
        (found,) = runs["model"](batch[0])
        chosen = found.gather(1, torch.tensor(rows["prediction"])[:, None])[:, 0]
        gaps = found - task.probabilities(batch[0]), chosen - torch.tensor(rows["probability"])
        return float(torch.cat([gap.flatten() for gap in gaps]).abs().max())

    return Exported({"model": part}, difference, "probability")
