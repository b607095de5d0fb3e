"""The figures of a run. matplotlib is imported when the first one is drawn: it costs a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[tuple[float, float]]


def new_figure(width: float, height: float) -> Figure:
    """A figure without the global state of pyplot: nothing to close, no display needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure


def learning_curves(curves: Mapping[str, Mapping[str, Curve]], best: float | None = None) -> Figure:
    """One panel a metric, one line a split; losses on a logarithmic axis.

    Args:
        curves: metric → split → points (epoch, value), such as `{"loss": {"train": [(0, 2.3), …]}}`.
        best: the epoch of the best checkpoint, marked by a line.
    """
    from matplotlib.ticker import AutoLocator, LogLocator, MaxNLocator, NullLocator

    figure = new_figure(5.5 * max(len(curves), 1), 4)
    for number, (metric, splits) in enumerate(curves.items()):
        axes = figure.add_subplot(1, len(curves), number + 1)
        for split, points in splits.items():
            x, y = zip(*points, strict=True)
            axes.plot(x, y, marker="o" if len(points) < 30 else None, markersize=3, label=f"{split} (last {y[-1]:.4g})")
        if best is not None:
            axes.axvline(best, color="grey", linewidth=0.8, linestyle=":", label=f"best checkpoint (epoch {best:.0f})")
        values = [y for points in splits.values() for _, y in points]
        if metric.endswith("loss") and min(values) > 0:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(
                LogLocator(subs=(1, 2, 5)) if max(values) > 10 * min(values) else AutoLocator()
            )
            axes.yaxis.set_major_formatter("{x:g}")  # 0.2 and not 2 × 10⁻¹
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="epoch", ylabel=metric, title=metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def learning_rates(curves: Mapping[str, Curve]) -> Figure:
    """Learning rate of each parameter group over the optimizer steps: name → points (step, rate)."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    for name, points in curves.items():
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marker="." if len(points) < 50 else None, label=name)
    axes.set(xlabel="optimizer step", ylabel="learning rate", title="learning rate", ylim=(0, None))
    axes.grid(alpha=0.3)
    if len(curves) > 1:
        axes.legend()
    return figure


def confusion_matrix(counts: Tensor, names: Sequence[str], title: str = "") -> Figure:
    """Counts `(K, K)`, rows the true class, columns the predicted one; colours are shares of the row."""
    size = len(names)
    side = min(max(4.5, 0.62 * size + 2), 24)
    figure = new_figure(side + 1, side)
    axes = figure.add_subplot()
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    if size <= 30:  # beyond that the digits would not be legible
        for row in range(size):
            for column in range(size):
                if counts[row, column] > 0:
                    colour = "white" if shares[row, column] > 0.5 else "black"
                    text = f"{int(counts[row, column])}"
                    axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    shown = list(names) if size <= 60 else []
    axes.set_xticks(range(len(shown)), labels=shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(len(shown)), labels=shown, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    return figure


def gallery(images: Sequence[Tensor], captions: Sequence[str], title: str = "", columns: int = 6) -> Figure:
    """Pictures with a caption each; an image is float `(C, H, W)` in [0, 1], in colours if C is 3."""
    columns = min(columns, max(len(images), 3))
    rows = -(-len(images) // columns) or 1
    lines = max((caption.count("\n") + 1 for caption in captions), default=0)
    figure = new_figure(1.75 * columns, (1.75 + 0.17 * lines) * rows + 0.6)
    for number, (image, caption) in enumerate(zip(images, captions, strict=True)):
        axes = figure.add_subplot(rows, columns, number + 1)
        pixels = image.clamp(0, 1).movedim(0, -1).numpy()
        axes.imshow(pixels if pixels.shape[-1] == 3 else pixels[..., 0], cmap="gray", vmin=0, vmax=1)
        axes.set_title(caption, fontsize=8, parse_math=False)
        axes.set_axis_off()
    figure.suptitle(title, fontsize=10)
    return figure
