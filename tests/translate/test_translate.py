"""`lit-project translate`: sentences from anywhere, translations one a line."""

import io
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from lit_project.cli import main
from lit_project.translate import load
from translation_run import HELLO


def test_arguments_file_and_standard_input_give_the_same(translate, tmp_path):
    sentences = [HELLO, "My sister buys a red hat.", "I arrive.", HELLO]
    text = "".join(f"{sentence}\n" for sentence in sentences)
    (tmp_path / "in.txt").write_text(text)
    status, given, err = translate(*sentences)
    assert (status, err) == (0, "")
    assert len(given) == 4
    assert given[0] == given[3]
    assert translate("--input", tmp_path / "in.txt")[1] == given
    assert translate(stdin=text.encode())[1] == given
    assert translate(stdin=b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()[:-2])[1] == given
    assert translate(*sentences, "--batch_size", 1)[1] == given
    assert [translate(sentence)[1] for sentence in sentences] == [[line] for line in given]
    status, lines, _ = translate(*sentences, "--output", tmp_path / "deep" / "out.txt")
    assert (status, lines) == (0, [])
    assert (tmp_path / "deep" / "out.txt").read_text().splitlines() == given


def test_output_goes_through_links_and_into_pipes(translate, tmp_path):
    (status, given, _) = translate(HELLO)
    assert status == 0
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to("real.txt")
    assert translate(HELLO, "--output", tmp_path / "link.txt")[0] == 0
    assert (tmp_path / "link.txt").is_symlink()
    assert (tmp_path / "real.txt").read_text().splitlines() == given
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe").read_text)
        assert translate(HELLO, "--output", tmp_path / "pipe")[0] == 0
        assert read.result(timeout=10).splitlines() == given
    assert (tmp_path / "pipe").is_fifo()


def test_options_may_stand_between_sentences(translate):
    given = translate(HELLO, "I arrive.", "--beam_size", 2)
    assert translate("--beam_size=2", HELLO, "I arrive.") == given
    assert translate(HELLO, "--beam_size", 2, "I arrive.") == given


def test_translations_are_those_of_the_task(translate, run):
    from lit_project.models.seq2seq import Decoding

    task = load(next((run / "checkpoints").glob("best*.ckpt")))
    assert translate(HELLO)[1] == [task.translate([HELLO])[0][0].text]
    options = {"beam_size": 4, "n_best": 3, "length_penalty": 0.5, "no_repeat_ngram": 1, "max_length_ratio": 0.5}
    (best,) = task.translate([HELLO], Decoding(**options))
    flags = [f"--{name}={value}" for name, value in options.items()]
    assert translate(HELLO, *flags)[1] == [f"{one.score:.4f}\t{one.text}" for one in best]


def test_n_best_has_scores_and_an_empty_line_between_sentences(translate):
    status, lines, _ = translate(HELLO, "I arrive.", "--n_best", 2)
    assert status == 0
    assert len(lines) == 5
    assert lines[2] == ""
    scores = [float(line.split("\t")[0]) for line in lines if line]
    assert scores[0] >= scores[1]
    assert scores[2] >= scores[3]
    assert [lines[0].split("\t")[1], lines[3].split("\t")[1]] == translate(HELLO, "I arrive.")[1]


def test_a_checkpoint_alone_translates(translate, run, tmp_path):
    given = translate(HELLO, "--ckpt_path", "last")
    assert given[0] == 0
    assert translate(HELLO, "--ckpt_path", "last.ckpt") == given
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "mine.ckpt")
    assert translate(HELLO, "--ckpt_path", tmp_path / "mine.ckpt", of=None) == given
    # the run's config, whose data may be gone, is not looked into
    (tmp_path / "checkpoints").mkdir()
    shutil.copy(run / "checkpoints" / "last.ckpt", tmp_path / "checkpoints")
    (tmp_path / "config.yaml").write_text("data: gone")
    assert translate(HELLO, of=tmp_path)[:2] == given[:2]  # that the best checkpoint is gone is said


def test_words_never_seen_are_named(translate):
    status, lines, err = translate("The zorglub is small.", "My foo!")
    assert status == 0
    assert len(lines) == 2
    assert err.strip() == "note: never seen in training: zorglub, foo, !"
    assert translate("a1 b2 c3 d4 e5 f6 g7 is.")[2].strip().endswith("a1, b2, c3, d4, e5 and 2 more")


def test_words_with_letters_never_seen_are_named_for_subwords():
    from lit_project.text import SubwordVocabulary
    from lit_project.translate_input import unknown_words

    vocabulary = SubwordVocabulary.train(["the dog is small", "a cat is big"] * 20, 24, "bpe", language="en")
    sentence = "the dog is жук"
    assert unknown_words(vocabulary, sentence, vocabulary.encode(sentence)) == ["жук"]


def test_long_sentences_are_cut_and_counted(translate):
    status, lines, err = translate(HELLO, "The bird is small " * 40)
    assert (status, len(lines)) == (0, 2)
    assert err.strip() == "note: longer than the 100 tokens that the checkpoint takes, and cut there: 1 of 2 sentences"


def test_words_without_quotes_are_each_a_sentence_and_that_is_said(translate):
    status, lines, err = translate("I", "arrive")
    assert (status, len(lines)) == (0, 2)
    assert "quote a sentence" in err


def test_attention_is_drawn(translate, tmp_path):
    status, lines, err = translate(HELLO, "--attention", tmp_path / "maps" / "a.png")
    assert (status, len(lines), err) == (0, 1, "")
    assert min(Image.open(tmp_path / "maps" / "a.png").size) > 200


class Terminal(io.TextIOWrapper):
    def isatty(self):
        return True


def test_on_a_terminal_it_goes_line_by_line(translate, monkeypatch, capfd, run):
    given = translate(HELLO)[1] + translate("I zorglub.")[1]
    for end in (b"", b"\n" + HELLO.encode() + b"\n"):  # Ctrl-D, or an empty line
        monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(f"{HELLO}\nI zorglub.\n".encode() + end)))
        status, lines, err = translate()
        assert (status, lines) == (0, given)
        assert "zorglub" in err
        assert "empty line" in err
    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"")))
    status, lines, err = translate("--output", "x")
    assert (status, lines) == (2, [])
    assert "--output" in err


def test_help_and_nearest_names(translate, capfd):
    with pytest.raises(SystemExit) as ended:
        main(["translate", "--help"])
    assert ended.value.code == 0
    assert "--beam_size" in capfd.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "lit-project translate" in " ".join(capfd.readouterr().out.split())
    assert main(["translat", "--run", "x"]) == 2
    assert "did you mean translate" in capfd.readouterr().err


def test_translate_is_not_imported_by_other_commands():
    text = (Path(__file__).parents[2] / "src" / "lit_project" / "cli.py").read_text()
    assert "\nfrom lit_project.translate" not in text
