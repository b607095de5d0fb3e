"""The translation task, which trains on sentence pairs and translates raw text."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from lit_engine.distributed.processes import all_gathered
from lit_engine.errors import CheckpointError, DataError, UserError
from lit_engine.training.exact import Totals
from lit_engine.training.layout import evaluation_mode
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

END = "■"  # This marks the end of a sentence in attention maps.


class Translation(NamedTuple):
    """A translation of one sentence.

    Attributes:
        text: the translation as text.
        score: the score used for ranking. Higher scores are better.
        log_probability: sum of the log-probabilities of the tokens.
        tokens: token ids in the target vocabulary.
    """

    text: str
    score: float
    log_probability: float
    tokens: list[int]


def is_best(logits_BTV: Tensor, labels_BT: Tensor) -> Tensor:
    """Return whether each label has the largest logit, `(B, T)`. Exact ties between float32 logits count as correct."""
    # On a CPU, `amax` is four times as fast as `max`, and in bfloat16 `max` is five times as fast as `argmax`.
    if logits_BTV.dtype.itemsize < 4:  # Ties are frequent and, in bfloat16, would inflate the accuracy by 0.3 points.
        return logits_BTV.max(dim=-1).indices == labels_BT
    return logits_BTV.gather(-1, labels_BT[..., None]).squeeze(-1) >= logits_BTV.amax(dim=-1)


def divergence(log_probabilities_BTV: Tensor) -> Tensor:
    """Return KL(p‖q) + KL(q‖p) of the predictions p and q in the first and second half of a batch, `(B/2, T)`."""
    log_p, log_q = log_probabilities_BTV.chunk(2)
    return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=-1)


class Translator(Task):
    """Translation task for models from `lit_project.models.seq2seq`, trained on sentence pairs.

    The loss is the cross-entropy per target token, excluding padding. It is averaged over *all* tokens in an optimizer
    step, regardless of how they are split into micro-batches and processes.

    At the end of each epoch, training logs `loss` (with label smoothing), `token_accuracy` and `tokens_per_second`.
    `val` and `test` log `loss` (without label smoothing), `perplexity` and `token_accuracy` with the true tokens as
    input. They also translate the sources and log the following scores of detokenized, cased text:

    - `bleu` and `chrf` use each source once with all its references. metrics.json contains the signatures.
    - If sources have several references, `bleu_single` and `chrf_single` score each pair with only one reference.
    - `bleu_lowercase` is computed from lower-cased text with Moses tokens, as in published Multi30k results.
    - `bleu_copy` and `chrf_copy` score a baseline that outputs the source itself. `bleu_memory` and `chrf_memory` score
      the source's most frequent translation in the training set, or an empty string if it has none.

    Args:
        net: model that maps tokens to logits of the next token.
        optimizer: creates the optimizer for the parameters.
        vocabularies: plain data for converting text to tokens and back. Set from the data and stored in the checkpoint.
        label_smoothing: fraction of the target that is spread evenly over the vocabulary (Szegedy et al., 2016).
        teacher_forcing_ratio: probability that the decoder receives the true token instead of its own prediction in
            training (scheduled sampling, Bengio et al., 2015). Either a number, or a list of [optimizer step, ratio]
            such as [[0, 1.0], [5000, 0.5]], which is interpolated linearly.
        r_drop: the weight α of R-Drop (Liang et al., 2021), for example 5. By default, R-Drop is off (0). R-Drop runs
            each batch twice with different dropout, and adds α/4 times the symmetric KL divergence between the two
            predictions to the mean loss. This doubles time and memory.
        decoding: how `validate`, `test`, `predict` and `translate` search for translations. Default: a beam of size 5.
        validation_decoding: decoding method for validation during training. Default: greedy search.
        **kwargs: the arguments `schedulers`, `parameter_groups`, `compile` and `checkpoint_blocks` of `Task`.

    Raises:
        ValueError: a ratio is outside [0, 1], steps are not ascending, or the model shares embeddings but the
            vocabularies differ.
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
        r_drop: float = 0.0,
        decoding: Decoding | None = None,
        validation_decoding: Decoding | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        if getattr(net, "shared_embeddings", False) and vocabularies["source"] != vocabularies["target"]:
            raise ValueError(
                "shared_embeddings requires a joint vocabulary, but source and target differ: set data.joint: true"
            )
        ratio = teacher_forcing_ratio
        self.forcing_points = [(0, ratio)] if isinstance(ratio, int | float) else ratio
        steps = [step for step, _ in self.forcing_points]
        if not steps or steps != sorted(set(steps)) or not all(0 <= value <= 1 for _, value in self.forcing_points):
            raise ValueError(f"teacher_forcing_ratio must be in [0, 1] or a list of [step, ratio], got {ratio}")
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing must be in [0, 1], got {label_smoothing}")
        if r_drop < 0:
            raise ValueError(f"r_drop must be at least 0, got {r_drop}")
        if r_drop and any(value < 1 for _, value in self.forcing_points):
            raise ValueError("r_drop compares predictions for the same inputs: set teacher_forcing_ratio to 1.0")
        self.net = net
        self.label_smoothing, self.r_drop = label_smoothing, r_drop
        self.decoding = decoding or Decoding(beam_size=5)
        self.validation_decoding = validation_decoding or Decoding()
        self.notes["task"] = "translation"  # task name on the Hugging Face Hub
        self.vocabularies = vocabularies
        self.preparation = Preparation(**vocabularies["preparation"])
        self.source_vocabulary = Vocabulary.from_dict(vocabularies["source"])
        self.target_vocabulary = Vocabulary.from_dict(vocabularies["target"])
        self.max_length = int(vocabularies["max_length"])
        self.source_language, self.target_language = vocabularies["languages"]
        self.rows: list[Row] = []  # results of the last evaluation, sorted by index
        self.by_length: list[tuple[str, float, int]] = []  # BLEU by length in the last `validate` or `test`
        self._found: dict[str, Hypothesis] = {}  # translations by source, so that each source is translated once
        self._baselines: dict[int, dict[str, float]] = {}  # baseline scores, keyed by a hash of the texts

    def configure_model(self) -> None:
        """Shard the model if requested. Each part of a sharded model must run exactly once per step.

        Raises:
            UserError: a sharded decoder would run once per token, because `teacher_forcing_ratio` is below 1.
        """
        if self.device_mesh is not None and min(ratio for _, ratio in self.forcing_points) < 1:
            raise UserError("sharding does not support teacher_forcing_ratio below 1: set it to 1.0")
        super().configure_model()

    def forward(self, source_BS: Tensor, lengths_B: Tensor, inputs_BT: Tensor) -> Tensor:
        """Return the logits `(B, T, V)` of the next tokens (see `Seq2Seq.forward`)."""
        return self.net(source_BS, lengths_B, inputs_BT)

    def teacher_forcing(self, step: int) -> float:
        """Return the probability that the decoder receives the true token. Optimizer steps are counted from 0."""
        steps, ratios = zip(*self.forcing_points, strict=True)
        return float(np.interp(step, steps, ratios))

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedulers. If there are several schedulers, their factors are multiplied."""
        optimizer = build_optimizer(self.optimizer_factory, self.parameter_groups())
        return [optimizer], build_schedulers(self.schedules, optimizer, self.length)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        source_BS, lengths_B, target_BT = batch.source, batch.source_lengths, batch.target
        if self.r_drop:
            source_BS, lengths_B, target_BT = source_BS.repeat(2, 1), lengths_B.repeat(2), target_BT.repeat(2, 1)
        ratio = self.teacher_forcing(self.trainer.global_step)
        logits_BTV = self.net(source_BS, lengths_B, target_BT[:, :-1], ratio)
        return self._count(logits_BTV, target_BT[:, 1:], self.label_smoothing, self.r_drop)

    def _count(self, logits_BTV: Tensor, labels_BT: Tensor, label_smoothing: float, r_drop: float = 0.0) -> Tensor:
        real_BT = labels_BT != PAD
        tokens = real_BT.sum()
        log_p_BTV = at_least_float32(logits_BTV).log_softmax(dim=-1)
        loss_sum = F.nll_loss(log_p_BTV.flatten(0, 1), labels_BT.flatten(), ignore_index=PAD, reduction="sum")
        if label_smoothing:
            uniform_sum = -log_p_BTV.sum(dim=-1).masked_fill(~real_BT, 0).sum() / logits_BTV.shape[-1]
            loss_sum = (1 - label_smoothing) * loss_sum + label_smoothing * uniform_sum
        known_BT = real_BT & (labels_BT != UNK)  # Predicting "unknown" does not count as correct.
        correct = (is_best(logits_BTV.detach(), labels_BT) & known_BT).sum()
        if not r_drop:
            return self.step(loss_sum / tokens, tokens, loss=loss_sum, token_accuracy=correct)
        # The sums include both copies of each sentence. Halve them, so that each token counts once.
        penalty = r_drop / 2 * (divergence(log_p_BTV) * real_BT.chunk(2)[0]).sum()
        mean = (loss_sum + penalty) / tokens
        return self.step(mean, tokens // 2, loss=loss_sum / 2, token_accuracy=correct / 2)

    def evaluation_start(self) -> None:
        super().evaluation_start()
        self.rows, self._found = [], {}

    def evaluation_step(self, batch: Any, split: str) -> None:
        """Add a batch to the sums and translate its sources."""
        logits_BTV = self(batch.source, batch.source_lengths, batch.target[:, :-1])
        self._count(logits_BTV, batch.target[:, 1:], label_smoothing=0.0)
        new = {text.source: i for i, text in enumerate(batch.texts) if text.source not in self._found}
        if new:
            decoding = self.validation_decoding if self.trainer.state.fn == "fit" else self.decoding
            places = torch.tensor(list(new.values()))
            found = decoding.search(self.net, batch.source[places], batch.source_lengths[places])
            self._found |= {source: best[0] for source, best in zip(new, found, strict=True)}
        for index, text in zip(batch.indices.tolist(), batch.texts, strict=True):
            best = self._found[text.source]
            self.rows.append(Row(index, text, self.text_of(best.tokens), best.tokens))

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
            "perplexity": float(torch.tensor(means["loss"], dtype=torch.double).exp()),
            **found,
            **self._baselines[key],
            "samples": float(len(self.rows)),
            "tokens": float(totals.count),
        }

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Return the prediction table, which lists the ranked hypotheses for each source with their scores."""
        rows = []
        found = self.decoding.search(self.net, batch.source, batch.source_lengths)
        for index, text, hypotheses in zip(batch.indices.tolist(), batch.texts, found, strict=True):
            references = " | ".join(one.replace(" | ", r" \| ") for one in text.references)
            for rank, best in enumerate(hypotheses, 1):
                rows.append((index, rank, text.source, self.text_of(best.tokens), best.score, references))
        names = ("index", "rank", "source", "hypothesis", "score", "references")
        return {name: [row[column] for row in rows] for column, name in enumerate(names)}

    def exported(self, batch: Any) -> "Exported":
        """Return the encoder, one decoder step and a translation script for `export`."""
        from lit_project.tasks.translation.export import exported

        return exported(self, batch)

    def answer_text(self, text: str) -> dict[str, Any]:
        """Return a translation with its score, notes (unknown words and truncation) and attention map for `serve`."""
        from lit_project.tasks.translation.command import translate_all
        from lit_project.tasks.translation.figures import attention_map

        notes: list[str] = []
        if not (found := translate_all(self, [text], self.decoding, 1, notes.append)[0]):
            raise DataError("the text is empty: there is nothing to translate")
        best = found[0]
        row: dict[str, Any] = {"translation": best.text, "score": best.score, "note": "; ".join(notes)}
        if (seen := self.attention(text, best.tokens)) is not None:
            source, target, weights_TS = seen
            row["attention"] = attention_map(weights_TS, source, target)
        return row

    def text_of(self, tokens: Sequence[int]) -> str:
        """Convert target tokens to readable text."""
        return self.preparation.restore(self.target_vocabulary.decode(tokens))

    def encode(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Return source tokens `(B, S)`, truncated to the maximum length, and the length of each row `(B,)` on the CPU.

        Raises:
            DataError: a sentence is empty.
        """
        ids = [self.source_vocabulary.encode(self.preparation(s))[: self.max_length] for s in sentences]
        if not all(ids):
            raise DataError("a sentence is empty: there is nothing to translate")
        rows = [torch.tensor([*tokens, EOS]) for tokens in ids]
        source_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        return source_BS.to(self.device), torch.tensor([len(row) for row in rows])

    def translate(self, sentences: Sequence[str], decoding: Decoding | None = None) -> list[list[Translation]]:
        """Return a list of translations for each sentence, with the best one first.

        Args:
            sentences: raw text in the source language.
            decoding: search options. Default: the options of the task.

        Raises:
            DataError: a sentence is empty.
            UserError: the model's probabilities are not finite.
        """
        if not sentences:
            return []
        with evaluation_mode(self.net):
            found = (decoding or self.decoding).search(self.net, *self.encode(sentences))
        if any(one[0] == NOTHING for one in found):
            raise UserError("the model's probabilities are not finite, because its training has diverged")
        return [
            [Translation(self.text_of(h.tokens), h.score, h.log_probability, h.tokens) for h in one] for one in found
        ]

    @torch.no_grad()
    def attention(self, sentence: str, tokens: Sequence[int]) -> tuple[list[str], list[str], Tensor] | None:
        """Return the attention weights for a translation.

        Returns:
            The source and target tokens as text (both with an end marker) and the weights `(T, S)`, or None if the
            model has no attention.
        """
        source_1S, length_1 = self.encode([sentence])
        inputs_1T = torch.tensor([[BOS, *tokens]], device=self.device)
        with evaluation_mode(self.net):
            memory = self.net.encode(source_1S, length_1)
            weights = self.net.decode(inputs_1T, self.net.start(memory), memory, attention=True).attention
        if weights is None:
            return None
        source = [*self.source_vocabulary.pieces(source_1S[0, :-1].tolist()), END]
        return source, [*self.target_vocabulary.pieces(list(tokens)), END], weights[0].float().cpu()

    def meaningless_weights(self, hyper_parameters: Mapping[str, Any]) -> list[str]:
        """Return the names of all per-token weights for which the checkpoint used a different vocabulary."""
        theirs = hyper_parameters.get("vocabularies") or self.vocabularies
        sides = [side for side in ("source", "target") if theirs[side] != self.vocabularies[side]]
        beginnings = tuple(f"net.{name}" for side in sides for name in self.net.vocabulary_weights[side])
        return [name for name in self.state_dict() if name.startswith(beginnings)]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the weights were trained with the same vocabularies and languages.

        Raises:
            CheckpointError: the vocabularies or the languages differ.
        """
        super().on_load_checkpoint(checkpoint)
        theirs = checkpoint.get("hyper_parameters", {}).get("vocabularies")
        if theirs is None:
            return
        what = [name for name, own in self.vocabularies.items() if name != "languages" and theirs.get(name) != own]
        if what:
            raise CheckpointError(f"the checkpoint was trained with a different vocabulary ({', '.join(what)} differ)")
        there, here = theirs["languages"], self.vocabularies["languages"]
        if there != here:
            raise CheckpointError(
                f"the checkpoint translates from {there[0]} to {there[1]}, but the data require {here[0]} to {here[1]}"
            )
