"""The figures of a run. matplotlib is imported when the first one is drawn: it costs a second."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_engine.callbacks.drawing import CHART, PHOTOS, new_figure, scale, shortened
from lit_engine.callbacks.record import best_checkpoint, monitored
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.distributed.processes import all_gathered
from lit_engine.run.directory import RunDir
from lit_engine.run.metric_names import base_of, counterpart, is_detail, stage_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND_ROWS = 8  # entries that fit inside the axes; longer legends are placed below
Curve = Sequence[tuple[float, float]]
GREY = "#7b7b7b"  # as far from white as from the dark of a page


def learning_curves(curves: Mapping[str, Mapping[str, Curve]], best: float | None = None) -> Figure:
    """One panel per metric, one line per split; losses on a logarithmic axis.

    Args:
        curves: metric → split → points (epoch, value), such as `{"loss": {"train": [(0, 2.3), …]}}`.
        best: the epoch of the best checkpoint, marked by a line.
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
        columns = 1 if len(curves) <= LEGEND_ROWS else 3
        letters = 60 // columns  # that fit into a column at this font size
        for line in axes.get_lines():
            line.set_label(shortened(str(line.get_label()), letters))
        rows = -(-len(curves) // columns)
        figure.set_figheight(4 + (0.16 * rows if columns > 1 else 0))
        place = {} if columns == 1 else {"loc": "outside lower center", "ncols": columns, "fontsize": 7}
        (axes if columns == 1 else figure).legend(**place)
    return figure


def confusion_matrix(counts: Tensor, names: Sequence[str], title: str = "") -> Figure:
    """Counts `(K, K)`, rows the true class, columns the predicted one; colours are shares of the row."""
    size, longest = len(names), max(map(len, names))
    cells = min(max(2, 0.38 * size), 22)  # inches
    side = cells + 0.9 + 0.05 * longest
    figure = new_figure(max(side, 0.085 * len(title) + 0.4), side + 0.2)
    axes = figure.add_subplot()
    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    if size > 30:  # the digits would not be legible
        figure.colorbar(image, ax=axes, label="share of the true class", shrink=0.8)
    else:
        for row, column in counts.nonzero().tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            text = f"{int(counts[row, column])}"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=9)
    shown = list(names) if size <= 60 else []
    axes.set_xticks(range(len(shown)), labels=shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(range(len(shown)), labels=shown, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    figure.suptitle(title, fontsize=10)
    return figure


def gallery(images: Sequence[Tensor], captions: Sequence[str], title: str = "", columns: int = 6) -> Figure:
    """Pictures with a caption each; an image is float `(C, H, W)` in [0, 1], in colours if C is 3.

    Long lines in captions are shortened in the middle.
    """
    captions = ["\n".join(shortened(line, CAPTION) for line in caption.split("\n")) for caption in captions]
    columns = min(columns, max(len(images), 3))
    rows = -(-len(images) // columns) or 1
    tall = max((image.shape[1] / image.shape[2] for image in images), default=1)
    row = tall + 0.06 + 0.1 * max((caption.count("\n") + 1 for caption in captions), default=0)  # in widths
    figure = new_figure(1.75 * columns, 1.67 * row * rows + 0.5)
    axes = figure.add_subplot()  # one for all pictures takes a fifth of the time
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


def reliability(calibration: Mapping[str, Any], title: str = "") -> Figure:
    """How often predictions of a confidence are right (Guo et al. 2017); on the line, as often as they should be.

    Args:
        calibration: `samples` and `accuracy` of equal bins of [0, 1], the latter None without samples.
        title: of the figure.
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
    below.set(xlabel="confidence", yscale="log", ylim=(0.5, None))  # a bin of one sample is seen next to thousands
    below.yaxis.set_major_formatter("{x:,.0f}")
    return figure


CAPTION = 25  # maximum number of characters in a line of a caption
FIRST = 12  # images of the training that are shown
MOST_CURVES = 12  # metrics of a module that names none
Wrong = tuple[float, int, int, int, Tensor]  # confidence, index of the sample, true class, predicted class, image


class DrawsEvaluation(Callback):
    """Base of callbacks that draw after `test`: `validate` draws the same."""

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.state.fn == "validate":
            self.on_test_batch_end(trainer, *args, **kwargs)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "validate":
            self.on_test_end(trainer, pl_module)


class Figures(DrawsEvaluation):
    """Writes PNG files to `figures/`: learning curves and rates and the first images of the training after `fit`; the
    confusion matrix, the reliability of probabilities, and the most confidently wrong images after `validate` and
    `test`. TensorBoard and W&B, if among the loggers, get them too.

    Args:
        wrong_images: size of the gallery; 0 for none.
    """

    def __init__(self, wrong_images: int = 24) -> None:
        self.wrong_images = wrong_images
        self._wrong: list[Wrong] = []
        self._first: tuple[Tensor, list[str]] | None = None
        self._hook: Any = None

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keeps the first images that the task is called with: augmented, and mixed if it mixes."""
        if self._hook is not None or not trainer.is_global_zero or fast_dev_run(trainer):
            return

        def look(task: Any, inputs: tuple[Any, ...]) -> None:
            if not task.training:  # TensorBoard's graph is traced in evaluation mode, with one image
                return
            images = inputs[0] if inputs else None
            if self._first is None and isinstance(images, Tensor) and images.ndim == 4:
                names, captions = getattr(task, "class_names", None), [""] * len(images)
                if names is not None and isinstance(batch, tuple | list) and images is batch[0] and batch[1].ndim == 1:
                    captions = [names[target] for target in batch[1].tolist()]
                self._first = images[:FIRST].detach().float().cpu(), captions[:FIRST]

        self._hook = pl_module.register_forward_pre_hook(look)

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Draw the images of the first batch before a checkpoint can be saved, so that every run gets this figure."""
        if self._hook is not None:
            self._hook.remove()
        if self._first is not None:
            (images, captions), self._first = self._first, None
            save_figure(trainer, "train_batch", gallery(list(images), captions, "train: images as the net gets them"))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the curves from metrics.csv, for a resumed run from its beginning."""
        if not trainer.is_global_zero:
            return
        columns, rows = RunDir(Path(trainer.default_root_dir)).history()
        validated = [name for name in columns if stage_of(name) == "val" and not is_detail(name)][:MOST_CURVES]
        if curves := curves_of(rows, [*getattr(pl_module, "headline_metrics", validated), *monitored(trainer)]):
            save_figure(trainer, "learning_curves", learning_curves(curves, _best_epoch(trainer)))
        groups = [name for name in columns if name == "lr" or name.startswith("lr/")]
        if rates := _curves(rows, "step", {name: name for name in groups}):
            save_figure(trainer, "learning_rate", learning_rates(rates))

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> None:
        if not self.wrong_images or not isinstance(outputs, dict) or "logits" not in outputs or batch[0].ndim != 4:
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

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draws the confusion matrix and the images that were collected, from all processes."""
        found, self._wrong = all_gathered(self._wrong, trainer), []
        split, calibration = "test" if trainer.testing else "val", getattr(pl_module, "notes", {}).get("calibration")
        if trainer.is_global_zero and calibration is not None:
            title = f"{split}: expected calibration error {calibration['ece']:.4f}"
            save_figure(trainer, f"{split}_reliability", reliability(calibration, title))
        names = getattr(pl_module, "class_names", None)
        counts = getattr(pl_module, "confusion_matrix", None)
        if not trainer.is_global_zero or names is None or counts is None:
            return
        accuracy = (counts.diagonal().sum() / counts.sum()).item()
        title = f"{split}: accuracy {accuracy:.4f} of {int(counts.sum())}"
        save_figure(trainer, f"{split}_confusion_matrix", confusion_matrix(counts, names, title))
        wrong = sorted(found, key=lambda item: -item[0])[: self.wrong_images]
        if wrong:
            captions = [f"true: {names[t]}\npredicted: {names[p]}\n{c:.0%}, index {i}" for c, i, t, p, _ in wrong]
            figure = gallery([item[-1] for item in wrong], captions, f"{split}: most confidently wrong")
            save_figure(trainer, f"{split}_most_wrong", figure)


def save_figure(trainer: Trainer, name: str, figure: Any, tag: str | None = None) -> Path:
    """Writes `figures/NAME.png` into the run, with the run's name, and to TensorBoard and W&B, if among the loggers.

    Args:
        trainer: knows where the run is.
        name: of the file; may name a folder in `figures/`.
        figure: of matplotlib.
        tag: the name in TensorBoard, which has a slider over the steps of one tag; default: `name`.

    Returns:
        the file.
    """
    from matplotlib.text import Text

    run = Path(trainer.default_root_dir)
    figure.supxlabel(RunDir(run).name, x=0.99, ha="right", fontsize=7, color="grey", parse_math=False)
    file = run / "figures" / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    shown = [image for axes in figure.axes for image in axes.images]
    photos = any(image.get_array().ndim == 3 or image.get_cmap().name == "gray" for image in shown)
    for text in figure.findobj(Text) if photos else ():  # legible on light and on dark
        text.set_color(GREY)
    figure.savefig(file, transparent=photos, metadata={"Description": PHOTOS if photos else CHART})
    for logger in trainer.loggers:
        add_figure = getattr(getattr(logger, "experiment", None), "add_figure", None)
        if add_figure is not None:
            add_figure(tag or name, figure, trainer.global_step)
        elif hasattr(logger, "log_image"):  # W&B
            logger.log_image(tag or name, [str(file)], step=trainer.global_step)
    return file


def curves_of(rows: list[dict[str, str]], metrics: Sequence[str]) -> dict[str, dict[str, Curve]]:
    """Return the curves of metrics in metrics.csv by epoch, for `learning_curves`: metric → stage → curve.

    Args:
        rows: of metrics.csv.
        metrics: their names, with a stage or without.
    """
    known = [name for name in (rows[0] if rows else ()) if not name.endswith("_step")]
    curves: dict[str, dict[str, Curve]] = {}
    for base in dict.fromkeys(map(base_of, metrics)):
        names = {stage: counterpart(base, stage, known) for stage in ("train", "val")}
        curves[base] = _curves(rows, "epoch", {stage: name for stage, name in names.items() if name})
        if "train" in curves[base]:  # the mean of an epoch, if it was logged by step only
            steps: dict[float, list[float]] = {}
            for epoch, value in curves[base]["train"]:
                steps.setdefault(epoch, []).append(value)
            curves[base]["train"] = [(epoch, fmean(values)) for epoch, values in steps.items()]
    return {name: splits for name, splits in curves.items() if splits}


def _curves(rows: list[dict[str, str]], x: str, columns: Mapping[str, str]) -> dict[str, Curve]:
    """Label → points (x, value of its column), for those that have any."""
    curves = {
        label: [(float(row[x]), float(row[name])) for row in rows if row.get(x) and row.get(name)]
        for label, name in columns.items()
    }
    return {label: points for label, points in curves.items() if points}


def _best_epoch(trainer: Trainer) -> float | None:
    """Epoch of the best checkpoint, from its file name."""
    best = best_checkpoint(trainer)
    found = re.search(r"epoch=?(\d+)", Path(best.best_model_path).stem) if best else None
    return float(found[1]) if found else None
