"""Translation: the task, and how often its decoder is given the true token in training."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor
from torch.nn import functional as F

from lit_project.engine.distributed import print_once
from lit_project.engine.errors import CheckpointError
from lit_project.engine.exact import Totals
from lit_project.engine.schedules import OptimizerFactory
from lit_project.engine.task import Task
from lit_project.models.seq2seq.base import Seq2Seq, full
from lit_project.models.seq2seq.search import NOTHING, Decoding, Hypothesis
from lit_project.tasks.translation.inference import OnText, languages_of
from lit_project.tasks.translation.scores import Row, baselines, scores
from lit_project.text.vocabulary import PAD


class TeacherForcing:
    """The ratio at an optimizer step (scheduled sampling, Bengio et al. 2015).

    Args:
        ratio: a number, or points (step, ratio) with straight lines between them; constant before and after.

    Raises:
        ValueError: a ratio outside [0, 1], no point, or steps that do not ascend.
    """

    def __init__(self, ratio: float | Sequence[tuple[int, float]]) -> None:
        points = [(0, ratio)] if isinstance(ratio, int | float) else list(ratio)
        steps = [step for step, _ in points]
        if not points or steps != sorted(set(steps)) or not all(0 <= value <= 1 for _, value in points):
            raise ValueError(f"teacher_forcing_ratio must be in [0, 1], or points [step, ratio] by step, got {ratio}")
        self.points = [(int(step), float(value)) for step, value in points]

    def __call__(self, step: int) -> float:
        """The ratio at optimizer step `step`, counted from 0."""
        before = (0, self.points[0][1])
        for point in self.points:
            if step < point[0]:
                return before[1] + (point[1] - before[1]) * (step - before[0]) / (point[0] - before[0])
            before = point
        return before[1]


class Translator(OnText, Task):
    """Trains a net of `lit_project.models.seq2seq` on sentence pairs.

    The loss is cross-entropy a token, padding left out, with the gradient of the mean over *all* target tokens of the
    optimizer step, however they are split into micro-batches and processes.

    Logged at each epoch's end: `train/loss` (with label smoothing), `train/token_accuracy`, `train/tokens_per_second`;
    for `val` and `test` `loss` (without), `perplexity`, `token_accuracy`, with the true prefix given; and of the
    translations that the net finds by itself, on detokenised cased text, `bleu` and `chrf` (sacrebleu; every source
    once, all its references), `bleu_single` and `chrf_single` where sources have several references (every pair, its
    own reference), `bleu_lowercase` (lower-cased and tokenised by Moses, as published tables of Multi30k), and the
    baselines `bleu_copy`, `chrf_copy` (the source itself) and `bleu_memory`, `chrf_memory` (the most frequent
    translation of the same source in train, or nothing). The signatures of the scores are in metrics.json.

    Args:
        net: tokens in, logits of the next token out.
        optimizer: makes the optimizer of the parameters.
        vocabularies: plain data that turn text into tokens and back; from the data. They travel in the checkpoint.
        label_smoothing: share of the target spread evenly over the vocabulary (Szegedy et al. 2016).
        teacher_forcing_ratio: how likely the decoder is fed the true token in training and not its own guess: a number,
            or points [optimizer step, ratio] with straight lines between them, such as [[0, 1.0], [5000, 0.5]].
        decoding: the search of `validate`, `test`, `predict` and `translate`.
        validation_decoding: that of validation while it trains; default: greedy.
        **kwargs: of `Task`: schedulers, parameter_groups, compile.

    Raises:
        ValueError: a ratio outside [0, 1], steps that do not ascend, `label_smoothing` outside [0, 1), or a net that
            shares embeddings between two vocabularies.
    """

    unit = "tokens"
    shown = ("loss", "token_accuracy", "bleu")

    def __init__(
        self,
        net: Seq2Seq,
        optimizer: OptimizerFactory,
        vocabularies: dict[str, Any],
        label_smoothing: float = 0.0,
        teacher_forcing_ratio: float | list[tuple[int, float]] = 1.0,
        decoding: Decoding | None = None,
        validation_decoding: Decoding | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
        if getattr(net, "shared_embeddings", False) and vocabularies["source"] != vocabularies["target"]:
            raise ValueError(
                "shared_embeddings needs one joint vocabulary (data.joint: true), but those of source and target differ"
            )
        self.net = net
        self.read_vocabularies(vocabularies)
        self.label_smoothing = label_smoothing
        self.teacher_forcing = TeacherForcing(teacher_forcing_ratio)
        self.decoding = decoding or Decoding(beam_size=5)
        self.validation_decoding = validation_decoding or Decoding()
        self.rows: list[Row] = []  # of the last evaluation, by index
        self._found: dict[str, Hypothesis] = {}  # a source that occurs twice is translated once
        self._baselines: dict[str, tuple[int, dict[str, float]]] = {}  # by split, with a hash of their text

    def forward(self, source_BS: Tensor, lengths_B: Tensor, inputs_BT: Tensor) -> Tensor:
        """Logits `(B, T, V)` of the tokens that follow; see `Seq2Seq.forward`."""
        return self.net(source_BS, lengths_B, inputs_BT)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """The loss of one batch of pairs."""
        inputs_BT, labels_BT = batch.target[:, :-1], batch.target[:, 1:]
        ratio = self.teacher_forcing(self.trainer.global_step)
        logits_BTV = self.net(batch.source, batch.source_lengths, inputs_BT, ratio)
        loss_sum = F.cross_entropy(
            full(logits_BTV).flatten(0, 1),
            labels_BT.flatten(),
            ignore_index=PAD,
            label_smoothing=self.label_smoothing,
            reduction="sum",
        )
        real_BT = labels_BT != PAD
        tokens = real_BT.sum()
        correct = ((logits_BTV.detach().argmax(dim=-1) == labels_BT) & real_BT).sum()
        return self.step(loss_sum / tokens, tokens, loss=loss_sum, token_accuracy=correct)

    def evaluation_start(self) -> None:
        super().evaluation_start()
        self.rows, self._found = [], {}

    def evaluation_step(self, batch: Any, split: str) -> None:
        """Adds one batch to the sums, and translates it."""
        decoding = self.validation_decoding if self.trainer.state.fn == "fit" and split == "val" else self.decoding
        labels_BT = batch.target[:, 1:]
        logits_BTV = full(self(batch.source, batch.source_lengths, batch.target[:, :-1]))
        real_BT = labels_BT != PAD
        loss_sum = F.cross_entropy(logits_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=PAD, reduction="sum")
        correct = ((logits_BTV.argmax(dim=-1) == labels_BT) & real_BT).sum()
        tokens = real_BT.sum()
        self.step(loss_sum / tokens, tokens, loss=loss_sum, token_accuracy=correct)
        new = {text.source: i for i, text in enumerate(batch.texts) if text.source not in self._found}
        if new:
            places = torch.tensor(list(new.values()), device=batch.source.device)
            found = decoding.search(self.net, batch.source[places], batch.source_lengths[places])
            self._found |= {source: best[0] for source, best in zip(new, found, strict=True)}
        for index, text in zip(batch.indices.tolist(), batch.texts, strict=True):
            best = self._found[text.source]
            self.rows.append(Row(index, text, self.text_of(best.tokens), best.score, best.tokens))

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        if self.trainer.world_size > 1:
            shares: list[Any] = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(shares, self.rows)
            self.rows = [row for share in shares for row in share]
        self.rows.sort(key=lambda row: row.index)
        lost = sum(row.score == NOTHING.score for row in self.rows)
        if lost:
            what = f"the probabilities of {lost:,} of {len(self.rows):,} translations are not finite"
            print_once(f"{split}: {what}: those are empty")
        means = totals.means()
        found, self.notes["signatures"] = scores(self.rows, self.language)
        key = hash(tuple((row.text.source, row.text.memory, *row.text.references) for row in self.rows))
        if split not in self._baselines or self._baselines[split][0] != key:
            self._baselines[split] = key, baselines(self.rows, self.language)
        return {
            **means,
            "perplexity": float(torch.tensor(means["loss"]).exp()),
            **found,
            **self._baselines[split][1],
            "samples": float(len(self.rows)),
            "tokens": float(totals.count),
        }

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Rows of a table: index, rank of the translation, source, hypothesis, its score, references."""
        rows: dict[str, list[Any]] = {
            name: [] for name in ("index", "rank", "source", "hypothesis", "score", "references")
        }
        found = self.decoding.search(self.net, batch.source, batch.source_lengths)
        for index, text, hypotheses in zip(batch.indices.tolist(), batch.texts, found, strict=True):
            for rank, best in enumerate(hypotheses, 1):
                references = " | ".join(text.references)
                row = (index, rank, text.source, self.text_of(best.tokens), best.score, references)
                for column, value in zip(rows.values(), row, strict=True):
                    column.append(value)
        return rows

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses weights that were trained with another vocabulary or for other languages.

        Raises:
            CheckpointError: the vocabularies or the languages differ.
        """
        super().on_load_checkpoint(checkpoint)
        theirs = checkpoint.get("hyper_parameters", {}).get("vocabularies")
        if theirs is None:
            return
        what = [name for name, own in self.vocabularies.items() if name != "languages" and theirs.get(name) != own]
        if what:
            raise CheckpointError(f"the checkpoint was trained with another vocabulary ({', '.join(what)} differ)")
        here, there = (self.source_language, self.language), languages_of(theirs)
        if here != there:
            raise CheckpointError(
                f"the checkpoint translates from {there[0]} to {there[1]}, but the data are {here[0]} to {here[1]}"
            )
