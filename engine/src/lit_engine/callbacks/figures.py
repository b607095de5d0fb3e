"""Draws the figures of a run. matplotlib is imported only when a figure is drawn, because the import takes a second."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_engine.callbacks.drawing import CHART, PHOTOS, log_table, new_figure, set_log_scale, shorten_middle
from lit_engine.callbacks.record import RATE, best_checkpoint, monitored_metrics
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.distributed.processes import all_gathered
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import COUNTERS, counterpart, get_stage, is_detail, strip_stage
from lit_engine.training.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND_ROWS = 8  # number of entries that fit inside the axes; longer legends are placed below
Curve = Sequence[tuple[float, float]]
GREY = "#7b7b7b"  # has the same contrast against light and dark page backgrounds


def learning_curves(curves: Mapping[str, Mapping[str, Curve]], best: float | None = None) -> Figure:
    """Plot one panel per metric with one line per split. Losses are plotted on a logarithmic axis.

    Args:
        curves: maps each metric and split to its points (epoch, value).
        best: the epoch of the best checkpoint, marked by a vertical line.
    """
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(5, 3 * max(len(curves), 1))
    for number, (metric, splits) in enumerate(curves.items()):
        axes = figure.add_subplot(len(curves), 1, number + 1)
        for split, points in splits.items():
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker="o" if len(points) < 30 else None, markersize=3, label=f"{split} (last {y[-1]:.4g})")
        if best is not None:
            axes.axvline(best, color="grey", linewidth=0.8, linestyle=":", label=f"best checkpoint (epoch {best:.0f})")
        values = [y for points in splits.values() for _, y in points]
        if metric.endswith("loss") and min(values) > 0:
            set_log_scale(axes, values)
        axes.set(xlabel="epoch", title=metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def step_curves(curves: Mapping[str, Curve], what: str = "learning rate") -> Figure:
    """Plot curves over the optimizer steps, such as the learning rate of each parameter group.

    `curves` maps each name to its points (step, value). The y-axis is logarithmic, except for learning rates whose
    peaks differ by less than a factor of 20, because schedules often start or end at 0.
    """
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    for name, points in curves.items():
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker="." if len(points) < 50 else None, label=name)
    axes.set(xlabel="optimizer step", ylabel=what, title=what)
    values = [y for points in curves.values() for _, y in points if y > 0]
    peaks = [peak for points in curves.values() if (peak := max(y for _, y in points)) > 0]
    if values and (what != "learning rate" or max(peaks) >= 20 * min(peaks)):
        least = max(min(values), min(peaks) / 1000)  # a schedule that ends near 0 would flatten all curves
        set_log_scale(axes, [least, max(peaks)])
        axes.set_ylim(least / 1.2, 1.2 * max(peaks))
    else:
        axes.set_ylim(0, None)
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        columns = 1 if len(curves) <= LEGEND_ROWS else 3
        letters = 60 // columns  # number of characters that fit into a column at this font size
        for line in axes.get_lines():
            line.set_label(shorten_middle(str(line.get_label()), letters))
        rows = -(-len(curves) // columns)
        figure.set_figheight(4 + (0.16 * rows if columns > 1 else 0))
        place = {} if columns == 1 else {"loc": "outside lower center", "ncols": columns, "fontsize": 7}
        (axes if columns == 1 else figure).legend(**place)
    return figure


def confusion_matrix(counts: Tensor, names: Sequence[str], title: str = "") -> Figure:
    """Plot a confusion matrix of counts `(K, K)`, with true classes in rows. Colours show fractions of each row's sum.

    The colour scale uses the cube root of a fraction, so that the few confused samples off the diagonal are visible.
    """
    from matplotlib.colors import PowerNorm

    size, longest = len(names), max(map(len, names))
    cells = min(max(2, 0.38 * size), 22)  # inches
    side = cells + 0.9 + 0.05 * longest
    figure = new_figure(max(side, 0.085 * len(title) + 0.4), side + 0.2)
    axes = figure.add_subplot()
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    norm = PowerNorm(1 / 3, vmin=0, vmax=1)
    image = axes.imshow(shares.numpy(), cmap="Blues", norm=norm)
    if size > 30:  # counts would be too small to read
        ticks = [0, 0.001, 0.01, 0.05, 0.2, 0.5, 1]
        figure.colorbar(image, ax=axes, label="fraction of the true class", shrink=0.8, ticks=ticks, format="{x:g}")
    else:
        for row, column in counts.nonzero().tolist():
            colour = "white" if norm(shares[row, column].item()) > 0.6 else "black"
            text = f"{int(counts[row, column])}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    places = range(0, size, -(-size // 60))  # at most 60 labels per axis
    shown = [names[place] for place in places]
    axes.set_xticks(places, labels=shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(places, labels=shown, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    figure.suptitle(title, fontsize=10)
    return figure


def gallery(images: Sequence[Tensor], captions: Sequence[str], title: str = "", columns: int = 6) -> Figure:
    """Draw images `(C, H, W)` with values in [0, 1], in colour if C is 3. Long caption lines are shortened."""
    captions = ["\n".join(shorten_middle(line, CAPTION) for line in caption.split("\n")) for caption in captions]
    columns = min(columns, max(len(images), 3))
    rows = -(-len(images) // columns) or 1
    tall = min(4, max((image.shape[1] / image.shape[2] for image in images), default=1))  # limits long time series
    row = tall + 0.06 + 0.1 * max((caption.count("\n") + 1 for caption in captions), default=0)  # in image widths
    figure = new_figure(1.75 * columns, 1.67 * row * rows + 0.5)
    axes = figure.add_subplot()  # a single subplot is five times as fast as one per image
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        left, bottom = 1.05 * (number % columns), row * (number // columns + 1)
        pixels = image.clamp(0, 1).movedim(0, -1).numpy()
        shown = pixels if pixels.shape[-1] == 3 else pixels[..., 0]
        axes.imshow(shown, cmap="gray", vmin=0, vmax=1, extent=(left, left + 1, bottom, bottom - tall))
        axes.text(left + 0.5, bottom - tall - 0.03, caption, fontsize=8, ha="center", va="bottom", parse_math=False)
    axes.set(xlim=(0, 1.05 * columns), ylim=(row * rows, 0))
    axes.set_axis_off()
    figure.suptitle(title, fontsize=10)
    return figure


def class_colours() -> Tensor:
    """Return RGB colours `(11, 3)` in [0, 1], with ten colours for classes and light grey for -1."""
    from matplotlib import colormaps

    return torch.cat([torch.tensor(colormaps["tab10"](range(10))[:, :3]), torch.full((1, 3), 0.9)])


def segmentation(
    images: Sequence[Tensor], masks: Mapping[str, Sequence[Tensor]], names: Sequence[str], title: str = ""
) -> Figure:
    """Draw images `(C, H, W)` in [0, 1] above rows of masks, with a colour per class and grey for -1.

    Args:
        images: the images, drawn in one row.
        masks: maps the caption of each row, such as `true`, to masks `(H, W)` of class indices, one for each image.
        names: class names for the legend.
        title: title of the figure.
    """
    from matplotlib.patches import Patch

    colours = class_colours()
    drawn = [colours[torch.where(mask < 0, -1, mask % 10)].movedim(-1, 0) for row in masks.values() for mask in row]
    captions = [""] * len(images) + [caption for caption, row in masks.items() for _ in row]
    figure = gallery([*images, *drawn], captions, title, columns=len(images))
    key = [Patch(color=tuple(colours[k % 10].tolist()), label=name) for k, name in enumerate(names)]
    figure.legend(handles=key, loc="outside lower center", ncols=6, fontsize=8, frameon=False)
    return figure


def draw_training_images(images: Tensor, targets: Tensor | None, names: Sequence[str]) -> Figure:
    """Draw images `(N, C, H, W)` with their masks `(N, H, W)`, classes `(N,)` or labels `(N, K)`, if known."""
    title, captions = "train: images as the net sees them", [""] * len(images)
    if targets is not None and targets.ndim == 3:
        return segmentation([*images[: FIRST // 2]], {"mask": [*targets[: FIRST // 2]]}, names, title)
    if targets is not None and targets.ndim == 1:
        known = range(len(names))  # the loss may ignore other targets, such as -100
        captions = [names[target] if target in known else str(target) for target in targets.tolist()]
    elif targets is not None and targets.shape[1:] == (len(names),):
        labels = [[name for name, is_set in zip(names, row, strict=True) if is_set] for row in targets.tolist()]
        shown = [row if len(row) < 5 else [*row[:3], f"and {len(row) - 3} more"] for row in labels]
        captions = ["\n".join(row) or "no label" for row in shown]
    return gallery([*images], captions, title)


def reliability(calibration: Mapping[str, Any], title: str = "") -> Figure:
    """Plot accuracy against confidence (Guo et al. 2017). Calibrated predictions lie on the diagonal.

    Args:
        calibration: `samples` and `accuracy` per bin of equal width in [0, 1]. The accuracy of an empty bin is None.
        title: title of the figure.
    """
    bins = [number for number, count in enumerate(calibration["samples"]) if count]
    width = 1 / len(calibration["samples"])
    figure = new_figure(5, 4.7)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    places = [(number + 0.5) * width for number in bins]
    for axes, name in ((above, "accuracy"), (below, "samples")):
        axes.bar(places, [calibration[name][n] for n in bins], width, color="tab:blue", alpha=0.6, edgecolor="white")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    above.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
    above.set(title=title, xlim=(0, 1), ylim=(0, 1.05))
    below.set(xlabel="confidence", yscale="log", ylim=(0.5, None))
    below.yaxis.set_major_formatter("{x:,.0f}")
    return figure


def score_curves(scores: Mapping[str, tuple[Tensor, Tensor]], title: str = "") -> Figure:
    """Plot each label's precision-recall and ROC curves, with average precision (AP) and area under the curve (AUC).

    Args:
        scores: maps each label to its probabilities `(N,)` in [0, 1] and targets `(N,)`, which must include 0 and 1.
        title: title of the figure.
    """
    from torchmetrics.functional import classification as metrics

    figure = new_figure(9.6, 4.6 + 0.2 * len(scores))
    left, right = figure.subplots(1, 2)
    for label, (probabilities, targets) in scores.items():
        precision, recall, _ = metrics.binary_precision_recall_curve(probabilities, targets)
        false, true, _ = metrics.binary_roc(probabilities, targets)
        ap = metrics.binary_average_precision(probabilities, targets)
        auc = metrics.binary_auroc(probabilities, targets)
        step = len(recall) // MAX_POINTS + 1
        name = shorten_middle(label, CAPTION)
        left.step(recall.flip(0)[::step], precision.flip(0)[::step], where="pre", label=f"{name}: AP {ap:.4f}")
        right.plot(false[::step], true[::step], label=f"{name}: AUC {auc:.4f}")
    right.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
    left.set(xlabel="recall", ylabel="precision", title="precision and recall")
    right.set(xlabel="false positive rate", ylabel="true positive rate", title="ROC")
    for axes in (left, right):
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), fontsize=8, frameon=False)
    figure.suptitle(title, fontsize=10)
    return figure


CAPTION = 25  # maximum number of characters in a line of a caption
MAX_LABELS, MAX_POINTS = 10, 2000  # maximum number of plotted labels, and maximum number of points per curve
FIRST = 12  # number of training images to show
MAX_CURVES = 12  # maximum number of metrics to plot for a module without `headline_metrics`
GRADIENT_NORMS = ("gradient_norm", "grad_norm")
Wrong = tuple[float, int, int, int, Tensor]  # confidence, sample index, true class, predicted class, image


class DrawsEvaluation(Callback):
    """Base class for callbacks that draw the same figures after `test` and `validate`."""

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.state.fn == "validate":
            self.on_test_batch_end(trainer, *args, **kwargs)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.on_test_end(trainer, pl_module)


class Figures(DrawsEvaluation):
    """Callback that saves a run's figures as PNG files in `figures/`, and logs them to TensorBoard and W&B if enabled.

    `fit` draws learning curves, learning rates and the first training images. `validate` and `test` draw the confusion
    matrix, a reliability diagram, precision-recall and ROC curves, and the most confidently misclassified images.
    In your own `Trainer`, the curves need `logger=MetricsCSV(default_root_dir)` from `lit_engine.loggers.metrics_csv`.

    Args:
        wrong_images: how many of the most confidently misclassified images to show. 0 shows none.
    """

    def __init__(self, wrong_images: int = 24) -> None:
        self.wrong_images = wrong_images
        self._wrong: list[Wrong] = []
        self._first: tuple[Tensor, Tensor | None] | None = None  # images and targets
        self._hook: Any = None
        self._scores: list[tuple[Tensor, Tensor]] = []  # probabilities and targets, both (B, number of labels)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._hook is not None:  # from an earlier fit
            self._hook.remove()
        self._hook = self._first = None

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
                targets: Any = batch[1] if known and len(batch) > 1 else None
                has_classes = isinstance(targets, Tensor) and not targets.is_floating_point()
                self._first = images[:FIRST].detach().float().cpu(), targets[:FIRST].cpu() if has_classes else None

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
        metrics = [*getattr(pl_module, "headline_metrics", curve_names(columns)), *monitored_metrics(trainer)]
        for name, (figure, about) in draw_curves(rows, metrics, _best_epoch(trainer)).items():
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
        # the figure shows images, each with one label
        if (getattr(batch[0], "ndim", None), logits.ndim, targets.ndim) != (4, 2, 1):
            return
        confidence, predicted = logits.softmax(dim=1).max(dim=1)
        wrong = (predicted != targets).nonzero().flatten()
        top = wrong[confidence[wrong].argsort(descending=True)[: self.wrong_images]]
        indices = getattr(batch, "indices", torch.arange(len(targets)))
        self._wrong += [
            (confidence[i].item(), int(indices[i]), int(targets[i]), int(predicted[i]), batch[0][i].float().cpu())
            for i in top.tolist()
        ]
        self._wrong = sorted(self._wrong, key=lambda item: -item[0])[: self.wrong_images]

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the confusion matrix, the diagrams and the misclassified images from the results of all processes."""
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
        if not isinstance(counts, Tensor) or counts.ndim != 2 or len(counts) != counts.shape[1]:
            return
        if names is None:
            names = [str(number) for number in range(len(counts))]
        counts = counts.detach().cpu()
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

    The loggers group the figures by split, so `val_masks.png` is logged as `val/masks`. With `fast_dev_run`, nothing is
    written, because a figure of one batch would replace a complete one.

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
    file = run / "figures" / f"{name}.png"
    if fast_dev_run(trainer):
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.supxlabel(RunDir(run).name, x=0.99, ha="right", fontsize=7, color="grey", parse_math=False)
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


