"""What `lit-project translate` is given: its options, and sentences as arguments, in a file or on standard input."""

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lit_project.data.translation.pairs import read_lines
from lit_project.errors import UserError
from lit_project.explain import OptionParser
from lit_project.text import UNK, Vocabulary, WordVocabulary
from lit_project.text.tokens import JOINER, split_words


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from error


def _number(text: str) -> float:
    try:
        if math.isfinite(value := float(text)):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")


def option_parser() -> argparse.ArgumentParser:
    """The parser of the command line after `translate`; its errors are `UsageError`s."""
    parser = OptionParser(
        prog="lit-project translate",
        description="Translates with a trained run. Without TEXT and --input it reads standard input.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("text", nargs="*", metavar="TEXT", help="A sentence; quote it.")
    add("--run", metavar="DIR", help="The run whose checkpoint translates.")
    add("--ckpt_path", metavar="best|last|average|PATH", help="Which checkpoint; default: best. A PATH needs no --run.")
    add("--input", metavar="FILE", help="A text file (UTF-8, also .gz) with one sentence a line.")
    add("--output", metavar="FILE", help="Where to write; default: standard output.")
    add("--beam_size", type=_whole, metavar="N", help="Hypotheses kept at each step; 1 is greedy; default: the run's.")
    add("--n_best", type=_whole, metavar="N", default=1, help="Translations of each sentence, with scores; default: 1.")
    add("--length_penalty", type=_number, metavar="A", help="Rank by log P / length^A; default: the run's.")
    add("--no_repeat_ngram", type=_whole, metavar="N", help="No N tokens occur twice; default: the run's; 0: may.")
    add("--max_length_ratio", type=_number, metavar="R", help="Most tokens for each of the source; default: the run's.")
    add("--attention", metavar="PNG", help="Draw what the net looks at while it translates one sentence.")
    add("--batch_size", type=_whole, metavar="N", default=64, help="Sentences at a time; default: 64.")
    return parser


def sentences_of(options: argparse.Namespace) -> tuple[list[str], str]:
    """The sentences that the command line names, and what stands before the number of one that is wrong.

    Raises:
        UserError: there is none, one is empty or not UTF-8, or `--attention` is to draw several.
    """
    if options.text:
        sentences, where = options.text, "TEXT "
        if len(sentences) > 1 and not any(" " in text for text in sentences):
            note(f"each of the {len(sentences)} words is translated by itself: quote a sentence")
    elif options.input is not None:
        sentences, where = read_lines(Path(options.input)), f"{options.input}, line "
    else:
        sentences, where = list(_standard_input()), "standard input, line "
    for number, text in enumerate(sentences, 1):
        if not text.strip():
            raise UserError(f"{where}{number} is empty: there is nothing to translate")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UserError(f"{where}{number}: not valid UTF-8")  # how Python keeps such bytes of an argument
    if not sentences:
        raise UserError(f"{options.input or 'standard input'} is empty: there is nothing to translate")
    if options.attention is not None and len(sentences) > 1:
        raise UserError(f"--attention draws one sentence, got {len(sentences)}")
    return sentences, where


def _standard_input() -> Iterator[str]:
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            place = f"{error.reason}, byte {error.start + 1}"
            raise UserError(f"standard input, line {number}: not valid UTF-8 ({place})") from error


def unknown_words(vocabulary: Vocabulary, sentence: str, ids: Sequence[int]) -> list[str]:
    """The words of a prepared sentence that the vocabulary has not, or that have letters which it has not."""
    if isinstance(vocabulary, WordVocabulary):
        words = zip(split_words(sentence, vocabulary.language), ids, strict=True)
        return [word.replace(JOINER, "") for word, token in words if token == UNK]
    return [word for word in sentence.split() if UNK in vocabulary.encode(word)]


def note(text: str) -> None:
    """Says something beside the translations."""
    print(f"note: {text}", file=sys.stderr)
