"""Normalizes sentences before tokenization, and reverses the normalization after decoding."""

import re
import unicodedata
from dataclasses import dataclass

# Sentence punctuation at the end of a word. The pattern does not match "3.5", "a.m" and "...and".
_MARKS = re.compile(r"\s*([.,!?;:…]++)(?!\w)")
_QUOTES = re.compile(r"([\"“”„«»()\[\]{}])")
_CLOSING = re.compile(r"\s+((?:[.,!?;:…]++)(?!\w)|[”»)\]}])")
_OPENING = re.compile(r"([“„«(\[{])\s+")
_STRAIGHT_QUOTES = re.compile(r'"\s*([^"]*?)\s*"')


@dataclass(frozen=True)
class Preparation:
    """Normalization of sentences for the vocabularies.

    Sentences are always normalized to NFC. All white space, including French non-breaking spaces, becomes one space.

    Args:
        lowercase: convert to lower case.
        strip_accents: remove accents (é → e), but keep ligatures such as œ.
        space_punctuation: add spaces around punctuation marks, quotes and brackets ("Hi!" → "Hi !"). No symbol is
            dropped, and apostrophes and hyphens stay within words.
    """

    lowercase: bool = False
    strip_accents: bool = False
    space_punctuation: bool = False

    def __call__(self, sentence: str) -> str:
        """Return the prepared sentence. The operation is idempotent."""
        if self.lowercase:
            sentence = sentence.lower()
        if self.strip_accents and not sentence.isascii():
            sentence = "".join(c for c in unicodedata.normalize("NFD", sentence) if unicodedata.category(c) != "Mn")
        sentence = unicodedata.normalize("NFC", sentence)
        if self.space_punctuation:
            sentence = _MARKS.sub(r" \1 ", _QUOTES.sub(r" \1 ", sentence))
        return " ".join(sentence.split())

    def restore(self, sentence: str) -> str:
        """Reverse `space_punctuation` as far as possible ("Hi !" → "Hi!"). If this option is off, do nothing.

        Spaces before punctuation marks, as in French, are lost in both references and hypotheses.
        """
        if not self.space_punctuation:
            return sentence
        sentence = _OPENING.sub(r"\1", _CLOSING.sub(r"\1", sentence))
        return _CLOSING.sub(r"\1", _STRAIGHT_QUOTES.sub(r'"\1"', sentence))
