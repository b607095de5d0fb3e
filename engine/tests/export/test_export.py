"""Exported files give the same outputs as `predict` in processes that import neither the project nor Lightning."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from onnxruntime import InferenceSession

from helpers import Versioned
from lit_engine import RunDir, load_model
from lit_engine.tools.export import command, files
from lit_engine.tools.export.formats import write_safetensors
from toy.__main__ import main
from toy.data import Digits
from toy.models import MLP
from toy.tasks import ImageClassifier

Lit = Callable[..., Any]
OURS = ["toy", "lightning", "torchmetrics", "jsonargparse"]
ALONE = """
import json, sys
class Refuse:
    def find_spec(self, name, *_):
        assert name.partition(".")[0] not in {refused}, name
sys.meta_path.insert(0, Refuse())
import numpy as np
images = np.load("images.npy")
{program}
print(json.dumps([np.array(predict(images[part])).tolist() for part in (slice(1), slice(1, 4), slice(4, None))]))
assert not set({refused}) & set(sys.modules)
"""
PT2 = """
import torch
about = {"about.json": ""}
net = torch.export.load("model.pt2", extra_files=about).module()
about = json.loads(about["about.json"])
predict = lambda images: net(torch.from_numpy(images))[0].detach().numpy()
"""
ONNX = """
from onnxruntime import InferenceSession
net = InferenceSession("model.onnx")
about = json.loads(net.get_modelmeta().custom_metadata_map["about"])
predict = lambda images: net.run(["probabilities"], {"images": images})[0]
"""
SAFETENSORS = """
import torch
from safetensors import safe_open
with safe_open("model.safetensors", "pt") as file:
    weights = {name.removeprefix("layers."): file.get_tensor(name) for name in file.keys()}
    about = json.loads(file.metadata()["about"])
shape = about["net"]["init_args"]["input_shape"]
hidden, classes = about["net"]["init_args"]["hidden_sizes"][0], len(about["class_names"])
net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(np.prod(shape), hidden), torch.nn.ReLU(),
                          torch.nn.Linear(hidden, classes)).eval()
net.load_state_dict(weights)
normalized = lambda images: (torch.from_numpy(images) - about["mean"][0]) / about["std"][0]
predict = lambda images: net(normalized(images)).softmax(1).detach().numpy()
"""


def test_weights_whose_version_matters_can_be_exported(tmp_path):
    net = Versioned(2, 3)
    before = net.weight.clone()
    write_safetensors(net, "{}", tmp_path / "model.safetensors")
    assert net.weight.equal(before)


@pytest.fixture(scope="module")
def exported(trained_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the exported files of a run in all formats, and the images of its test split."""
    folder = tmp_path_factory.mktemp("exported")
    run = f"--run={trained_once}/quickstart/tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder.parent))  # a shell does not expand ~ after =
        assert main(["export", run, f"--output=~/{folder.name}", "--format=pt2,onnx,safetensors"]) == 0
    data = Digits()
    data.setup("test")
    np.save(folder / "images.npy", data.splits["test"][0].float().numpy() / 255)
    return folder


