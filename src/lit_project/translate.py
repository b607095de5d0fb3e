"""`lit-project translate`: sentences in, translations out. A checkpoint is all that it needs; no data are read.

    lit-project translate --run RUN "How are you?" "I am tired."       a sentence an argument
    lit-project translate --run RUN --input news.en --output news.fr   a sentence a line
    cat news.en | lit-project translate --run RUN > news.fr
    lit-project translate --run RUN                                    on a terminal: line by line
    lit-project translate --run RUN "How are you?" --n_best 3 --attention map.png

Translations go to standard output, one a line in the order of the input; notes go to standard error. With `--n_best`
above 1 a line is `score<TAB>translation`, best first, with an empty line between sentences.
"""

import argparse
import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from lit_project.class_paths import import_named
from lit_project.errors import UserError
from lit_project.models.seq2seq import Decoding
from lit_project.run import RunDir, write_text
from lit_project.tasks import Translation, Translator
from lit_project.text import UNK
from lit_project.translate_input import note, option_parser, sentences_of, unknown_words

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
                sys.stdout.reconfigure(encoding="utf-8")  # in files and pipes, whatever the locale
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
    from lit_project.viz import attention_map

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
