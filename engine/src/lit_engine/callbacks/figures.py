"""Callback that draws the figures of a run (see `plots.py`), and function that saves and logs figures."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_engine.callbacks.drawing import CHART, PHOTOS, log_table
from lit_engine.callbacks.plots import (
    FIRST,
    Curve,
    confusion_matrix,
    draw_training_images,
    gallery,
    learning_curves,
    reliability,
    score_curves,
    step_curves,
)
from lit_engine.callbacks.record import best_checkpoint, monitored_metrics
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.distributed.processes import all_gathered
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import counterpart, get_stage, is_detail, strip_stage
from lit_engine.training.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELS = 10  # maximum number of labels whose curves are plotted
GREY = "#7b7b7b"  # has the same contrast against light and dark page backgrounds
MOST_CURVES = 12  # maximum number of metrics to plot for a module without `headline_metrics`
Wrong = tuple[float, int, int, int, Tensor]  # confidence, sample index, true class, predicted class, image


class DrawsEvaluation(Callback):
    """Base class of callbacks that draw the same figures after `test` and `validate`."""

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.state.fn == "validate":
            self.on_test_batch_end(trainer, *args, **kwargs)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.on_test_end(trainer, pl_module)


class Figures(DrawsEvaluation):
    """Callback that saves a run's figures as PNG files in `figures/`, and logs them to TensorBoard and W&B if enabled.

    `fit` draws learning curves, learning rates and the first training images. `validate` and `test` draw the confusion
    matrix, a reliability diagram, and the most confidently misclassified images.

    Args:
        wrong_images: how many of the most confidently misclassified images to show. 0 shows none.
    """

    def __init__(self, wrong_images: int = 24) -> None:
        self.wrong_images = wrong_images
        self._wrong: list[Wrong] = []
        self._first: tuple[Tensor, Tensor | None] | None = None  # images and targets
        self._hook: Any = None
        self._scores: list[tuple[Tensor, Tensor]] = []  # probabilities and targets, both (B, number of labels)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Store the first images that are passed to the model, after augmentation and mixing."""
        if self._hook is not None or not trainer.is_global_zero or fast_dev_run(trainer):
            return

        def look(task: Any, inputs: tuple[Any, ...]) -> None:
            if not task.training:  # TensorBoard traces the graph in evaluation mode with one image
                return
            images = inputs[0] if inputs else None
            if self._first is None and isinstance(images, Tensor) and images.ndim == 4:
                known = isinstance(batch, tuple | list) and images is batch[0] and hasattr(task, "class_names")
                targets = batch[1][:FIRST].cpu() if known and not batch[1].is_floating_point() else None
                self._first = images[:FIRST].detach().float().cpu(), targets

        self._hook = pl_module.register_forward_pre_hook(look)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any, **kwargs: Any) -> None:
        """Draw the images of the first batch before any checkpoint is saved, so that every run has this figure."""
        if self._hook is not None:
            self._hook.remove()
        if self._first is not None:
            (images, targets), self._first = self._first, None
            figure = draw_training_images(images, targets, getattr(pl_module, "class_names", []))
            about = "The first training images as the network receives them, after augmentation and mixing."
            save_figure(trainer, "train_batch", figure, caption=about)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the curves from metrics.csv, which includes the epochs before the run was resumed."""
        if not trainer.is_global_zero:
            return
        columns, rows = RunDir(Path(trainer.default_root_dir)).history()
        validated = [name for name in columns if get_stage(name) == "val" and not is_detail(name)][:MOST_CURVES]
        if curves := extract_curves(
            rows, [*getattr(pl_module, "headline_metrics", validated), *monitored_metrics(trainer)]
        ):
            figure = learning_curves(curves, _best_epoch(trainer))
            about = "Training and validation metrics per epoch. The dotted line marks the best checkpoint."
            save_figure(trainer, "learning_curves", figure, caption=about)
        for name, (figure, about) in draw_step_figures(rows).items():
            save_figure(trainer, name, figure, caption=about)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not isinstance(outputs, dict):
            return
        if (scores := _scores_of(outputs)) is not None:
            self._scores.append(scores)
        if not self.wrong_images or not {"logits", "targets"} <= outputs.keys() or not isinstance(batch, tuple | list):
            return
        logits, targets = outputs["logits"], outputs["targets"]
        if (batch[0].ndim, logits.ndim, targets.ndim) != (4, 2, 1):  # not images with one class each
            return
        confidence, predicted = logits.softmax(dim=1).max(dim=1)
        wrong = (predicted != targets).nonzero().flatten()
        top = wrong[confidence[wrong].argsort(descending=True)[: self.wrong_images]]
        indices = batch[2] if len(batch) > 2 else torch.arange(len(targets))
        self._wrong += [
            (confidence[i].item(), int(indices[i]), int(targets[i]), int(predicted[i]), batch[0][i].float().cpu())
            for i in top.tolist()
        ]
        self._wrong = sorted(self._wrong, key=lambda item: -item[0])[: self.wrong_images]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the confusion matrix, the reliability diagram and the images collected by all processes."""
        found, self._wrong = all_gathered(self._wrong, trainer), []
        scores, self._scores = all_gathered(self._scores, trainer), []
        if not trainer.is_global_zero:
            return
        split = "test" if trainer.testing else "val"
        calibration = pl_module.notes.get("calibration") if isinstance(pl_module, Task) else None
        if calibration is not None:
            title = f"{split}: expected calibration error {calibration['ece']:.4f}"
            about = "Accuracy per confidence bin. Bars below the diagonal mean that the model is overconfident."
            save_figure(trainer, f"{split}_reliability", reliability(calibration, title), caption=about)
        names = getattr(pl_module, "class_names", None)
        if by_label := _scores_by_label(scores, names):
            figure = score_curves(by_label, f"{split}: {sum(len(targets) for _, targets in scores)} samples")
            about = "Precision-recall and ROC curves, with average precision (AP) and area under the ROC curve (AUC)."
            save_figure(trainer, f"{split}_precision_recall_roc", figure, caption=about)
        counts = getattr(pl_module, "confusion_matrix", None)
        if names is None or not isinstance(counts, Tensor):
            return
        accuracy = (counts.diagonal().sum() / counts.sum()).item()
        title = f"{split}: accuracy {accuracy:.4f} of {int(counts.sum())}"
        about = "Confusion matrix with the number of samples in each cell. Colours show fractions of the true class."
        save_figure(trainer, f"{split}_confusion_matrix", confusion_matrix(counts, names, title), caption=about)
        wrong = sorted(found, key=lambda item: -item[0])[: self.wrong_images]
        if wrong:
            captions = [f"true: {names[t]}\npredicted: {names[p]}\n{c:.0%}, index {i}" for c, i, t, p, _ in wrong]
            figure = gallery([item[-1] for item in wrong], captions, f"{split}: most confidently wrong")
            about = "The misclassified images with the highest confidence."
            save_figure(trainer, f"{split}_most_wrong", figure, caption=about)
            rows = [[i, names[t], names[p], c] for c, i, t, p, _ in wrong]
            log_table(trainer, f"{split}/most_wrong", ["index", "true", "predicted", "confidence"], rows)


