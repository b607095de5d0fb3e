"""Tests that exported translators give the same translations, even in a script without torch and this project."""

import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn
from translation_data import SGD, few, net

from lit_engine.tools.export.formats import run_in_two_batches, trace, write_onnx, write_pt2
from lit_project.__main__ import main
from lit_project.models.seq2seq.rnn import RNNEncoder
from lit_project.models.seq2seq.search import Decoding
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq
from lit_project.tasks.translation.export import Unpacked
from lit_project.tasks.translation.task import Translator
from translation_run import HELLO, train

NETS = {
    "general": partial(net, attention="general"),
    "additive": partial(net, attention="additive", cell="lstm", encoder_layers=2, decoder_layers=2, layer_norm=True),
    "dot": partial(net, attention="dot", bidirectional=False, bridge="copy", tied_embeddings=True),
    "location": partial(net, attention="location", cell="lstm", bridge="zero", embedding_max_norm=1.0),
    "none": partial(net, attention="none", encoder_layers=2),
    "transformer": lambda data: TransformerSeq2Seq(data.source_size, data.target_size, 8, 2, 2, 2, dropout=0.0),
}


@pytest.fixture(scope="module")
def batch_and_data():
    data = few(batch_size=6)
    data.setup("test")
    return next(iter(data.test_dataloader())), data


def task_with(kind, data):
    torch.manual_seed(0)
    return Translator(NETS[kind](data), SGD, data.vocabularies, decoding=Decoding(beam_size=3, n_best=2)).eval()


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_encoder_without_packed_sequences_matches_the_original(batch_and_data, cell, bidirectional):
    batch, data = batch_and_data
    embedding = nn.Embedding(data.source_size, 8, padding_idx=0)
    encoder = RNNEncoder(embedding, 6, 3, bidirectional, cell, 0.0, layer_norm=False).double().eval()
    lengths = batch.source_lengths.clone()
    lengths[0] = 1
    source = batch.source.masked_fill(torch.arange(batch.source.shape[1]) >= lengths[:, None], 0)
    states, final = Unpacked(encoder)(source, lengths)
    expected, expected_final = encoder(source, lengths)
    assert torch.allclose(states, expected, atol=1e-12)
    for one, other in zip(final, expected_final, strict=True):
        assert torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("kind", NETS)
def test_search_with_the_exported_parts_matches_predict(batch_and_data, kind):
    batch, data = batch_and_data
    task = task_with(kind, data).double()
    with torch.no_grad():
        rows = task.predict_step(batch, 0)
        made = task.exported(batch)
        assert (
            made.difference({name: run_in_two_batches(part) for name, part in made.parts.items()}, batch, rows) < 1e-6
        )
        rows["score"] = [score + 0.01 for score in rows["score"]]
        assert made.difference(made.parts, batch, rows) == pytest.approx(0.01, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETS)
def test_exported_files_accept_any_batch_size_and_length(batch_and_data, tmp_path, kind):
    batch, data = batch_and_data
    task = task_with(kind, data)
    with torch.no_grad():
        rows, made = task.predict_step(batch, 0), task.exported(batch)
        programs = {name: trace(name, part) for name, part in made.parts.items()}
        for write in (write_pt2, write_onnx):
            runs = {
                n: run_in_two_batches(write(programs[n], part, "{}", tmp_path / n)) for n, part in made.parts.items()
            }
            assert made.difference(runs, batch, rows) < 1e-5


ALONE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, *_):
        assert name.partition(".")[0] not in ("lit_project", "lightning", "torch", "onnx"), name
sys.meta_path.insert(0, Refuse())
sys.path.insert(0, sys.argv[1])
sys.argv = sys.argv[2:]
runpy.run_path(sys.path[0] + "/translate.py")
assert not {"lit_project", "torch"} & set(sys.modules)
"""
TRANSFORMER = (
    "--model.net=TransformerSeq2Seq", "--model.net.size=32", "--model.net.encoder_layers=1",
    "--model.net.decoder_layers=2", "--data.vocabulary=bpe", "--data.vocabulary_size=120",
)  # fmt: skip


@pytest.mark.parametrize("options", [(), pytest.param(TRANSFORMER, marks=pytest.mark.slow)], ids=["words", "subwords"])
def test_exported_script_translates_like_the_run(tmp_path_factory, tmp_path, options, capfd):
    epochs = "--trainer.max_epochs=8", "--trainer.check_val_every_n_epoch=8", "--trainer.limit_train_batches=10"
    decoding = "--model.decoding.n_best=2", "--model.decoding.no_repeat_ngram=1"
    run = train(tmp_path_factory.mktemp("runs"), *epochs, *decoding, *options)
    capfd.readouterr()
    assert main(["export", f"--run={run}", "--format=pt2,onnx,safetensors", f"--output={tmp_path}"]) == 0
    assert capfd.readouterr().out.count("; 30 samples)") == 5
    names = {"encoder.pt2", "step.pt2", "encoder.onnx", "step.onnx", "model.safetensors", "model.json"}
    made = {*names, "translate.py", "preparation.py", "tokens.py"}
    assert {path.name for path in tmp_path.iterdir()} == made
    sentences = [HELLO, "The cats see the big dogs!", "A zork is red."]
    capfd.readouterr()
    assert main(["translate", f"--run={run}", "--beam_size=1", *sentences]) == 0
    expected = capfd.readouterr().out
    assert len(expected.split()) > 6
    assert main(["translate", f"--run={run}", "--beam_size=1", "--no_repeat_ngram=0", *sentences]) == 0
    assert capfd.readouterr().out != expected
    command = [sys.executable, "-c", ALONE, str(tmp_path), "translate.py", *sentences]
    done = subprocess.run(command, cwd=tmp_path.parent, capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.stdout) == ("", expected)
    lines = "\n\n".join([*sentences[:2], sentences[2].replace(" zork", "\u2028zork")])  # a blank line stays blank
    done = subprocess.run(command[:5], input=lines, cwd=tmp_path.parent, capture_output=True, text=True, timeout=120)
    assert (done.stderr, done.stdout.rstrip("\n")) == ("", "\n\n".join(expected.splitlines()))
    assert len((tmp_path / "translate.py").read_text().splitlines()) <= 40
