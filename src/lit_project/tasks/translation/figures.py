"""Figures and tables for translations, with attention maps, BLEU by length, and best, worst and random samples."""

from __future__ import annotations

import json
import random
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from lit_engine.callbacks.drawing import log_table, new_figure
from lit_engine.callbacks.figures import save_figure
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.run.directory import write_text
from lit_project.tasks.translation.scores import Row, first_of_each_source
from lit_project.text.scores import group_bleu

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGIBLE = 40  # number of tokens that fit on an axis at full font size


def attention_map(
    weights_TS: Tensor, source_pieces: Sequence[str], target_pieces: Sequence[str], title: str = ""
) -> Figure:
    """Draw attention weights as a heat map, with source pieces as columns and target pieces as rows.

    Args:
        weights_TS: attention weights `(T, S)`. Each row sums to 1.
        source_pieces: labels of the S source tokens, in the order of the sentence.
        target_pieces: labels of the T target tokens, in the order of the sentence.
        title: figure title, which is drawn as plain text.
    """
    rows, columns = weights_TS.shape
    scale = min(1, LEGIBLE / max(rows, columns))
    cell, letter = 0.3 * scale, 0.09 * scale  # width of a cell and approximate width of a letter, in inches
    width = columns * cell + max(map(len, target_pieces)) * letter + 1.6
    height = rows * cell + max(map(len, source_pieces)) * letter + 0.8
    figure = new_figure(max(width, 4), max(height, 2.5))
    axes = figure.add_subplot()
    image = axes.imshow(weights_TS.numpy(), cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="attention", shrink=0.8)
    # With `parse_math=True`, "$5 or $6" would be drawn as a formula.
    text: dict[str, Any] = {"fontsize": 9 * scale, "parse_math": False}
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="source", ylabel="translation")
    axes.set_xticks(range(columns), labels=source_pieces, rotation=90, **text)
    axes.set_yticks(range(rows), labels=target_pieces, **text)
    axes.set_xticks([x - 0.5 for x in range(1, columns)], minor=True)
    axes.set_yticks([y - 0.5 for y in range(1, rows)], minor=True)
    axes.grid(which="minor", color="grey", alpha=0.25, linewidth=0.5)  # The grid helps readers find the words.
    axes.tick_params(which="minor", length=0)
    if title:
        lines = textwrap.wrap(title, int(11 * figure.get_figwidth()))  # 11 letters per inch
        figure.suptitle("\n".join(lines), fontsize=10, parse_math=False)
    return figure


def bleu_by_length(groups: Sequence[tuple[str, float, int]], title: str = "") -> Figure:
    """Draw the BLEU score of each group in `scores.by_length` as a bar, labelled with the number of sentences."""
    labels, scores, counts = zip(*groups, strict=True)
    figure = new_figure(max(4.5, 0.65 * len(groups) + 1.5), 4)
    axes = figure.add_subplot()
    bars = axes.bar(range(len(groups)), scores, color="tab:blue", alpha=0.8)
    axes.bar_label(bars, labels=[f"{count:,}" for count in counts], padding=2, fontsize=8)
    axes.set_xticks(range(len(groups)), labels=labels)
    axes.set(xlabel="words in the source (bar labels: sentences)", ylabel="BLEU", ylim=(0, 110), title=title)
    axes.set_yticks(range(0, 101, 20))
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    return figure


