"""Ids of special tokens, and functions that split sentences into words and rejoin them without loss.

A joiner marks where a token was attached to its neighbour, as in OpenNMT's tokenizer (Klein et al., 2017). For example,
"Hi!" becomes "Hi", "￭!" and "j'ai" becomes "j'￭", "ai". Joining therefore needs no language-specific rules.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

JOINER = "￭"
PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")  # in the order of their ids


@cache
def _token(marks: str) -> re.Pattern[str]:
    r"""Return a pattern for numbers (1,000), words with inner apostrophes or hyphens, and repeated symbols ("--").

    Combining marks, such as Hindi vowel signs, are parts of words, although Python's `\w` does not include them.
    """
    letter = rf"\w{re.escape(marks)}"
    return re.compile(rf"\d+(?:[.,:]\d+)+|[{letter}]+(?:[-'’][{letter}]+)*|([^{letter}\s])\1*")


_FRENCH_ELISION = re.compile(r"(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu|quoiqu)['’](?=\w)", re.IGNORECASE)
# The pronouns in as-tu, y a-t-il and donne-le-moi are separate words.
_FRENCH_ENCLITICS = re.compile(
    r"(?:(?:-t)?-(?:je|tu|ils?|elles?|on|nous|vous|ce|moi|toi|les?|la|lui|leur|y|en))+$", re.IGNORECASE
)
_FRENCH_ENCLITIC = re.compile(r"(?:-t)?-\w+")
_ENGLISH_CLITIC = re.compile(r"['’](?:s|m|re|ve|ll|d)$", re.IGNORECASE)


def _french(word: str) -> list[str]:
    parts = []
    while match := _FRENCH_ELISION.match(word):
        parts.append(match.group())
        word = word[match.end() :]
    match = _FRENCH_ENCLITICS.search(word)
    if match is None or match.start() == 0:
        return [*parts, word]
    return [*parts, word[: match.start()], *_FRENCH_ENCLITIC.findall(match.group())]


def _english(word: str) -> list[str]:
    match = _ENGLISH_CLITIC.search(word)
    return [word] if match is None or match.start() == 0 else [word[: match.start()], match.group()]


_RULES = {"fr": _french, "en": _english}


def _parts(chunk: str, language: str) -> list[str]:
    """Split text without spaces into tokens. Concatenating the tokens restores the text."""
    rule = _RULES.get(language)
    parts: list[str] = []
    marks = "" if chunk.isascii() else "".join(sorted({c for c in chunk if unicodedata.category(c)[0] == "M"}))
    for match in _token(marks).finditer(chunk):
        word = match.group()
        if rule is None or word.isalnum() or not word[0].isalnum():
            parts.append(word)
        else:
            parts.extend(rule(word))
    return parts


def split_words(sentence: str, language: str = "") -> list[str]:
    """Split a sentence into words and symbols, with a joiner where two tokens were not separated by a space.

    >>> split_words("J'ai dit : «Hi!»", "fr")
    ["J'￭", 'ai', 'dit', ':', '«￭', 'Hi', '￭!', '￭»']
    """
    tokens: list[str] = []
    for chunk in sentence.replace(JOINER, "▪").split():
        if chunk.isalnum():  # Most words take this fast path.
            tokens.append(chunk)
            continue
        before = ""
        for part in _parts(chunk, language):
            elided = before[:1].isalnum() and before[-1] in "'’"
            opening = part[0].isalnum() and not before[-1:].isalnum()
            if not before:
                tokens.append(part)
            elif elided or opening:  # A joiner at the end of a token attaches it to the next token.
                tokens[-1] += JOINER
                tokens.append(part)
            else:
                tokens.append(JOINER + part)
            before = part
    return tokens


def join_words(tokens: Iterable[str]) -> str:
    """Join the tokens of `split_words` into the original sentence."""
    text = " ".join(tokens)
    return text.replace(JOINER + " ", "").replace(" " + JOINER, "").replace(JOINER, "")
