"""Builds a parallel corpus's vocabularies from its training pairs, and caches trained subword models."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from lit_engine.errors import DataError
from lit_engine.run.directory import write_bytes
from lit_project.data.parallel_text.leak_free_split import Pairs
from lit_project.text.vocabulary import SubwordVocabulary, Vocabulary, WordVocabulary

Kind = Literal["word", "bpe", "unigram"]

SUBWORDS = 8000  # default size of a subword vocabulary, typical for 30,000 to 200,000 pairs


@dataclass(frozen=True)
class VocabularyOptions:
    """The vocabulary options in a config.

    Args:
        kind: `word` for whole words, or the subword algorithm.
        size: number of ids in each vocabulary. Default: all words, or `SUBWORDS`.
        joint: use one subword vocabulary for both languages.
        min_freq: minimum frequency of words. Rarer words are treated as unknown.

    Raises:
        DataError: options conflict or are out of range.
    """

    kind: Kind = "word"
    size: int | None = None
    joint: bool = False
    min_freq: int = 1

    def __post_init__(self) -> None:
        if self.size is not None and self.size < 5:
            raise DataError(f"vocabulary_size must be at least 5 (there are four special ids), got {self.size}")
        if self.min_freq < 1:
            raise DataError(f"min_freq must be at least 1, got {self.min_freq}")
        if self.kind == "word" and self.joint:
            raise DataError("joint: true requires subwords: set vocabulary to bpe or unigram")
        if self.kind != "word" and self.min_freq != 1:
            raise DataError(f"min_freq {self.min_freq} requires vocabulary: word; with subwords, set vocabulary_size")


def build(
    pairs: Pairs, languages: tuple[str, str], options: VocabularyOptions, folder: Path
) -> tuple[Vocabulary, Vocabulary]:
    """Build the source and target vocabularies from prepared training pairs. With `joint`, both are the same object.

    Trained subword models are cached in `folder` for later runs.

    Raises:
        DataError: the vocabulary cannot be built from this text.
    """
    sides: list[list[str]] = [[source for source, _ in pairs], [target for _, target in pairs]]
    if options.kind == "word":
        source, target = (
            WordVocabulary.build(side, options.min_freq, options.size, language=language)
            for side, language in zip(sides, languages, strict=True)
        )
        return source, target
    if options.joint:
        joint = _subwords(sides[0] + sides[1], "+".join(languages), options, folder)
        return joint, joint
    return _subwords(sides[0], languages[0], options, folder), _subwords(sides[1], languages[1], options, folder)


def from_plain(data: dict[str, Any], languages: tuple[str, str]) -> tuple[Vocabulary, Vocabulary]:
    """Return the source and target vocabularies of a checkpoint.

    Raises:
        DataError: the languages differ.
    """
    found = Vocabulary.from_dict(data["source"]), Vocabulary.from_dict(data["target"])
    for side, vocabulary, language in zip(("source", "target"), found, languages, strict=True):
        if language not in vocabulary.language.split("+"):
            raise DataError(
                f"the {side} vocabulary of the checkpoint is {vocabulary.language}, but the {side} of the data is "
                f"{language}"
            )
    return found


def _subwords(sentences: Sequence[str], language: str, options: VocabularyOptions, folder: Path) -> SubwordVocabulary:
    assert options.kind != "word"
    size = options.size or SUBWORDS
    digest = hashlib.blake2b(repr((options.kind, size, version("sentencepiece"))).encode(), digest_size=16)
    for sentence in sentences:
        digest.update(sentence.encode() + b"\n")
    path = folder / f"{digest.hexdigest()}.model"
    with suppress(OSError, DataError):  # If the file is missing or damaged, a new model is trained.
        return SubwordVocabulary(path.read_bytes(), language, options.kind)
    vocabulary = SubwordVocabulary.train(sentences, size, options.kind, language=language)
    with suppress(OSError):  # If the file cannot be written, each run trains its own model.
        write_bytes(path, vocabulary.model)
    return vocabulary
