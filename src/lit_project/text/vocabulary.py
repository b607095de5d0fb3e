"""Vocabularies: sentences to token ids and back. They travel in checkpoints as plain data."""

import base64
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lit_engine.errors import DataError
from lit_project.text.tokens import BOS, EOS, JOINER, PAD, SPECIALS, UNK, join_words, split_words


class Vocabulary(ABC):
    """The tokens of one language (or of several: "en+fr"), with the four special ids in front.

    Attributes:
        language: code of the language, such as "en".
    """

    language: str

    @abstractmethod
    def __len__(self) -> int:
        """Number of ids, the specials counted."""

    @abstractmethod
    def encode(self, sentence: str) -> list[int]:
        """Ids of a prepared sentence, without BOS and EOS."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The written sentence; PAD, BOS and EOS are skipped, UNK shows as "<unk>"."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """One label per id, for the axes of attention maps."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Plain data (str, int, list, dict), the input of `from_dict`; loads with `weights_only=True`."""

    def encode_all(self, sentences: Sequence[str]) -> list[list[int]]:
        """`encode` of many sentences."""
        return [self.encode(sentence) for sentence in sentences]

    def unknown(self, sentence: str) -> list[str]:
        """The words of a prepared sentence that the vocabulary lacks, or whose letters it lacks."""
        return [word for word in sentence.split() if UNK in self.encode(word)]

    @staticmethod
    def from_dict(data: dict[str, Any]) -> "Vocabulary":
        """A vocabulary from its plain data.

        Raises:
            DataError: the data are not those of a vocabulary.
        """
        try:
            kind, language = data["kind"], str(data["language"])
            if kind == "word":
                return WordVocabulary(data["words"], language)
            return SubwordVocabulary(base64.b64decode(data["model"]), language, kind)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"these are not the data of a vocabulary: {error!r}") from error


class WordVocabulary(Vocabulary):
    """Whole words and punctuation marks; unknown ones are UNK.

    Args:
        words: tokens of `lit_project.text.tokens.split_words`, from id 4 on.
        language: chooses the rules that split words (elisions in French, clitics in English).
    """

    def __init__(self, words: Sequence[str], language: str) -> None:
        self.words = list(words)
        self.language = language
        self.ids = {word: index for index, word in enumerate(self.words, len(SPECIALS))}

    @classmethod
    def build(
        cls, sentences: Iterable[str], min_freq: int = 1, max_size: int | None = None, *, language: str
    ) -> "WordVocabulary":
        """The words that occur at least `min_freq` times, the most frequent first (alphabetical among equals).

        Args:
            sentences: prepared training sentences.
            min_freq: rarer words are unknown.
            max_size: greatest number of ids, the four specials counted; more than these.
            language: of the sentences.

        Raises:
            DataError: no word is left.
        """
        counts = Counter(word for sentence in sentences for word in split_words(sentence, language))
        words = sorted((word for word, count in counts.items() if count >= min_freq), key=lambda w: (-counts[w], w))
        if not words:
            raise DataError(f"no word of the {language} training text occurs {min_freq} times or more: lower min_freq")
        return cls(words[: None if max_size is None else max_size - len(SPECIALS)], language)

    def __len__(self) -> int:
        return len(SPECIALS) + len(self.words)

    def encode(self, sentence: str) -> list[int]:
        return [self.ids.get(word, UNK) for word in split_words(sentence, self.language)]

    def decode(self, ids: Sequence[int]) -> str:
        return join_words(self._token(i) for i in ids if i not in (PAD, BOS, EOS))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._token(i).replace(JOINER, "") for i in ids]

    def unknown(self, sentence: str) -> list[str]:
        return [word.replace(JOINER, "") for word in split_words(sentence, self.language) if word not in self.ids]

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "word", "language": self.language, "words": list(self.words)}

    def _token(self, index: int) -> str:
        return SPECIALS[index] if index < len(SPECIALS) else self.words[index - len(SPECIALS)]


class SubwordVocabulary(Vocabulary):
    """Pieces of words by sentencepiece (Kudo & Richardson 2018): BPE or a unigram language model.

    Args:
        model: a serialised sentencepiece model with the special ids of this module.
        language: of the text it was trained on; "en+fr" for a joint one.
        kind: what it was trained as.

    Raises:
        DataError: the bytes are no such model.
    """

    def __init__(self, model: bytes, language: str, kind: Literal["bpe", "unigram"]) -> None:
        from sentencepiece import SentencePieceProcessor

        self.model = model
        self.language = language
        self.kind = kind
        self.processor = SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise DataError(f"not a sentencepiece model: {error}") from error
        self.labels: list[str] = [self.processor.IdToPiece(i) for i in range(self.processor.GetPieceSize())]

    @classmethod
    def train(
        cls, sentences: Iterable[str], size: int, kind: Literal["bpe", "unigram"] = "bpe", *, language: str
    ) -> "SubwordVocabulary":
        """Trains on prepared sentences; the same sentences give the same model.

        Args:
            sentences: training text.
            size: number of ids, the four specials counted.
            kind: BPE (Sennrich et al. 2016) or unigram language model (Kudo 2018).
            language: of the sentences.

        Raises:
            DataError: `size` is too large or too small for the text; sentencepiece says what is possible.
        """
        from sentencepiece import SentencePieceTrainer

        written = io.BytesIO()
        try:
            SentencePieceTrainer.Train(
                sentence_iterator=iter(sentences),
                model_writer=written,
                vocab_size=size,
                model_type=kind,
                character_coverage=1.0,
                normalization_rule_name="identity",  # the preparation has normalised; more would lose the round trip
                byte_fallback=False,
                max_sentence_length=1 << 20,  # bytes; longer sentences would be skipped silently
                num_threads=4,  # fixed, because the sums of the unigram model depend on it
                minloglevel=2,
                pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS,
                pad_piece=SPECIALS[PAD], unk_piece=SPECIALS[UNK], bos_piece=SPECIALS[BOS], eos_piece=SPECIALS[EOS],
            )  # fmt: skip
        except (RuntimeError, OSError) as error:
            reason = str(error).rpartition("] ")[2]  # without the line of its source
            raise DataError(f"vocabulary_size {size} for {kind} subwords ({language}): {reason}") from error
        return cls(written.getvalue(), language, kind)

    def __len__(self) -> int:
        return len(self.labels)

    def encode(self, sentence: str) -> list[int]:
        return self.processor.Encode(sentence)

    def encode_all(self, sentences: Sequence[str]) -> list[list[int]]:
        return self.processor.Encode(list(sentences), num_threads=1)

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.labels[i] for i in ids if i not in (PAD, BOS, EOS)).replace("▁", " ").strip()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self.labels[i] for i in ids]

    def as_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "language": self.language, "model": base64.b64encode(self.model).decode()}
