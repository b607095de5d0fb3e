"""`lit-project translate`: sentences from anywhere, translations one a line, and mistakes in one line each."""

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
from translation_run import train

HELLO = "The bird is small."


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def translate(run, capfd, monkeypatch):
    """Runs the command; returns status, lines of standard output, text of standard error."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))

    def call(*args, stdin=None, of=run):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfd.readouterr()
        status = main(["translate", *([] if of is None else ["--run", str(of)]), *map(str, args)])
        out, err = capfd.readouterr()
        return status, out.splitlines(), err

    return call


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
    assert translate(HELLO, of=tmp_path) == given


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


BAD = {
    "--beam_size=0": ["beam_size", "0"],
    "--n_best=0": ["n_best", "0"],
    "--n_best=9": ["n_best", "beam_size 3", "9"],
    "--beam_size=x": ["--beam_size", "whole number", "'x'"],
    "--length_penalty=nan": ["--length_penalty", "number", "'nan'"],
    "--max_length_ratio=-1": ["max_length_ratio"],
    "--batch_size=0": ["batch_size", "0"],
    "--beamsize=3": ["no such option: --beamsize", "did you mean --beam_size"],
    "--beam=3": ["no such option: --beam", "did you mean --beam_size"],
    "--n_best": ["--n_best", "expected one argument"],
    "--ckpt_path nowhere.ckpt": ["nowhere.ckpt"],
    "--output .": ["cannot write ."],
    "--attention map.xyz": ["map.xyz", "xyz"],
    "--attention a.png extra": ["--attention", "one sentence", "2"],
    "--input x.txt": ["TEXT or --input"],
}


@pytest.mark.parametrize("options", BAD)
def test_mistake(translate, options, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, lines, err = translate(HELLO, *options.split())
    assert (status, lines) == (2, [])
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1, err
    for word in BAD[options]:
        assert word in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", ["standard input is empty"]),
        (b"Hi.\n\nHi.\n", ["standard input, line 2 is empty"]),
        (b"Hi.\n  \t\n", ["line 2 is empty"]),
        (b"Hi.\nca\xe9\n", ["standard input, line 2", "UTF-8", "byte 3"]),
    ],
)
def test_bad_input(translate, text, words, tmp_path):
    (tmp_path / "in.txt").write_bytes(text)
    for where, given in (("standard input", {"stdin": text}), (str(tmp_path / "in.txt"), {})):
        status, lines, err = translate(*([] if given else ["--input", where]), **given)
        assert (status, lines, len(err.splitlines())) == (2, [], 1)
        for word in words:
            assert word.replace("standard input", where) in err


def test_more_bad_input(translate, tmp_path):
    assert "TEXT 2 is empty" in translate(HELLO, " ")[2]
    assert "TEXT 1: not valid UTF-8" in translate("caf\udce9")[2]
    missing = translate("--input", tmp_path / "nowhere.txt")
    assert (missing[0], len(missing[2].splitlines())) == (2, 1)
    assert "nowhere.txt does not exist" in missing[2]
    status, lines, err = translate(HELLO, of=None)
    assert (status, lines) == (2, [])
    assert "--run DIR" in err
    assert "no such run directory: nowhere" in translate(HELLO, of="nowhere")[2]


def test_a_run_that_does_not_translate(translate, lit):
    digits = lit(
        "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml --model.net=lit_project.models.MLP "
        "--model.net.hidden_sizes=[8] --test_after_fit=false"
    ).run
    status, lines, err = translate(HELLO, of=digits)
    assert (status, lines, len(err.splitlines())) == (2, [], 1)
    assert "cannot translate" in err
    assert "ImageClassifier" in err


def test_a_net_without_attention(translate, tmp_path):
    run = train(tmp_path, "--model.net.attention=none", "--test_after_fit=false", "--trainer.max_epochs=1")
    assert not list(run.glob("figures/attention/*"))
    status, lines, err = translate(HELLO, "--attention", tmp_path / "a.png", of=run)
    assert (status, lines) == (2, [])
    assert "no attention" in err
    assert not (tmp_path / "a.png").exists()
    assert translate(HELLO, of=run)[0] == 0


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
    text = (Path(__file__).parents[1] / "src" / "lit_project" / "cli.py").read_text()
    assert "\nfrom lit_project.translate" not in text
