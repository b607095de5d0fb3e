"""Tests `lit-project translate`: input from any source, and one translation per line."""

import io
import shutil
import sys

from PIL import Image

from lit_project.models.seq2seq.search import Decoding
from lit_project.tasks.translation.command import load
from translation_run import HELLO


def test_arguments_file_and_standard_input_produce_the_same_output(translate, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # a shell does not expand ~ after =
    sentences = [HELLO, "My sister buys a red hat.", "I arrive.", HELLO]
    text = "".join(f"{sentence}\n" for sentence in sentences)
    (tmp_path / "in.txt").write_text(text)
    status, given, err = translate(*sentences)
    assert (status, err) == (0, "")
    assert len(given) == 4
    assert given[0] == given[3]
    assert translate("--input=~/in.txt")[1] == given
    assert translate(stdin=text.encode())[1] == given
    assert translate(stdin=b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()[:-2])[1] == given
    assert translate(*sentences, "--batch_size", 1)[1] == given
    assert [translate(sentence)[1] for sentence in sentences] == [[line] for line in given]
    status, lines, _ = translate(*sentences, "--output=~/deep/out.txt")
    assert (status, lines) == (0, [])
    assert (tmp_path / "deep" / "out.txt").read_text().splitlines() == given


def test_blank_lines_are_preserved(translate):
    (line,) = translate(HELLO)[1]
    assert translate(stdin=f"{HELLO}\n \n\n{HELLO}\n".encode())[1] == [line, "", "", line]
    assert translate("--n_best=1", stdin=f"\n{HELLO}\n".encode())[1] == ["", line]


def test_translations_match_the_task(translate, run):
    task = load(next((run / "checkpoints").glob("best*.ckpt")))
    assert translate(HELLO)[1] == [task.translate([HELLO])[0][0].text]
    options = {"beam_size": 4, "n_best": 3, "length_penalty": 0.5, "no_repeat_ngram": 1, "max_length_ratio": 0.5}
    (best,) = task.translate([HELLO], Decoding(**options))
    flags = [f"--{name}={value}" for name, value in options.items()]
    expected = [f"{one.score:.4f}\t{one.text}" for one in best]
    assert translate(HELLO, *flags)[1] == expected
    assert translate(HELLO, HELLO, *flags)[1] == [*expected, "", *expected]  # an empty line between sentences


def test_translates_with_only_a_checkpoint(translate, run, tmp_path):
    given = translate(HELLO, "--ckpt_path", "last")
    assert given[0] == 0
    assert translate(HELLO, "--ckpt_path", "last.ckpt") == given
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "mine.ckpt")
    assert translate(HELLO, "--ckpt_path", tmp_path / "mine.ckpt", of=None) == given
    # The run's config is not read, because its data may be gone.
    (tmp_path / "checkpoints").mkdir()
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "checkpoints")
    (tmp_path / "config.yaml").write_text("data: gone")
    assert translate(HELLO, of=tmp_path)[:2] == given[:2]  # a note reports that the best checkpoint is gone


def test_unknown_words_and_truncated_sentences_are_reported(translate):
    status, lines, err = translate("The zorglub is small.", "My foo!", "The bird is small " * 40)
    assert (status, len(lines)) == (0, 3)
    assert err.splitlines() == [
        "note: not in the vocabulary: zorglub, foo, !",
        "note: truncated 1 of 3 sentences to the checkpoint's maximum of 100 tokens",
    ]
    assert translate("a1 b2 c3 d4 e5 f6 g7 is.")[2].strip().endswith("a1, b2, c3, d4, e5 and 2 more")


def test_attention_is_drawn(translate, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    status, lines, err = translate(HELLO, "--attention=~/maps/a.png")
    assert (status, len(lines), err) == (0, 1, "")
    assert min(Image.open(tmp_path / "maps" / "a.png").size) > 200


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_terminal_input_is_translated_line_by_line(translate, monkeypatch, tmp_path):
    given = translate(HELLO)[1] + translate("I zorglub.")[1]
    for end in (b"", b"\n" + HELLO.encode() + b"\n"):  # Ctrl-D, or an empty line
        monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(f"{HELLO}\nI zorglub.\n".encode() + end)))
        status, lines, err = translate()
        assert (status, lines) == (0, given)
        assert "zorglub" in err
        assert "empty line" in err
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(f"{HELLO}\nI zorglub.\n".encode())))
    assert translate("--output", str(tmp_path / "all.txt"))[0] == 0
    assert (tmp_path / "all.txt").read_text().splitlines() == given
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"")))
    assert "requires exactly one sentence" in translate("--attention", "x.png")[2]