def rows(lit: Lit, run: Path) -> list[dict[str, str]]:
    """Return the rows of the predictions table."""
    assert lit(f"predict --run {run}").status == 0
    with (run / "predictions" / "test.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "refused"),
    [(PT2, OURS), (SAFETENSORS, OURS), (ONNX, [*OURS, "torch", "onnx"])],
    ids=["pt2", "safetensors", "onnx"],
)
def test_exported_files_predict_without_the_project(exported, lit, trained, program, refused):
    code = ALONE.format(program=program, refused=refused)
    done = subprocess.run([sys.executable, "-c", code], cwd=exported, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    found = np.concatenate([np.array(part) for part in json.loads(done.stdout)])
    expected = rows(lit, trained)
    assert found.argmax(axis=1).tolist() == [int(row["prediction"]) for row in expected]
    assert found.max(axis=1) == pytest.approx([float(row["probability"]) for row in expected], abs=1e-5)
    assert found.sum(axis=1) == pytest.approx(1)


def test_export_reports_its_files_and_does_not_change_the_run(lit, trained):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    first = lit(f"export --run {trained} --ckpt_path last")
    assert first.status == 0
    line, _ = [line for line in first.out.splitlines() if "kB" in line]
    size = (trained / "export" / "model.pt2").stat().st_size / 1000
    assert line.startswith(f"{trained}/export/model.pt2: {size:.1f} kB, differs from `predict` by at most ")
    assert line.endswith(" (probability; 360 samples)")
    about = json.loads((trained / "export" / "model.json").read_text())
    assert (about["run"], about["checkpoint"]) == ("quickstart/tiny", "last.ckpt")
    assert about["class_names"] == [str(digit) for digit in range(10)]
    assert about["files"]["model"]["inputs"] == {"images": {"shape": ["batch", 1, 8, 8], "type": "float32"}}
    assert about["preparation"]["values"].startswith("float32 from 0 to 1")
    assert {path.name for path in (trained / "export").iterdir()} == {"model.pt2", "model.json"}
    assert lit(f"export --run {trained}").out.count("replaces an earlier one") == 2
    printed = json.loads(lit(f"export {trained} --json").out)
    assert all(Path(file).is_file() for file in printed["files"])
    assert printed["checkpoint"].endswith(".ckpt")
    shutil.rmtree(trained / "export")
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before


def test_all_files_are_written_even_if_the_output_pipe_closes(trained, monkeypatch):
    out, into = os.pipe()
    first = []

    def read_a_line():  # like `head -1`
        with open(out) as reader:
            first.append(reader.readline())

    Thread(target=read_a_line).start()
    with open(into, "w", buffering=1) as printed:
        monkeypatch.setattr(sys, "stdout", printed)
        status = main(["export", str(trained), "--format=pt2,safetensors"])
    assert (status, first) == (128 + signal.SIGPIPE, [f"checkpoint: {trained}/checkpoints/best-epoch002.ckpt\n"])
    assert {file.suffix for file in (trained / "export").iterdir()} >= {".pt2", ".safetensors"}


def test_transforms_not_included_in_the_file_are_listed(lit, trained):
    config = yaml.safe_load((trained / "config.yaml").read_text())
    transform = {"class_path": "torchvision.transforms.v2.CenterCrop", "init_args": {"size": 8}}
    config["data"]["init_args"] |= {"eval_transforms": [transform]}
    (trained / "config.yaml").write_text(yaml.safe_dump(config))
    assert "; not included: CenterCrop(size=(8, 8))" in lit(f"export --run {trained}").out
    preparation = json.loads((trained / "export" / "model.json").read_text())["preparation"]
    assert preparation["size"] == [8, 8]
    assert preparation["eval_transforms"] == ["CenterCrop(size=(8, 8))"]


def test_callbacks_and_loggers_that_no_longer_exist_are_not_needed(lit, trained):
    config = yaml.safe_load((trained / "config.yaml").read_text())
    config["trainer"] |= {"callbacks": [{"class_path": "toy.Deleted"}], "logger": [{"class_path": "toy.Deleted"}]}
    (trained / "config.yaml").write_text(yaml.safe_dump(config))
    result = lit(f"export --run {trained} --format safetensors")
    assert result.status == 0, result.err


def test_an_exported_file_rejects_inputs_of_a_different_dtype(exported):
    net = torch.export.load(exported / "model.pt2").module()
    with pytest.raises(RuntimeError, match="dtype mismatch"):
        net(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))


def refused(lit: Lit, run: Path, *parts: str, options: str = "") -> None:
    """Check that `export` fails with a one-line error and exit status 2, and leaves no files behind."""
    result = lit(f"export --run {run} {options}")
    assert result.status == 2
    assert result.err.count("\n") == 1
    assert result.err.startswith("error: ")
    for part in parts:
        assert part in result.err
    assert not list(run.glob("export/*")) + list(run.glob("export/.*"))


@pytest.mark.parametrize("shift", [0.01, float("nan")])
def test_a_file_whose_outputs_differ_from_predict_is_not_written(lit, trained, monkeypatch, shift):
    def wrong(*args):
        run = files.write_pt2(*args)
        return lambda *inputs: [value + shift for value in run(*inputs)]

    monkeypatch.setitem(files.WRITERS, "pt2", wrong)
    refused(lit, trained, "pt2: differs from `predict`", str(shift), "no file was written")


def test_a_task_without_an_exported_method_exports_its_forward(lit, trained, exported, monkeypatch):
    monkeypatch.delattr(ImageClassifier, "exported")
    assert lit(f"export --format onnx,safetensors {trained}").status == 0
    images = np.load(exported / "images.npy")[:50]
    (logits,) = InferenceSession(str(trained / "export" / "model.onnx")).run(["outputs"], {"images": images})
    task = load_model(RunDir(trained))
    np.testing.assert_allclose(logits, task(torch.from_numpy(images)).detach(), atol=1e-5)


def test_bad_input_causes_a_one_line_error(lit, trained, monkeypatch):
    refused(lit, trained, "no format 'onxx'; did you mean onnx?", options="--format pt2,onxx")
    refused(lit, trained, "no format 'zip'; choose from pt2, onnx, safetensors", options="--format zip")
    refused(lit, trained, "no such checkpoint: nope", options="--ckpt_path nope")
    refused(lit, trained, "configs/quickstart.yaml: File exists", options="--output configs/quickstart.yaml")
    with monkeypatch.context() as patch:
        patch.setattr(command, "find_spec", lambda name: None if name == "onnxscript" else name)
        refused(lit, trained, "pip install onnx onnxscript onnxruntime", options="--format onnx")
    with monkeypatch.context() as patch:
        patch.setattr(MLP, "forward", lambda self, x: x.flatten(1)[:, :10] if x.sum().item() > 0 else self.layers(x))
        refused(lit, trained, "the model cannot be exported: Could not guard on data-dependent expression")
    with monkeypatch.context() as patch:
        patch.setattr(MLP, "forward", lambda self, x: self.layers(x.reshape(len(x), -1)))
        refused(lit, trained, "size()[0] as dynamic but your code specialized it to be a constant")
        refused(lit, trained, "; `--format safetensors` exports only the weights")
    shutil.rmtree(trained / "checkpoints")
    refused(lit, trained, f"{trained} has no checkpoint")
