"""The command `lit-project translate`, which translates arguments, a file or standard input with a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lit_engine.cli.arguments import OptionParser, at_least, expanded_path
from lit_engine.errors import UserError, first_of
from lit_engine.run.directory import RunDir
from lit_project.text.files import lines_of, read_lines

if TYPE_CHECKING:  # torch is imported only to load the checkpoint, so `--help` and error messages appear immediately.
    from lit_project.models.seq2seq.search import Decoding
    from lit_project.tasks.translation.task import Translation, Translator


def option_parser() -> argparse.ArgumentParser:
    """Return the parser for the arguments after `translate`. It raises UsageError for invalid arguments."""
    parser = OptionParser("translate", "Translate sentences with a trained model. Reads standard input by default.")
    add = parser.add_argument
    add("text", nargs="*", metavar="TEXT", help="A sentence, in quotes.")
    add("--run", metavar="DIR", help="The run that contains the checkpoint.")
    add("--ckpt_path", metavar="best|last|average|PATH", help="Checkpoint; default: best. For PATH, --run is optional.")
    about = "A UTF-8 text file with one sentence per line, plain or compressed (.gz)."
    add("--input", type=expanded_path, metavar="FILE", help=about)
    add("--output", type=expanded_path, metavar="FILE", help="The output file; default: standard output.")
    add("--beam_size", type=int, metavar="N", help="Hypotheses per step (1 for greedy search); default: as in the run.")
    add("--n_best", type=int, metavar="N", default=1, help="Translations per sentence, with scores; default: 1.")
    add("--length_penalty", type=float, metavar="A", help="Rank by log P / length^A; default: as in the run.")
    add("--no_repeat_ngram", type=int, metavar="N", help="Forbid repeated N-grams (0: allow); default: as in the run.")
    add("--max_length_ratio", type=float, metavar="R", help="Maximum tokens per source token; default: as in the run.")
    add("--attention", type=expanded_path, metavar="PNG", help="Draw the attention map of one translated sentence.")
    add("--batch_size", type=at_least(1), metavar="N", default=64, help="Sentences per batch; default: 64.")
    return parser


def translate(args: Sequence[str]) -> int:
    """Run the command and return its exit status.

    Args:
        args: the command-line arguments after `translate`.

    Raises:
        UserError: an option, the input or the checkpoint is invalid. In this case, nothing has been written.
    """
    options = option_parser().parse_intermixed_args(args)
    on_terminal = not options.text and options.input is None and sys.stdin.isatty()
    # Check the input first, because loading the checkpoint takes longer.
    sentences = [] if on_terminal else sentences_of(options)
    if options.attention is not None and len(sentences) != 1:
        raise UserError(f"--attention requires exactly one sentence, got {len(sentences)}")
    task = load(_checkpoint(options))
    names = ("beam_size", "n_best", "length_penalty", "no_repeat_ngram", "max_length_ratio")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    try:
        decoding = replace(task.decoding, **given)
    except ValueError as error:
        raise UserError(str(error)) from error
    if on_terminal:
        note(f"translating from {task.source_language} to {task.target_language}; enter an empty line to quit")
        found = []
        with suppress(EOFError):
            while text := input().strip():
                found += translate_all(task, [text], decoding, 1)
                write(found if options.output else found[-1:], options.output, decoding.n_best > 1)
        return 0
    found = translate_all(task, sentences, decoding, options.batch_size)
    if options.attention is not None:
        draw_attention(task, sentences[0], found[0][0], options.attention)
    write(found, options.output, decoding.n_best > 1)
    return 0


def sentences_of(options: argparse.Namespace) -> list[str]:
    """Return the sentences to translate.

    Raises:
        UserError: there is nothing to translate, or the input is not UTF-8.
    """
    if options.text and options.input is not None:
        raise UserError("pass either TEXT or --input, not both")
    if options.text:
        sentences, where = options.text, "TEXT"
        if any(text != text.encode(errors="ignore").decode() for text in sentences):
            raise UserError("TEXT is not valid UTF-8")
    elif options.input is not None:
        sentences, where = read_lines(options.input), options.input
    else:
        sentences, where = lines_of(sys.stdin.buffer.read(), "standard input"), "standard input"
    if not any(text.strip() for text in sentences):
        raise UserError(f"{where} is empty: there is nothing to translate")
    return sentences


def _checkpoint(options: argparse.Namespace) -> Path:
    if options.run is not None:
        run = RunDir.open(options.run)
        from lit_engine.checkpoints.choose import choose_checkpoint
        from lit_engine.classes.names import import_named

        import_named(run.config_file)  # Like all commands with `--run`, this trusts the run's config.
        return choose_checkpoint(run, options.ckpt_path or "best")
    if options.ckpt_path in (None, "best", "last", "average"):
        raise UserError("translate needs a trained run: pass --run DIR or --ckpt_path FILE")
    return Path(options.ckpt_path)


def load(file: str | Path) -> Translator:
    """Load a translator from a checkpoint. No other file is needed. A GPU is used if available.

    Raises:
        UserError: the checkpoint is missing, damaged or from a different task.
    """
    import torch

    from lit_project.tasks.translation.task import Translator

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return Translator.load_from_checkpoint(file, map_location=device).eval()


def note(text: str) -> None:
    """Print a note to standard error."""
    print(f"note: {text}", file=sys.stderr)


def translate_all(
    task: Translator, sentences: Sequence[str], decoding: Decoding, batch_size: int, note: Callable[..., None] = note
) -> list[list[Translation]]:
    """Return the best translations of each sentence (none for blank sentences). `note` reports problematic input."""
    prepared = [task.preparation(text) for text in sentences]
    lengths = [len(ids) for ids in task.source_vocabulary.encode_all(prepared)]
    unknown = list(dict.fromkeys(word for text in prepared for word in task.source_vocabulary.unknown_words(text)))
    if unknown:
        note(f"not in the vocabulary: {first_of(unknown)}")
    if cut := sum(length > task.max_length for length in lengths):
        note(f"truncated {cut} of {len(sentences)} sentences to the checkpoint's maximum of {task.max_length} tokens")
    found: list[list[Translation]] = [[] for _ in sentences]
    # Sort by length to reduce padding, and skip blank sentences.
    order = sorted((place for place, length in enumerate(lengths) if length), key=lengths.__getitem__)
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for place, best in zip(batch, task.translate([sentences[i] for i in batch], decoding), strict=True):
            found[place] = best
    return found


def write(found: Sequence[Sequence[Translation]], output: Path | None, scores: bool) -> None:
    """Write each sentence's best translation. With `scores`, write all translations and a blank line between sentences.

    Raises:
        UserError: the file cannot be written.
    """
    if scores:
        text = "\n".join("".join(f"{best.score:.4f}\t{best.text}\n" for best in own) for own in found)
    else:
        text = "".join(f"{own[0].text if own else ''}\n" for own in found)
    if output is None:
        print(text, end="", flush=True)
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {output}: {error.strerror}") from error


def draw_attention(task: Translator, sentence: str, best: Translation, file: Path) -> None:
    """Write the attention map of a translation to a file.

    Raises:
        UserError: the model has no attention, or the file cannot be written.
    """
    found = task.attention(sentence, best.tokens)
    if found is None:
        raise UserError("--attention: the model of this run has no attention")
    from lit_project.tasks.translation.figures import attention_map  # Importing matplotlib takes a second.

    source, target, weights_TS = found
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        attention_map(weights_TS, source, target, best.text).savefig(file)
    except (OSError, ValueError) as error:  # matplotlib raises ValueError if it does not support the suffix.
        raise UserError(f"cannot write {file}: {error}") from error
