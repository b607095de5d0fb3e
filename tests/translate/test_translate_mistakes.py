"""Tests that each mistake in `lit-project translate` causes a one-line error and that nothing is written."""

import shutil
import sys

import pytest
import torch

from lit_project.__main__ import main
from translation_run import HELLO, train

BAD = {
    "--beam_size=1000000": ["beam_size must be between 1 and 1000", "1000000"],
    "--beam_size=x": ["--beam_size", "int", "'x'"],
    "--batch_size=0": ["batch_size", "0"],
    "--beamsize=3": ["--beamsize", "did you mean --beam_size"],
    "--ckpt_path nowhere.ckpt": ["nowhere.ckpt"],
    "--output .": ["cannot write ."],
    "--attention map.xyz": ["map.xyz", "xyz"],
    "--attention a.png extra": ["--attention", "one sentence", "got 2"],
    "--input x.txt": ["TEXT or --input"],
}


@pytest.mark.draws
@pytest.mark.parametrize("options", BAD)
def test_invalid_options_cause_a_one_line_error(translate, options, monkeypatch, tmp_path):
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
        (b"\n \n", ["standard input is empty"]),
        (b"Hi.\nca\xe9\n", ["standard input, line 2", "UTF-8", "byte 3"]),
    ],
)
def test_invalid_input_causes_a_one_line_error_that_names_its_source(translate, text, words, tmp_path):
    (tmp_path / "in.txt").write_bytes(text)
    for where, given in (("standard input", {"stdin": text}), (str(tmp_path / "in.txt"), {})):
        status, lines, err = translate(*([] if given else ["--input", where]), **given)
        assert (status, lines, len(err.splitlines())) == (2, [], 1)
        for word in words:
            assert word.replace("standard input", where) in err


def test_invalid_text_missing_files_and_missing_runs_are_errors(translate, tmp_path):
    assert "TEXT is empty" in translate(" ")[2]
    assert translate("caf\udce9") == (2, [], "error: TEXT is not valid UTF-8\n")
    missing = translate("--input", tmp_path / "nowhere.txt")
    assert (missing[0], len(missing[2].splitlines())) == (2, 1)
    assert "nowhere.txt does not exist" in missing[2]
    status, lines, err = translate(HELLO, of=None)
    assert (status, lines) == (2, [])
    assert "--run DIR" in err
    assert "no such run directory: nowhere" in translate(HELLO, of="nowhere")[2]


def test_run_of_a_classifier_is_rejected(translate, trained):
    status, lines, err = translate(HELLO, of=trained)
    assert (status, lines, len(err.splitlines())) == (2, [], 1)
    assert "is a checkpoint of lit_project.tasks.classification.ImageClassifier, which is not a Translator" in err


def test_net_without_attention_translates_but_has_no_attention_maps(translate, tmp_path):
    run = train(tmp_path, "--model.net.attention=none", "--test_after_fit=false", "--trainer.max_epochs=1")
    assert not list(run.glob("figures/attention/*"))
    status, lines, err = translate(HELLO, "--attention", tmp_path / "a.png", of=run)
    assert (status, lines) == (2, [])
    assert "no attention" in err
    assert not (tmp_path / "a.png").exists()
    assert translate(HELLO, of=run)[0] == 0


MODULE = """
from pathlib import Path
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
Path("imported").touch()
class Net(RNNSeq2Seq):
    pass
"""


def test_checkpoint_can_only_create_nets_from_known_packages(translate, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_checkpoint.py").write_text(MODULE)
    whole = tmp_path / "run"
    shutil.copytree(run, whole)
    file = whole / "checkpoints" / "last.ckpt"
    content = torch.load(file, weights_only=True)
    touch = {"class_path": "os.system", "init_args": {"command": f"touch {tmp_path}/marker"}}
    theirs = {**content["hyper_parameters"]["net"], "class_path": "of_a_checkpoint.Net"}

    def given(options=(), **parameters):
        torch.save({**content, "hyper_parameters": {**content["hyper_parameters"], **parameters}}, file)
        results = [translate(HELLO, "--ckpt_path", file, of=None), translate(HELLO, "--ckpt_path", "last", of=whole)]
        assert not (tmp_path / "marker").exists()
        return results

    for training in ({"optimizer": touch}, {"schedulers": [{"scheduler": touch, "interval": "step"}]}):
        assert [(status, err) for status, _, err in given(**training)] == [(0, "")] * 2
    for bad in (
        {"net": touch},
        {"net": theirs},
        {"net": {"class_path": "torchvision.models.resnet18"}},
        {"_class_path": "of_a_checkpoint.Net"},
        {"vocabularies": {**content["hyper_parameters"]["vocabularies"], "source": touch}},
    ):
        for status, lines, err in given(**bad):
            assert (status, lines, len(err.splitlines())) == (2, [], 1), err
    assert main(["test", "--run", str(whole), "--ckpt_path", "last"]) == 2  # uses the checkpoint's vocabularies
    assert not (tmp_path / "marker").exists()
    assert not (tmp_path / "imported").exists()
    (whole / "config.yaml").write_text("model:\n  net:\n    class_path: of_a_checkpoint.Net\n")
    assert [status for status, *_ in given(net=theirs)] == [2, 0]  # the run's own config contains that class
    sys.modules.pop("of_a_checkpoint")
