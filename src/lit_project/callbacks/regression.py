"""Draws what a regression predicts against what is true."""

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_project import viz
from lit_project.callbacks.figures import save_figure


class PredictedAgainstTrue(Callback):
    """Writes `figures/SPLIT_predicted.png` after `validate` and `test`, from tasks whose steps give `predictions` and
    `targets` `(B, T)`. TensorBoard and W&B get it too, if they are among the loggers.
    """

    def __init__(self) -> None:
        self._points: list[tuple[Tensor, Tensor]] = []

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the points of before."""
        self._points = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the points of before."""
        self._points = []

    def on_validation_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any) -> None:
        """Collects the points of `validate`."""
        if trainer.state.fn == "validate":
            self._collect(outputs)

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any) -> None:
        """Collects the points of `test`."""
        self._collect(outputs)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws those of `validate`."""
        if trainer.state.fn == "validate":
            self._draw(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws those of `test`."""
        self._draw(trainer, pl_module, "test")

    def _collect(self, outputs: Any) -> None:
        if isinstance(outputs, dict) and "predictions" in outputs:
            self._points.append((outputs["targets"].float().cpu(), outputs["predictions"].float().cpu()))

    def _draw(self, trainer: Trainer, task: Any, split: str) -> None:
        shares: list[Any] = [self._points]
        if trainer.world_size > 1:
            shares = [None] * trainer.world_size
            torch.distributed.all_gather_object(shares, self._points)
        points = [point for share in shares for point in share]
        self._points = []
        if not trainer.is_global_zero or not points:
            return
        true, predicted = (torch.cat(values) for values in zip(*points, strict=True))
        names = task.target_names
        # of all samples, also where not all are drawn
        titles = {name: f"{name}: R² {value:.4f}" for name, value in task.r2.items()}
        panels = {name: (true[:, k], predicted[:, k]) for k, name in enumerate(names)}
        figure = viz.predicted_against_true(panels, titles, f"{split}: {len(true)} samples")
        save_figure(trainer, f"{split}_predicted", figure)
