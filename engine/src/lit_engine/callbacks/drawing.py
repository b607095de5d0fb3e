"""Functions shared by all figures and tables of a run. matplotlib is imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Descriptions stored in the PNG files. In dark mode, pages invert the colours of charts, but not of photos.
CHART, PHOTOS = "a chart", "photos"


def new_figure(width: float, height: float) -> Figure:
    """Create a figure without pyplot. It needs no display and does not have to be closed. Sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", dpi=120)


def shorten_middle(text: str, most: int) -> str:
    """Replace the middle of a string with an ellipsis if it has more than `most` characters."""
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def set_log_scale(axes: Axes, values: Sequence[float]) -> None:
    """Set a logarithmic y-axis for positive values."""
    from matplotlib.ticker import AutoLocator, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if max(values) > 10 * min(values) else AutoLocator())
    axes.yaxis.set_major_formatter("{x:g}")  # write 0.2 instead of 2 × 10⁻¹
    axes.yaxis.set_minor_locator(NullLocator())


def log_table(trainer: Trainer, name: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Log a table to W&B if it is enabled."""
    for logger in trainer.loggers:
        if hasattr(logger, "log_table"):
            logger.log_table(name, columns=columns, data=rows, step=trainer.global_step)
