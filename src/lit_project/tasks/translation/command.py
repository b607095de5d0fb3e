"""What `lit-project translate` is given: its options, and sentences as arguments, in a file or on standard input."""

import argparse
import io
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lit_project.engine.classes import import_named
from lit_project.engine.errors import UserError
from lit_project.engine.messages import OptionParser
from lit_project.engine.run import RunDir, write_text
from lit_project.models.seq2seq.search import Decoding
from lit_project.tasks.translation.inference import Translation
from lit_project.tasks.translation.task import Translator
from lit_project.text.files import read_lines
from lit_project.text.tokens import JOINER, split_words
from lit_project.text.vocabulary import UNK, Vocabulary, WordVocabulary


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
        UserError: no sentence is given, one is empty or not UTF-8, or `--attention` is to draw several.
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


NAMED = 5  # unknown words in a note


def translate(args: Sequence[str]) -> int:
    """Runs the command and returns its exit status.

    Args:
        args: the command line after `translate`.

    Raises:
        UserError: the options, the input or the checkpoint cannot be used; nothing has been written then.
    """
    options = option_parser().parse_intermixed_args(list(args))
    if options.text and options.input is not None:
        raise UserError("give TEXT or --input, not both")
    if options.batch_size < 1:
        raise UserError(f"batch_size must be at least 1, got {options.batch_size}")
    if options.output is not None and Path(options.output).is_dir():
        raise UserError(f"cannot write {options.output}: it is a folder")
    on_terminal = not options.text and options.input is None and sys.stdin.isatty()
    if on_terminal and (options.output is not None or options.attention is not None):
        raise UserError("--output and --attention need TEXT, --input or text piped to standard input")
    # before the checkpoint is loaded: mistakes are cheap, and soon known
    sentences, where = ([], "line ") if on_terminal else sentences_of(options)
    if options.run is not None:
        import_named(RunDir.open(options.run).config_file)  # as trusted as by the other commands with --run
    task = load(_checkpoint(options.run, options.ckpt_path))
    decoding = _decoding(task, options)
    if on_terminal:
        return _converse(task, decoding)
    found = _translated(task, sentences, where, decoding, options.batch_size)
    if options.attention is not None:
        _draw(task, sentences[0], found[0][0], options.attention)
    _write(_lines(found, decoding.n_best > 1), options.output)
    return 0


def _checkpoint(run: str | None, which: str | None) -> Path:
    if run is not None:
        return RunDir.open(run).checkpoint(which or "best")
    if which is None or which in ("best", "last", "average"):
        raise UserError("translate needs a run: --run DIR (or --ckpt_path FILE)")
    return Path(which)


def load(file: str | Path) -> Translator:
    """A translator as it was trained, on the GPU if there is one; nothing but the checkpoint is read.

    Raises:
        UserError: no such checkpoint, a damaged one, or one of another task.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Translator.load_from_checkpoint(file, map_location=device).eval()


def _decoding(task: Translator, options: argparse.Namespace) -> Decoding:
    """The run's own search with what the command line says otherwise; one translation if it says nothing."""
    names = ("beam_size", "n_best", "length_penalty", "no_repeat_ngram", "max_length_ratio")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    try:
        return replace(task.decoding, **given)
    except ValueError as error:
        raise UserError(str(error)) from error


def _translated(
    task: Translator, sentences: Sequence[str], where: str, decoding: Decoding, batch_size: int
) -> list[list[Translation]]:
    """The best translations of each sentence; says what the checkpoint does not know or take."""
    prepared = [task.preparation(text) for text in sentences]
    lengths: list[int] = []
    unknown: dict[str, None] = {}  # in the order of the text
    cut = 0
    for number, (text, ids) in enumerate(zip(prepared, task.source_vocabulary.encode_all(prepared), strict=True), 1):
        if not ids:
            raise UserError(f"{where}{number} is empty: there is nothing to translate")
        lengths.append(len(ids))
        cut += len(ids) > task.max_length
        if UNK in ids:
            unknown |= dict.fromkeys(unknown_words(task.source_vocabulary, text, ids))
    if unknown:
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        note(f"never seen in training: {', '.join(list(unknown)[:NAMED])}{more}")
    if cut:
        what = f"{cut} of {len(sentences)} sentences" if len(sentences) > 1 else "the sentence"
        note(f"longer than the {task.max_length} tokens that the checkpoint takes, and cut there: {what}")
    found: list[list[Translation]] = [[] for _ in sentences]
    order = sorted(range(len(sentences)), key=lengths.__getitem__)  # batches of like length need little padding
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for place, best in zip(batch, task.translate([sentences[i] for i in batch], decoding), strict=True):
            found[place] = best
    return found


def _lines(found: Iterable[list[Translation]], scores: bool) -> Iterator[str]:
    for number, translations in enumerate(found):
        if scores and number:
            yield ""
        yield from (f"{best.score:.4f}\t{best.text}" if scores else best.text for best in translations)


def _write(lines: Iterable[str], output: str | None) -> None:
    text = "".join(f"{line}\n" for line in lines)
    try:
        if output is not None and Path(output).exists() and not Path(output).is_file():  # /dev/null, a named pipe
            Path(output).write_text(text, encoding="utf-8", newline="\n")
        elif output is not None:
            write_text(Path(output), text)
        else:
            if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
                sys.stdout.reconfigure(encoding="utf-8")  # in files and pipes, in any locale
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise  # `| head` has enough: an end for any command, see commands.py
    except OSError as error:
        raise UserError(f"cannot write {output or 'standard output'}: {error.strerror}") from error


def _draw(task: Translator, sentence: str, best: Translation, file: str) -> None:
    found = task.attention(sentence, best.tokens)
    if found is None:
        raise UserError("--attention: the net of this run has no attention")
    from lit_project.tasks.translation.figures import attention_map

    source, target, weights_TS = found
    figure = attention_map(weights_TS, source, target, best.text)
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)
    except (OSError, ValueError) as error:  # ValueError: a suffix that matplotlib does not know
        raise UserError(f"cannot write {file}: {getattr(error, 'strerror', None) or error}") from error


def _converse(task: Translator, decoding: Decoding) -> int:
    """Translates line by line what is typed."""
    note(f"translating from {task.source_language} to {task.language}; an empty line or Ctrl-D ends")
    while True:
        try:
            text = input("> " if sys.stdout.isatty() else "")  # a prompt is no translation
        except (EOFError, UnicodeDecodeError) as ended:
            if isinstance(ended, UnicodeDecodeError):
                raise UserError("standard input: not valid UTF-8") from ended
            return 0
        if not text.strip():
            return 0
        try:
            _write(_lines(_translated(task, [text], "line ", decoding, 1), decoding.n_best > 1), None)
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
