"""What is done to a sentence before it is split into tokens, and how that is undone after decoding."""

import re
import unicodedata
from dataclasses import dataclass

# A run of sentence punctuation that ends a word; "3.5", "a.m" and "...and" are left as they are.
_MARKS = re.compile(r"\s*([.,!?;:…]++)(?!\w)")
_QUOTES = re.compile(r"([\"“”„«»()\[\]{}])")
_CLOSING = re.compile(r"\s+([.,!?;:…”»)\]}])")
_OPENING = re.compile(r"([“„«(\[{])\s+")
_STRAIGHT_QUOTES = re.compile(r'"\s*([^"]*?)\s*"')


@dataclass(frozen=True)
class Preparation:
    """Brings sentences into the form that the vocabularies see.

    Always: Unicode composition (NFC) and single spaces, so that French non-breaking spaces equal ordinary ones.

    Args:
        lowercase: lower-case everything.
        strip_accents: é → e (ligatures such as œ stay).
        space_punctuation: a space on either side of punctuation marks, quotes and brackets ("Hi!" → "Hi !"); no
            symbol is dropped. Apostrophes and hyphens stay in their words.
    """

    lowercase: bool = False
    strip_accents: bool = False
    space_punctuation: bool = False

    def __call__(self, sentence: str) -> str:
        """The prepared sentence; preparing it again changes nothing."""
        if self.lowercase:
            sentence = sentence.lower()
        if self.strip_accents and not sentence.isascii():
            sentence = "".join(c for c in unicodedata.normalize("NFD", sentence) if unicodedata.category(c) != "Mn")
        sentence = unicodedata.normalize("NFC", sentence)
        if self.space_punctuation:
            sentence = _MARKS.sub(r" \1 ", _QUOTES.sub(r" \1 ", sentence))
        return " ".join(sentence.split())

    def restore(self, sentence: str) -> str:
        """Undoes `space_punctuation` as far as that can be known ("Hi !" → "Hi!"); otherwise the identity.

        A space that the author wrote before a mark (as in French) is lost, in references and hypotheses alike.
        """
        if not self.space_punctuation:
            return sentence
        sentence = _OPENING.sub(r"\1", _CLOSING.sub(r"\1", sentence))
        return _CLOSING.sub(r"\1", _STRAIGHT_QUOTES.sub(r'"\1"', sentence))
