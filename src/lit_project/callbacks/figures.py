"""Draws the figures of a run when `fit`, `validate` or `test` ends."""

import csv
import re
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_project import viz
from lit_project.callbacks.record import best_checkpoint, monitored

# of which curves are drawn, if a run has them, and of what callbacks monitor
METRICS = ("loss", "accuracy", "token_accuracy", "bleu", "r2")

Wrong = tuple[float, int, int, int, Tensor]  # confidence, index of the sample, true class, predicted class, image


class Figures(Callback):
    """Writes PNG files to `figures/`: learning curves and rates after `fit`; the confusion matrix and the most
    confidently wrong images after `validate` and `test`. TensorBoard and W&B, if among the loggers, get them too.

    Args:
        wrong_images: size of the gallery; 0 for none.
    """

    def __init__(self, wrong_images: int = 24) -> None:
        self.wrong_images = wrong_images
        self._wrong: list[Wrong] = []

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the curves from metrics.csv, that is, of a resumed run from its beginning."""
        file = Path(trainer.default_root_dir) / "metrics.csv"
        if not trainer.is_global_zero or not file.exists():
            return
        with file.open(newline="") as handle:
            rows = list(csv.DictReader(handle))
        columns = list(rows[0]) if rows else []
        curves: dict[str, dict[str, list[tuple[float, float]]]] = {}
        for metric in dict.fromkeys([*METRICS, *(m.removeprefix("val/") for m in monitored(trainer))]):
            names = {"train": f"train/{metric}", "val": f"val/{metric}", metric: metric}
            splits = {split: _points(rows, "epoch", name) for split, name in names.items()}
            splits = {split: points for split, points in splits.items() if points}
            if splits:
                curves[metric] = splits
        if curves:
            save_figure(trainer, "learning_curves", viz.learning_curves(curves, _best_epoch(trainer)))
        rates = {name: _points(rows, "step", name) for name in columns if name == "lr" or name.startswith("lr/")}
        rates = {name: points for name, points in rates.items() if points}
        if rates:
            save_figure(trainer, "learning_rate", viz.learning_rates(rates))

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the images of before."""
        self._wrong = []

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forgets the images of before."""
        self._wrong = []

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Collects the wrong images of `validate`."""
        if trainer.state.fn == "validate":
            self._collect(*args, **kwargs)

    def on_test_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Collects the wrong images of `test`."""
        self._collect(*args, **kwargs)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws those of `validate`."""
        if trainer.state.fn == "validate":
            self._evaluated(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws those of `test`."""
        self._evaluated(trainer, pl_module, "test")

    def _collect(
        self, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not self.wrong_images or not isinstance(outputs, dict) or "logits" not in outputs:
            return
        confidence, predicted = outputs["logits"].softmax(dim=1).max(dim=1)
        targets = outputs["targets"]
        wrong = (predicted != targets).nonzero().flatten()
        top = wrong[confidence[wrong].argsort(descending=True)[: self.wrong_images]]
        indices = batch[2] if len(batch) > 2 else torch.arange(len(targets))
        self._wrong += [
            (confidence[i].item(), int(indices[i]), int(targets[i]), int(predicted[i]), batch[0][i].float().cpu())
            for i in top.tolist()
        ]
        self._wrong = sorted(self._wrong, key=lambda item: -item[0])[: self.wrong_images]

    def _evaluated(self, trainer: Trainer, pl_module: LightningModule, split: str) -> None:
        shares: list[Any] = [self._wrong]
        if trainer.world_size > 1:
            shares = [None] * trainer.world_size
            torch.distributed.all_gather_object(shares, self._wrong)
        if not trainer.is_global_zero:
            return
        names = getattr(pl_module, "class_names", None)
        counts = getattr(pl_module, "confusion_matrix", None)
        if names is None or counts is None:
            return
        accuracy = (counts.diagonal().sum() / counts.sum()).item()
        title = f"{split}: accuracy {accuracy:.4f} of {int(counts.sum())}"
        save_figure(trainer, f"{split}_confusion_matrix", viz.confusion_matrix(counts, names, title))
        wrong = sorted((item for share in shares for item in share), key=lambda item: -item[0])[: self.wrong_images]
        if wrong:
            captions = [f"true: {names[t]}\npredicted: {names[p]} ({c:.0%})\nindex {i}" for c, i, t, p, _ in wrong]
            figure = viz.gallery([item[-1] for item in wrong], captions, f"{split}: most confidently wrong")
            save_figure(trainer, f"{split}_most_wrong", figure)


def save_figure(trainer: Trainer, name: str, figure: Any, tag: str | None = None) -> None:
    """Writes `figures/NAME.png` into the run, with the run's name, and to TensorBoard and W&B, if among the loggers.

    Args:
        trainer: knows where the run is.
        name: of the file; may name a folder in `figures/`.
        figure: of matplotlib.
        tag: the name in TensorBoard, which has a slider over the steps of one tag; default: `name`.
    """
    run = Path(trainer.default_root_dir).absolute()
    figure.supxlabel(f"{run.parent.name}/{run.name}", x=0.99, ha="right", fontsize=7, color="grey", parse_math=False)
    file = run / "figures" / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    for logger in trainer.loggers:
        add_figure = getattr(getattr(logger, "experiment", None), "add_figure", None)
        if add_figure is not None:
            add_figure(tag or name, figure, trainer.global_step)
        elif hasattr(logger, "log_image"):  # W&B
            logger.log_image(tag or name, [str(file)], step=trainer.global_step)


def _points(rows: list[dict[str, str]], x: str, y: str) -> list[tuple[float, float]]:
    return [(float(row[x]), float(row[y])) for row in rows if row.get(x) and row.get(y)]


def _best_epoch(trainer: Trainer) -> float | None:
    """Epoch of the best checkpoint, as its file name tells."""
    best = best_checkpoint(trainer)
    found = re.search(r"epoch=?(\d+)", Path(best.best_model_path).stem) if best else None
    return float(found[1]) if found else None
