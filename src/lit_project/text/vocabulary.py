"""Vocabularies convert sentences to token ids and back. Checkpoints store them as plain data."""

import base64
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lit_engine.errors import DataError
from lit_project.text.tokens import BOS, EOS, JOINER, PAD, SPECIALS, UNK, join_words, split_words


class Vocabulary(ABC):
    """Base class for vocabularies of one or more languages. The four special tokens have ids 0 to 3.

    Attributes:
        language: language code, such as "en", or "en+fr" for a joint vocabulary.
    """

    language: str

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of ids, including special tokens."""

    @abstractmethod
    def encode(self, sentence: str) -> list[int]:
        """Return the ids of a prepared sentence, without BOS and EOS."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to a sentence. PAD, BOS and EOS are skipped, and UNK becomes "<unk>"."""

    @abstractmethod
    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return one label per id, for the axes of attention maps."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return plain data for `from_dict`. The data can be loaded from a checkpoint with `weights_only=True`."""

    def encode_all(self, sentences: Sequence[str]) -> list[list[int]]:
        """Encode several sentences."""
        return [self.encode(sentence) for sentence in sentences]

    def unknown_words(self, sentence: str) -> list[str]:
        """Return the words of a prepared sentence that contain an unknown token."""
        return [word for word in sentence.split() if UNK in self.encode(word)]

    @staticmethod
    def from_dict(data: dict[str, Any]) -> "Vocabulary":
        """Create a vocabulary from plain data.

        Raises:
            DataError: the data do not describe a vocabulary.
        """
        try:
            kind, language = data["kind"], str(data["language"])
            if kind == "word":
                return WordVocabulary(data["words"], language)
            return SubwordVocabulary(base64.b64decode(data["model"]), language, kind)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the data do not describe a vocabulary: {error!r}") from error


class WordVocabulary(Vocabulary):
    """A vocabulary of whole words and punctuation marks. All other tokens become UNK.

    Args:
        words: tokens of `lit_project.text.tokens.split_words`, numbered from id 4.
        language: language code that determines the rules for splitting words (elisions in French, clitics in English).
    """

    def __init__(self, words: Sequence[str], language: str) -> None:
        self.words = list(words)
        self.language = language
        self.ids = {word: index for index, word in enumerate(self.words, len(SPECIALS))}

    @classmethod
    def build(
        cls, sentences: Iterable[str], min_freq: int = 1, max_size: int | None = None, *, language: str
    ) -> "WordVocabulary":
        """Build a vocabulary of all frequent words, sorted by frequency and then alphabetically.

        Args:
            sentences: prepared training sentences.
            min_freq: minimum frequency of words. Rarer words are treated as unknown.
            max_size: maximum number of ids, including the four special tokens. The minimum is 5.
            language: language code of the sentences.

        Raises:
            DataError: no words remain.
        """
        counts = Counter(word for sentence in sentences for word in split_words(sentence, language))
        words = sorted((word for word, count in counts.items() if count >= min_freq), key=lambda w: (-counts[w], w))
        if not words:
            raise DataError(f"no word in the {language} training text occurs at least {min_freq} times: lower min_freq")
        return cls(words[: None if max_size is None else max_size - len(SPECIALS)], language)

    def __len__(self) -> int:
        return len(SPECIALS) + len(self.words)

    def encode(self, sentence: str) -> list[int]:
        return [self.ids.get(word, UNK) for word in split_words(sentence, self.language)]

    def decode(self, ids: Sequence[int]) -> str:
        return join_words(self._token(i) for i in ids if i not in (PAD, BOS, EOS))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._token(i).replace(JOINER, "") for i in ids]

    def unknown_words(self, sentence: str) -> list[str]:
        return [word.replace(JOINER, "") for word in split_words(sentence, self.language) if word not in self.ids]

    def as_dict(self) -> dict[str, Any]:
        return {"kind": "word", "language": self.language, "words": list(self.words)}

    def _token(self, index: int) -> str:
        return SPECIALS[index] if index < len(SPECIALS) else self.words[index - len(SPECIALS)]


class SubwordVocabulary(Vocabulary):
    """A subword vocabulary from sentencepiece (Kudo & Richardson, 2018), based on BPE or a unigram language model.

    Args:
        model: serialized sentencepiece model, which must use this module's special ids.
        language: language code of the training text, such as "en+fr" for a joint vocabulary.
        kind: algorithm of the model.

    Raises:
        DataError: the bytes are not a sentencepiece model.
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
        """Train a model on prepared sentences. The result is deterministic.

        Args:
            sentences: prepared training sentences.
            size: number of ids, including the four special tokens.
            kind: BPE (Sennrich et al., 2016) or a unigram language model (Kudo, 2018).
            language: language code of the sentences.

        Raises:
            DataError: `size` is too large or too small for the text. The message contains sentencepiece's limit.
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
                normalization_rule_name="identity",  # Any other rule would prevent lossless decoding.
                byte_fallback=False,
                max_sentence_length=1 << 20,  # in bytes; sentencepiece silently skips longer sentences
                num_threads=4,  # The results of the unigram model depend on the number of threads.
                minloglevel=2,
                pad_id=PAD, unk_id=UNK, bos_id=BOS, eos_id=EOS,
                pad_piece=SPECIALS[PAD], unk_piece=SPECIALS[UNK], bos_piece=SPECIALS[BOS], eos_piece=SPECIALS[EOS],
            )  # fmt: skip
        except (RuntimeError, OSError) as error:
            reason = str(error).rpartition("] ")[2]  # Strip the C++ source location from sentencepiece's message.
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