def save_figure(trainer: Trainer, name: str, figure: Any, tag: str | None = None, caption: str = "") -> Path:
    """Write `figures/NAME.png`, labelled with the run's name, and log the figure to TensorBoard and W&B if enabled.

    The loggers group the figures by split, so `val_masks.png` is logged as `val/masks`.

    Args:
        trainer: the trainer of the run.
        name: file name without `.png`, which may include a subfolder of `figures/`.
        figure: a matplotlib figure.
        tag: name in the loggers. In TensorBoard, figures with the same tag share a step slider. Default: `name`.
        caption: one or two sentences for the run's page, stored in the PNG file.

    Returns:
        the path of the file.
    """
    from matplotlib.text import Text

    run = Path(trainer.default_root_dir)
    figure.supxlabel(RunDir(run).name, x=0.99, ha="right", fontsize=7, color="grey", parse_math=False)
    file = run / "figures" / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    shown = [image for axes in figure.axes for image in axes.images]
    photos = any(image.get_array().ndim == 3 or image.get_cmap().name == "gray" for image in shown)
    for text in figure.findobj(Text) if photos else ():  # legible on a light or dark background
        text.set_color(GREY)
    about = {"Description": PHOTOS if photos else CHART, **({"Comment": caption} if caption else {})}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the font may lack characters of a name
        figure.savefig(file, transparent=photos, metadata=about)
    tag = re.sub(r"^(train|val|test)_", r"\1/", tag or name)
    for logger in [one for one in trainer.loggers if not isinstance(one, MetricsCSV)]:
        add_figure = getattr(getattr(logger, "experiment", None), "add_figure", None)
        if add_figure is not None:
            add_figure(tag, figure, trainer.global_step)
        elif hasattr(logger, "log_image"):  # W&B
            logger.log_image(tag, [str(file)], step=trainer.global_step)
    return file