class Translations(Callback):
    """Callback that writes figures and tables of a `Translator`'s translations. It ignores other tasks.

    During training, it draws attention maps of the first validation sentences (`figures/attention/epochNNN_K.png`).
    Epochs are counted from 0, as in checkpoint names. After `validate` and `test`, it writes
    `figures/SPLIT_attention_K.png`, `figures/SPLIT_bleu_by_length.png` and `predictions/SPLIT_samples.json`, with the
    best, worst and some random translations. TensorBoard and W&B receive the figures, and W&B also receives the tables.

    Args:
        sentences: number of sentences with an attention map; 0 for none.
        every_n_epochs: draw attention maps every n epochs during training, and always in the last epoch.
        samples: number of rows in each table; 0 for no tables.
    """

    def __init__(self, sentences: int = 4, every_n_epochs: int = 5, samples: int = 10) -> None:
        if every_n_epochs < 1:
            raise ValueError(f"every_n_epochs must be at least 1, got {every_n_epochs}")
        self.sentences = sentences
        self.every_n_epochs = every_n_epochs
        self.samples = samples
        self._waiting: int | None = None  # the last validated epoch, if it has not been drawn yet

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        """Compute the attention now, because averaged model weights are swapped out at the end of the epoch."""
        if batch_idx + 1 == trainer.num_val_batches[0] and not trainer.sanity_checking:
            self._look(trainer, pl_module)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *args: Any
    ) -> None:
        if batch_idx + 1 == trainer.num_test_batches[0]:
            self._look(trainer, pl_module)

    def _look(self, trainer: Trainer, task: Any) -> None:
        """Compute the attention weights for the first sentences that this process evaluates."""
        if not fast_dev_run(trainer):
            for row in first_of_each_source(getattr(task, "rows", []))[: self.sentences]:
                row.attention = task.attention(row.text.source, row.tokens)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw attention maps every few epochs in `fit`, and all figures and tables in `validate`."""
        if trainer.state.fn == "validate":
            self._draw_all(trainer, pl_module, "val")
        elif not trainer.sanity_checking:
            self._waiting = trainer.current_epoch
            if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
                self._draw_epoch(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw attention maps after the last epoch, because early stopping may end training in any epoch."""
        self._draw_epoch(trainer, pl_module)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._draw_all(trainer, pl_module, "test")

    def _draw_epoch(self, trainer: Trainer, task: Any) -> None:
        if self._waiting is not None:
            self._draw_attention(trainer, _rows(trainer, task), f"attention/epoch{self._waiting:03d}", "attention")
        self._waiting = None

    def _draw_all(self, trainer: Trainer, task: Any, split: str) -> None:
        rows = _rows(trainer, task)
        if not rows:
            return
        self._draw_attention(trainer, rows, f"{split}_attention", f"{split}_attention")
        title = f"{split}: BLEU by length of the source"
        about = "BLEU by the number of words in the source. Long sentences are usually harder."
        save_figure(trainer, f"{split}_bleu_by_length", bleu_by_length(task.by_length, title), caption=about)
        if not self.samples:
            return
        samples = sample_tables(rows, self.samples, task.target_language)
        file = Path(trainer.default_root_dir) / "predictions" / f"{split}_samples.json"
        write_text(file, json.dumps(samples, indent=2, ensure_ascii=False) + "\n")
        columns = ["which", "BLEU", "source", "translation", "references"]
        data = [[which, *row.values()] for which, items in samples.items() for row in items]
        log_table(trainer, f"{split}/samples", columns, data)

    def _draw_attention(self, trainer: Trainer, rows: Sequence[Row], name: str, tag: str) -> None:
        for number, row in enumerate(rows[: self.sentences], 1):
            if row.attention is None:  # The model has no attention.
                return
            source, target, weights_TS = row.attention
            figure = attention_map(weights_TS, source, target, f"reference: {row.text.references[0]}")
            about = "Attention weights from each token of the translation (rows) to the source tokens (columns)."
            save_figure(trainer, f"{name}_{number}", figure, f"{tag}_{number}", about)


def _rows(trainer: Trainer, task: Any) -> list[Row]:
    """Return the first row of each source, sorted by index, or no rows in smoke tests and on ranks other than 0."""
    if not trainer.is_global_zero or fast_dev_run(trainer):
        return []
    return first_of_each_source(getattr(task, "rows", []))


def sample_tables(rows: Sequence[Row], samples: int, language: str) -> dict[str, list[dict[str, Any]]]:
    """Return tables of the best and worst translations and a random selection, with their smoothed sentence BLEU.

    The random samples depend only on the evaluated sentences, so checkpoints can be compared. Multiple references are
    joined by newlines.
    """
    bleu = [group_bleu([row.hypothesis], [row.text.references], language) for row in rows]
    lines = [
        {
            "BLEU": round(score, 1),
            "source": row.text.source,
            "translation": row.hypothesis,
            "references": "\n".join(row.text.references),
        }
        for score, row in zip(bleu, rows, strict=True)
    ]
    ranked = sorted(range(len(rows)), key=lambda place: -bleu[place])
    chosen = sorted(random.Random(0).sample(range(len(rows)), min(samples, len(rows))))
    places = {"Best": ranked[:samples], "Worst": ranked[::-1][:samples], "Random": chosen}
    return {which: [lines[place] for place in own] for which, own in places.items()}