def draw_curves(
    rows: list[dict[str, str]], metrics: Sequence[str], best: float | None = None
) -> dict[str, tuple[Figure, str]]:
    """Plot metrics, learning rates and the gradient norm from metrics.csv. Return figures and captions by name.

    `best` is the epoch of the best checkpoint.
    """
    columns = list(rows[0]) if rows else []
    others = "-momentum", "-weight_decay"  # suffixes of LearningRateMonitor's other columns
    rates = _curves(rows, "step", {n: n for n in columns if RATE.fullmatch(n) and not n.endswith(others)})
    norms = _curves(rows, "step", {n: n for n in columns if strip_stage(n) in GRADIENT_NORMS})
    finite = [(x, y) for points in norms.values() for x, y in points if math.isfinite(y) and y > 0]
    found = {}
    if curves := extract_curves(rows, metrics):
        found["learning_curves"] = learning_curves(curves, best), "Training and validation metrics after each epoch."
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
    shown = [k for k in counts.argsort(descending=True).tolist() if 0 < counts[k] < len(targets_NK)][:MAX_LABELS]
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


def curve_names(columns: Iterable[str]) -> list[str]:
    """Return up to `MAX_CURVES` metrics in metrics.csv. Those that are only logged in training come last."""
    found: dict[str, str] = {}
    for stage in ("val", "train"):
        for name in columns:
            base = strip_stage(name)
            is_other = name in COUNTERS or RATE.fullmatch(name) or base in GRADIENT_NORMS
            if get_stage(name) == stage and not is_other and not is_detail(name):
                found.setdefault(base, name)
    return list(found.values())[:MAX_CURVES]


def _curves(rows: list[dict[str, str]], x: str, columns: Mapping[str, str]) -> dict[str, Curve]:
    """Map the label of each non-empty column to its points (x, value). Columns with text are left out."""
    curves = {}
    for label, name in columns.items():
        with suppress(ValueError):  # loggers also accept text
            curves[label] = [(float(row[x]), float(row[name])) for row in rows if row.get(x) and row.get(name)]
    return {label: points for label, points in curves.items() if points}


def _best_epoch(trainer: Trainer) -> float | None:
    """Read the epoch of the best checkpoint from its file name."""
    best = best_checkpoint(trainer)
    found = re.search(r"epoch=?(\d+)", Path(best.best_model_path).stem) if best else None
    return float(found[1]) if found else None
