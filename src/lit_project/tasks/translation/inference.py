"""A translation task on raw text: what its vocabularies and its net can do with a sentence."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from lit_project.engine.errors import DataError, UserError
from lit_project.models.seq2seq.base import Seq2Seq
from lit_project.models.seq2seq.search import NOTHING, Decoding
from lit_project.text.preparation import Preparation
from lit_project.text.vocabulary import BOS, EOS, PAD, Vocabulary


def languages_of(vocabularies: dict[str, Any]) -> tuple[str, str]:
    """Source and target language of plain vocabularies.

    Those of early checkpoints do not name them, but a joint vocabulary is of "en+fr" if it was made for en to fr.
    """
    if "languages" in vocabularies:
        source, target = vocabularies["languages"]
        return source, target
    return vocabularies["source"]["language"].split("+")[0], vocabularies["target"]["language"].split("+")[-1]


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


class OnText:
    """Mixed into the task: text to tokens, tokens to text, translations of sentences."""

    net: Seq2Seq
    decoding: Decoding
    device: torch.device

    def read_vocabularies(self, vocabularies: dict[str, Any]) -> None:
        """Makes the vocabularies from plain data: source, target, languages, preparation, max_length."""
        self.vocabularies = vocabularies
        self.preparation = Preparation.from_dict(vocabularies["preparation"])
        self.source_vocabulary = Vocabulary.from_dict(vocabularies["source"])
        self.target_vocabulary = Vocabulary.from_dict(vocabularies["target"])
        self.max_length = int(vocabularies["max_length"])
        self.source_language, self.language = languages_of(vocabularies)

    def text_of(self, tokens: Sequence[int]) -> str:
        """Target tokens as a reader wants them."""
        return self.preparation.restore(self.target_vocabulary.decode(tokens))

    def encode(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Source tokens `(B, S)` and their numbers `(B,)`; what exceeds the maximum length is cut.

        Raises:
            DataError: no sentence, or an empty one.
        """
        ids = [self.source_vocabulary.encode(self.preparation(s))[: self.max_length] for s in sentences]
        for number, tokens in enumerate(ids, 1):
            if not tokens:
                raise DataError(f"sentence {number} is empty: there is nothing to translate")
        if not ids:
            raise DataError("there is nothing to translate")
        rows = [torch.tensor([*tokens, EOS]) for tokens in ids]
        source_BS = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        return move_data_to_device((source_BS, torch.tensor([len(row) for row in rows])), self.device)

    @torch.no_grad()
    def translate(self, sentences: Sequence[str], decoding: Decoding | None = None) -> list[list[Translation]]:
        """The best translations of each sentence, best first.

        Args:
            sentences: raw text, in the source language.
            decoding: how to search; default: the task's own.

        Raises:
            DataError: no sentence, or an empty one.
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
        source = [*self.source_vocabulary.pieces(source_1S[0, :-1].tolist()), "⏹"]
        return source, [*self.target_vocabulary.pieces(list(tokens)), "⏹"], weights[0].float().cpu()
