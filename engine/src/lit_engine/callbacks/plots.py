"""Plots of metrics, predictions and images. Each function returns a matplotlib figure.

matplotlib, whose import takes a second, is imported when the first figure is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lit_engine.callbacks.drawing import new_figure, scale, shorten_middle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTION = 25  # maximum number of characters in a line of a caption
MOST_POINTS = 2000  # maximum number of points per curve
FIRST = 12  # number of training images to show
LEGEND_ROWS = 8  # number of entries that fit inside the axes; longer legends are placed below
Curve = Sequence[tuple[float, float]]


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
        scale(axes, metric, values)
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
        scale(axes, "loss", [least, max(peaks)])
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
    tall = max((image.shape[1] / image.shape[2] for image in images), default=1)
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
        captions = [names[target] for target in targets.tolist()]
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
        step = len(recall) // MOST_POINTS + 1
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