def draw_step_figures(rows: list[dict[str, str]]) -> dict[str, tuple[Figure, str]]:
    """Plot the learning rates and the gradient norm in metrics.csv. Return a dict of figures and captions."""
    columns = list(rows[0]) if rows else []
    rates = _curves(rows, "step", {name: name for name in columns if name == "lr" or name.startswith("lr/")})
    norms = _curves(rows, "step", {n: n for n in columns if strip_stage(n) in ("gradient_norm", "grad_norm")})
    finite = [(x, y) for points in norms.values() for x, y in points if math.isfinite(y) and y > 0]
    found = {}
    if rates:
        found["learning_rate"] = step_curves(rates), "Learning rate at each logged optimizer step."
    if finite:
        about = "Norm of the gradients before clipping, at the logged optimizer steps."
        found["gradient_norm"] = step_curves({"gradient norm": finite}, "gradient norm"), about
    return found


def _scores_of(outputs: Mapping[str, Any]) -> tuple[Tensor, Tensor] | None:
    """Return the probabilities and targets `(B, K)` of a binary (K = 1) or multilabel task, or None for other tasks."""
    targets = outputs.get("targets")
    logits, probabilities = outputs.get("logits"), outputs.get("probabilities")
    if not isinstance(targets, Tensor):
        return None
    if isinstance(logits, Tensor) and logits.ndim == 2 and logits.shape[1] == 2 and targets.ndim == 1:
        return logits.float().softmax(dim=1)[:, 1:].cpu(), targets[:, None].cpu()
    if isinstance(probabilities, Tensor) and probabilities.ndim == 2 and probabilities.shape == targets.shape:
        return probabilities.float().cpu(), targets.cpu()
    return None


def _scores_by_label(scores: list[tuple[Tensor, Tensor]], names: Any) -> dict[str, tuple[Tensor, Tensor]]:
    """Map the most frequent labels to their probabilities and targets. Omit labels that never vary."""
    if not scores or names is None:
        return {}
    probabilities_NK, targets_NK = (torch.cat(parts) for parts in zip(*scores, strict=True))
    counts = targets_NK.sum(dim=0)
    shown = [k for k in counts.argsort(descending=True).tolist() if 0 < counts[k] < len(targets_NK)][:MOST_LABELS]
    labels = list(names)[-targets_NK.shape[1] :]  # a binary classifier only has scores for the second class
    return {labels[k]: (probabilities_NK[:, k], targets_NK[:, k].long()) for k in sorted(shown)}


def extract_curves(rows: list[dict[str, str]], metrics: Sequence[str]) -> dict[str, dict[str, Curve]]:
    """Return the curves in metrics.csv, keyed by metric and then stage. The names in `metrics` may include a stage."""
    known = [name for name in (rows[0] if rows else ()) if not name.endswith("_step")]
    curves: dict[str, dict[str, Curve]] = {}
    for base in dict.fromkeys(map(strip_stage, metrics)):
        names = {stage: counterpart(base, stage, known) for stage in ("train", "val")}
        curves[base] = _curves(rows, "epoch", {stage: name for stage, name in names.items() if name})
        if "train" in curves[base]:  # average the values of an epoch if they were logged only per step
            steps: dict[float, list[float]] = {}
            for epoch, value in curves[base]["train"]:
                steps.setdefault(epoch, []).append(value)
            curves[base]["train"] = [(epoch, fmean(values)) for epoch, values in steps.items()]
    return {name: splits for name, splits in curves.items() if splits}


def _curves(rows: list[dict[str, str]], x: str, columns: Mapping[str, str]) -> dict[str, Curve]:
    """Map the label of each non-empty column to its points (x, value)."""
    curves = {
        label: [(float(row[x]), float(row[name])) for row in rows if row.get(x) and row.get(name)]
        for label, name in columns.items()
    }
    return {label: points for label, points in curves.items() if points}


def _best_epoch(trainer: Trainer) -> float | None:
    """Read the epoch of the best checkpoint from its file name."""
    best = best_checkpoint(trainer)
    found = re.search(r"epoch=?(\d+)", Path(best.best_model_path).stem) if best else None
    return float(found[1]) if found else None
