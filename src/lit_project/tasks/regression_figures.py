"""Plots of predictions against true values and of residuals against predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_engine.callbacks.figures import DrawsEvaluation, new_figure, save_figure
from lit_engine.distributed.processes import all_gathered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "predicted": "Predictions plotted against true values. The dashed line marks perfect predictions.",
    "residuals": "Residuals (true minus predicted) against predictions. A trend or a funnel indicates a poor fit.",
}
MAX_POINTS = 5000  # More points would overlap too much.


def predicted_against_true(
    panels: Mapping[str, tuple[Tensor, Tensor]], title: str = "", residuals: bool = False
) -> Figure:
    """Draw one panel per target, with a line that marks perfect predictions.

    Args:
        panels: true values and predictions, both `(N,)`, by panel title. At most 5000 evenly spaced points are drawn.
        title: figure title.
        residuals: plot residuals (true minus predicted) against predictions.
    """
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(4.6 * columns, 5 * rows)
    for number, (name, (true, predicted)) in enumerate(panels.items()):
        step = -(-len(true) // MAX_POINTS) or 1
        true, predicted = true[::step], predicted[::step]
        finite = true.isfinite() & predicted.isfinite()
        true, predicted = true[finite], predicted[finite]
        x, y = (predicted, true - predicted) if residuals else (true, predicted)
        axes = figure.add_subplot(rows, columns, number + 1)
        axes.scatter(x.numpy(), y.numpy(), s=14, alpha=0.5, linewidths=0)
        low, high = (end.item() for end in torch.cat([true, predicted]).aminmax()) if len(true) else (0.0, 0.0)
        margin = 0.05 * (high - low) or 1.0
        ends = low - margin, high + margin
        line = (0, 0) if residuals else ends
        axes.plot(ends, line, color="grey", linewidth=0.8, linestyle="--", label="predicted = true")
        axes.set(xlabel="true", ylabel="predicted", title=name, xlim=ends)
        if residuals:
            axes.set(xlabel="predicted", ylabel="true − predicted")
        else:
            axes.set_ylim(ends)
            axes.set_aspect("equal")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    figure.suptitle(title, fontsize=10)
    return figure


class PredictedAgainstTrue(DrawsEvaluation):
    """Callback that writes `figures/SPLIT_predicted.png` and `SPLIT_residuals.png` after `validate` and `test`.

    Evaluation steps must return `predictions` and `targets` `(B, T)`, as in `Regressor`. TensorBoard and W&B loggers
    receive the figures.
    """

    def __init__(self) -> None:
        self._points: list[tuple[Tensor, Tensor]] = []

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        if isinstance(outputs, dict) and "predictions" in outputs:
            self._points.append((outputs["targets"].cpu().double(), outputs["predictions"].cpu().double()))

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        points, self._points = all_gathered(self._points, trainer), []
        if not trainer.is_global_zero or not points:
            return
        task: Any = pl_module
        split = "test" if trainer.testing else "val"
        true, predicted = (torch.cat(values) for values in zip(*points, strict=True))
        # R² is computed from all samples, even if not all are drawn. Constant targets have no R².
        titles = [f"{name}: R² {task.r2[name]:.4f}" if name in task.r2 else name for name in task.target_names]
        panels = {title: (true[:, k], predicted[:, k]) for k, title in enumerate(titles)}
        for residuals, name in enumerate(("predicted", "residuals")):
            figure = predicted_against_true(panels, f"{split}: {len(true)} samples", bool(residuals))
            save_figure(trainer, f"{split}_{name}", figure, caption=CAPTIONS[name])
