"""Translation: the task, and what a trained one does with raw text."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lit_engine.distributed.processes import all_gathered
from lit_engine.errors import CheckpointError, DataError, UserError
from lit_engine.training.exact import Totals
from lit_engine.training.schedules import OptimizerFactory, build_optimizer, build_schedulers
from lit_engine.training.task import Task
from lit_project.models.losses import at_least_float32
from lit_project.models.seq2seq.base import Seq2Seq
from lit_project.models.seq2seq.search import NOTHING, Decoding, Hypothesis
from lit_project.tasks.translation.scores import Row, baselines, by_length, first_of_each_source, scores
from lit_project.text.preparation import Preparation
from lit_project.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported

END = "■"  # the end of a sentence, in attention maps


class Translation(NamedTuple):
    """One translation of one sentence.

    Attributes:
        text: the translation.
        score: what it was ranked by; the higher the better.
        log_probability: of its tokens.
        tokens: ids of the target vocabulary.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[int]


class Translator(Task):
    """Trains a net of `lit_project.models.seq2seq` on sentence pairs.

    The loss is cross-entropy per token, padding left out, with the gradient of the mean over *all* target tokens of the
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
            or points [optimizer step, ratio] with straight lines between them, such as [[0, 1.0], [5000, 0.5]]
            (scheduled sampling, Bengio et al. 2015).
        decoding: the search of `validate`, `test`, `predict` and `translate`.
        validation_decoding: that of validation while it trains; default: greedy.
        **kwargs: of `Task`: schedulers, parameter_groups, compile, metrics.

    Raises:
        ValueError: a ratio outside [0, 1], steps that do not ascend, or a net that shares embeddings between two
            vocabularies.
    """

    unit = "tokens"
    headline_metrics = ("loss", "token_accuracy", "bleu")

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
        if getattr(net, "shared_embeddings", False) and vocabularies["source"] != vocabularies["target"]:
            raise ValueError(
                "shared_embeddings needs one joint vocabulary (data.joint: true), but those of source and target differ"
            )
        ratio = teacher_forcing_ratio
        self.forcing_points = [(0, ratio)] if isinstance(ratio, int | float) else ratio
        steps = [step for step, _ in self.forcing_points]
        if not steps or steps != sorted(set(steps)) or not all(0 <= value <= 1 for _, value in self.forcing_points):
            raise ValueError(f"teacher_forcing_ratio must be in [0, 1], or points [step, ratio] by step, got {ratio}")
        self.net = net
        self.label_smoothing = label_smoothing
        self.decoding = decoding or Decoding(beam_size=5)
        self.validation_decoding = validation_decoding or Decoding()
        self.notes["task"] = "translation"  # as the Hugging Face Hub calls it
        self.vocabularies = vocabularies
        self.preparation = Preparation(**vocabularies["preparation"])
        self.source_vocabulary = Vocabulary.from_dict(vocabularies["source"])
        self.target_vocabulary = Vocabulary.from_dict(vocabularies["target"])
        self.max_length = int(vocabularies["max_length"])
        self.source_language, self.target_language = vocabularies["languages"]
        self.rows: list[Row] = []  # of the last evaluation, by index
        self.by_length: list[tuple[str, float, int]] = []  # of the last one after training; see scores.py
        self._found: dict[str, Hypothesis] = {}  # a source that occurs twice is translated once
        self._baselines: dict[int, dict[str, float]] = {}  # by a hash of their text

    def configure_model(self) -> None:
        """Shards the net, which then runs each of its parts once per step.

        Raises:
            UserError: it would feed on its own guesses, token by token.
        """
        if self.device_mesh is not None and min(ratio for _, ratio in self.forcing_points) < 1:
            raise UserError("a teacher_forcing_ratio below 1 runs the decoder token by token: not with a sharded net")
        super().configure_model()

    def forward(self, source_BS: Tensor, lengths_B: Tensor, inputs_BT: Tensor) -> Tensor:
        """Logits `(B, T, V)` of the tokens that follow; see `Seq2Seq.forward`."""
        return self.net(source_BS, lengths_B, inputs_BT)

    def teacher_forcing(self, step: int) -> float:
        """How likely the decoder is fed the true token at an optimizer step, counted from 0."""
        steps, ratios = zip(*self.forcing_points, strict=True)
        return float(np.interp(step, steps, ratios))

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its learning rate schedulers. The factors of several schedulers are multiplied."""
        optimizer = build_optimizer(self.optimizer_factory, self.parameter_groups())
        return [optimizer], build_schedulers(self.schedules, optimizer, self.length)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        inputs_BT, labels_BT = batch.target[:, :-1], batch.target[:, 1:]
        ratio = self.teacher_forcing(self.trainer.global_step)
        logits_BTV = self.net(batch.source, batch.source_lengths, inputs_BT, ratio)
        return self._count(logits_BTV, labels_BT, self.label_smoothing)

    def _count(self, logits_BTV: Tensor, labels_BT: Tensor, label_smoothing: float) -> Tensor:
        real_BT = labels_BT != PAD
        tokens = real_BT.sum()
        loss_sum = F.cross_entropy(
            at_least_float32(logits_BTV).flatten(0, 1),
            labels_BT.flatten(),
            ignore_index=PAD,
            label_smoothing=label_smoothing,
            reduction="sum",
        )
        known_BT = real_BT & (labels_BT != UNK)  # to predict that a word is unknown is not to know it
        correct = ((logits_BTV.detach().argmax(dim=-1) == labels_BT) & known_BT).sum()
        return self.step(loss_sum / tokens, tokens, loss=loss_sum, token_accuracy=correct)

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "test")

    def evaluation_start(self) -> None:
        super().evaluation_start()
        self.rows, self._found = [], {}

    def evaluation_step(self, batch: Any, split: str) -> None:
        """Adds one batch to the sums, and translates it."""
        logits_BTV = self(batch.source, batch.source_lengths, batch.target[:, :-1])
        self._count(logits_BTV, batch.target[:, 1:], label_smoothing=0.0)
        new = {text.source: i for i, text in enumerate(batch.texts) if text.source not in self._found}
        if new:
            decoding = self.validation_decoding if self.trainer.state.fn == "fit" else self.decoding
            places = torch.tensor(list(new.values()), device=batch.source.device)
            found = decoding.search(self.net, batch.source[places], batch.source_lengths[places])
            self._found |= {source: best[0] for source, best in zip(new, found, strict=True)}
        for index, text in zip(batch.indices.tolist(), batch.texts, strict=True):
            best = self._found[text.source]
            self.rows.append(Row(index, text, self.text_of(best.tokens), best.score, best.tokens))

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        self.rows = sorted(all_gathered(self.rows, self.trainer), key=lambda row: row.index)
        means = totals.means()
        found, self.notes["signatures"] = scores(self.rows, self.target_language)
        if self.trainer.state.fn != "fit":
            self.by_length = by_length(first_of_each_source(self.rows), self.target_language)
            self.notes["bleu_by_length"] = {words: round(bleu, 4) for words, bleu, _ in self.by_length}
        key = hash(tuple((row.text.source, row.text.memory, *row.text.references) for row in self.rows))
        if key not in self._baselines:
            self._baselines[key] = baselines(self.rows, self.target_language)
        return {
            **means,
            "perplexity": float(torch.tensor(means["loss"]).exp()),
            **found,
            **self._baselines[key],
            "samples": float(len(self.rows)),
            "tokens": float(totals.count),
        }

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Rows of a table: index, rank of the translation, source, hypothesis, its score, references."""
        rows = []
        found = self.decoding.search(self.net, batch.source, batch.source_lengths)
        for index, text, hypotheses in zip(batch.indices.tolist(), batch.texts, found, strict=True):
            references = " | ".join(text.references)
            for rank, best in enumerate(hypotheses, 1):
                rows.append((index, rank, text.source, self.text_of(best.tokens), best.score, references))
        names = ("index", "rank", "source", "hypothesis", "score", "references")
        return {name: [row[column] for row in rows] for column, name in enumerate(names)}

    def exported(self, batch: Any) -> "Exported":
        """For `export`: the encoder, a step of the decoder, and a script that searches with them."""
        from lit_project.tasks.translation.export import exported

        return exported(self, batch)

    def served(self, text: str) -> dict[str, Any]:
        """For `serve`: the translation, its score, what the checkpoint does not know or take, and the attention."""
        from lit_project.tasks.translation.command import translated
        from lit_project.tasks.translation.figures import attention_map

        notes: list[str] = []
        if not (found := translated(self, [text], self.decoding, 1, notes.append)[0]):
            raise DataError("the text is empty: there is nothing to translate")
        best = found[0]
        row: dict[str, Any] = {"translation": best.text, "score": best.score, "note": "; ".join(notes)}
        if (seen := self.attention(text, best.tokens)) is not None:
            source, target, weights_TS = seen
            row["attention"] = attention_map(weights_TS, source, target)
        return row

    def text_of(self, tokens: Sequence[int]) -> str:
        """Target tokens as a reader wants them."""
        return self.preparation.restore(self.target_vocabulary.decode(tokens))

    def encode(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Source tokens `(B, S)` and their numbers `(B,)`; what exceeds the maximum length is cut.

        Raises:
            DataError: an empty sentence.
        """
        ids = [self.source_vocabulary.encode(self.preparation(s))[: self.max_length] for s in sentences]
        if not all(ids):
            raise DataError("a sentence is empty: there is nothing to translate")
        rows = [torch.tensor([*tokens, EOS]) for tokens in ids]
        source_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        return source_BS.to(self.device), torch.tensor([len(row) for row in rows], device=self.device)

    @torch.no_grad()
    def translate(self, sentences: Sequence[str], decoding: Decoding | None = None) -> list[list[Translation]]:
        """The best translations of each sentence, best first.

        Args:
            sentences: raw text, in the source language.
            decoding: how to search; default: the task's own.

        Raises:
            DataError: an empty sentence.
            UserError: the net gives no numbers.
        """
        self.net.eval()
        found = (decoding or self.decoding).search(self.net, *self.encode(sentences))
        if any(one[0] == NOTHING for one in found):
            raise UserError("the probabilities of the net are not finite: its training has diverged")
        return [
            [Translation(self.text_of(h.tokens), h.score, h.log_probability, h.tokens) for h in one] for one in found
        ]

    @torch.no_grad()
    def attention(self, sentence: str, tokens: Sequence[int]) -> tuple[list[str], list[str], Tensor] | None:
        """What the net looks at while it writes a translation.

        Returns:
            Source pieces, target pieces (both with the end), and weights `(T, S)`; None if the net has no attention.
        """
        self.net.eval()
        source_1S, length_1 = self.encode([sentence])
        memory = self.net.encode(source_1S, length_1)
        inputs_1T = torch.tensor([[BOS, *tokens]], device=self.device)
        weights = self.net.decode(inputs_1T, self.net.start(memory), memory, attention=True).attention
        if weights is None:
            return None
        source = [*self.source_vocabulary.pieces(source_1S[0, :-1].tolist()), END]
        return source, [*self.target_vocabulary.pieces(list(tokens)), END], weights[0].float().cpu()

    def meaningless_weights(self, hyper_parameters: Mapping[str, Any]) -> list[str]:
        """The weights of a checkpoint with a row per token, where its vocabulary differs from that of this task."""
        theirs = hyper_parameters.get("vocabularies") or self.vocabularies
        sides = [side for side in ("source", "target") if theirs[side] != self.vocabularies[side]]
        beginnings = tuple(f"net.{name}" for side in sides for name in self.net.vocabulary_weights[side])
        return [name for name in self.state_dict() if beginnings and name.startswith(beginnings)]

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
        there, here = theirs["languages"], self.vocabularies["languages"]
        if there != here:
            raise CheckpointError(
                f"the checkpoint translates from {there[0]} to {there[1]}, but the data are {here[0]} to {here[1]}"
            )
