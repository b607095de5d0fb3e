"""Preparation of sentences before tokenisation, and its reversal after decoding."""

import re
import unicodedata
from dataclasses import dataclass

# sentence punctuation at the end of a word; "3.5", "a.m" and "...and" do not match
_MARKS = re.compile(r"\s*([.,!?;:…]++)(?!\w)")
_QUOTES = re.compile(r"([\"“”„«»()\[\]{}])")
_CLOSING = re.compile(r"\s+([.,!?;:…”»)\]}])")
_OPENING = re.compile(r"([“„«(\[{])\s+")
_STRAIGHT_QUOTES = re.compile(r'"\s*([^"]*?)\s*"')


@dataclass(frozen=True)
class Preparation:
    """Normalisation of sentences for the vocabularies.

    Unicode composition (NFC) and single spaces always apply, so French non-breaking spaces equal ordinary spaces.

    Args:
        lowercase: convert to lower case.
        strip_accents: é → e, but ligatures such as œ stay.
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
        """Reverse `space_punctuation` as far as possible ("Hi !" → "Hi!"). Without this option, return the input.

        Original spaces before punctuation marks, as in French, are lost in both references and hypotheses.
        """
        if not self.space_punctuation:
            return sentence
        sentence = _OPENING.sub(r"\1", _CLOSING.sub(r"\1", sentence))
        return _CLOSING.sub(r"\1", _STRAIGHT_QUOTES.sub(r'"\1"', sentence))
