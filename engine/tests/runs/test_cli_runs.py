"""Behaviour that the command line guarantees for run directories."""

import csv
import json
import os
import re
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from PIL import Image

from helpers import TINY, same_weights
from lit_engine.checkpoints.io import read
from lit_engine.data.images import DatasetImages, ImageBatch
from lit_engine.data.module import SplitData
from lit_engine.run.directory import RunDir
from toy.tasks import ImageClassifier


def contents(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_run_is_named_after_config_and_time_and_its_name_is_printed_once(lit):
    result = lit(f"fit -c configs/quickstart.yaml {TINY} -c configs/overlays/debug.yaml")
    lines = result.out.splitlines()
    assert [line for line in lines if line.startswith("run: ")] == lines[:1] == [f"run: {result.run}"]
    assert lines[-1] == f"page: {result.run}/index.html"
    assert re.fullmatch(r"runs/quickstart/\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", str(result.run))


def test_saved_config_reproduces_the_run_in_a_new_directory(lit, trained):
    before = contents(trained)
    refused = lit(f"fit -c {trained}/config.yaml --run_name={trained.name}")
    assert refused.status == 2
    assert str(trained) in refused.err
    repeated = lit(f"fit -c {trained}/config.yaml --run_name=again")
    assert repeated.status == 0, repeated.err
    assert repeated.run == trained.parent / "again"
    first, second = (read(run / "checkpoints" / "last.ckpt") for run in (trained, repeated.run))
    assert same_weights(first["state_dict"], second["state_dict"])
    assert (repeated.run / "config.yaml").read_text() == (trained / "config.yaml").read_text()
    assert contents(trained) == before


def test_a_run_records_metrics_and_provenance(trained):
    metrics = json.loads((trained / "metrics.json").read_text())
    assert metrics["fit"]["epochs"] == 3
    assert metrics["fit"]["steps"] == 3 * 10
    assert metrics["fit"]["train/samples"] == 1257
    assert metrics["fit"]["val/samples"] == 180
    rows = list(csv.DictReader((trained / "metrics.csv").open()))
    epochs = [row for row in rows if row["val/accuracy"]]
    assert [int(row["epoch"]) for row in epochs] == [0, 1, 2]
    assert min(float(row["val/loss"]) for row in epochs) == pytest.approx(metrics["fit"]["best val/loss"])
    assert all(float(row["lr"]) > 0 for row in rows)
    assert all(float(row["train/samples_per_second"]) > 0 for row in epochs)
    entry = json.loads((trained / "provenance.json").read_text())[0]
    assert entry["seed"] == 42
    assert {"time", "git", "versions", "host", "devices"} <= set(entry)
    assert entry["command"][1:3] == ["fit", "-c"]  # `sys.argv` contains the arguments of pytest


def test_fast_dev_run_creates_no_run_and_keeps_the_name_available(lit):
    command = f"fit -c configs/quickstart.yaml {TINY} --run_name=tried"
    result = lit(f"{command} --trainer.fast_dev_run=true")
    assert result.status == 0, result.err
    assert not (Path("runs") / "quickstart" / "tried").exists()
    assert lit(f"{command} --trainer.max_epochs=1").status == 0


def test_fast_dev_run_does_not_change_the_results_of_a_run(lit, trained):
    commands = [f"{name} --run {trained} --data.eval_batch_size=100" for name in ("predict", "test")]
    assert [lit(command).status for command in commands] == [0, 0]
    before, page = contents(trained), trained / "index.html"
    written = page.stat().st_mtime_ns
    assert trained / "predictions" / "test.csv" in before
    for command in commands:
        result = lit(f"{command} --trainer.fast_dev_run=true")
        assert result.status == 0, result.err
    assert contents(trained) == before
    assert page.stat().st_mtime_ns == written


def test_an_epoch_without_validation_reports_no_validation_metrics(lit):
    options = "--model.schedulers=null --trainer.max_epochs=-1 --trainer.max_steps=15"
    result = lit(f"fit -c configs/quickstart.yaml {TINY} {options}")
    assert result.status == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("epoch ")]
    assert ["val/loss" in line for line in lines] == [True, False]
    metrics = json.loads((result.run / "metrics.json").read_text())["fit"]
    assert metrics["steps"] == 15
    assert "val/loss" not in metrics
    assert "best val/loss" in metrics


def test_an_evaluation_reports_its_checkpoint_and_changes_since_training(lit, trained, monkeypatch):
    from toy.data import Digits

    best = next((trained / "checkpoints").glob("best*.ckpt"))
    same = lit(f"validate --run {trained}")
    assert f"checkpoint: {best}\n" in same.out
    assert same.err == ""
    make = Digits.__init__

    def make_other(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.mean = [0.25]

    monkeypatch.setattr(Digits, "__init__", make_other)
    other = lit(f"test --run {trained} --model.top_k=2")
    assert sorted(other.err.splitlines()) == [
        "warning: mean[0] was 0.5 in training and is 0.25",
        "warning: top_k was None in training and is 2",
    ]
    sections = json.loads((trained / "metrics.json").read_text())
    assert "changed" not in sections["validate"]
    assert "top_k was None in training and is 2" in sections["test"]["changed"]
    monkeypatch.undo()


def test_evaluation_with_different_data_options_is_recorded(lit, trained):
    batching = "--data.eval_batch_size=50 --data.batch_size=9"
    options = "--data.val_size=150 --data.root=new --trainer.limit_val_batches=2"
    for given, changed in ((batching, None), (options, ["data.val_size", "data.root", "trainer.limit_val_batches"])):
        assert lit(f"validate --run {trained} {given}").status == 0
        found = json.loads((trained / "metrics.json").read_text())["validate"].get("changed")
        assert found == changed or [line.split()[0] for line in found] == changed


def test_warns_and_uses_the_last_checkpoint_if_the_best_is_missing(lit, trained):
    best = next((trained / "checkpoints").glob("best*.ckpt"))
    best.unlink()
    result = lit(f"test --run {trained}")
    assert result.status == 0
    assert result.err == f"warning: the best checkpoint {best.name} does not exist, using last.ckpt\n"
    assert f"checkpoint: {trained}/checkpoints/last.ckpt\n" in result.out


def test_runs_dir_and_run_expand_a_tilde_to_the_home_folder(lit, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # a shell does not expand ~ after =
    fit = lit(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --runs_dir=~/runs --run_name=mine")
    run = tmp_path / "home" / "runs" / "quickstart" / "mine"
    assert {"config.yaml", "metrics.csv", "checkpoints"} <= {path.name for path in run.iterdir()}
    assert lit("predict --run=~/runs/quickstart/mine").status == fit.status == 0


def test_untrained_weights_are_tested_only_on_request(lit):
    refused = lit(f"test -c configs/quickstart.yaml {TINY}")
    assert refused.status == 2
    assert "--allow_untrained" in refused.err
    assert not Path("runs").exists()
    allowed = lit(f"test -c configs/quickstart.yaml {TINY} --allow_untrained=true")
    assert allowed.status == 0
    metrics = json.loads((allowed.run / "metrics.json").read_text())
    assert metrics["test"]["checkpoint"] is None
    assert metrics["test"]["test/accuracy"] < 0.5


def test_partial_evaluation_is_recorded_as_such(lit, trained):
    result = lit(f"test --run {trained} --data.eval_batch_size=100 --trainer.limit_test_batches=2")
    metrics = json.loads((trained / "metrics.json").read_text())["test"]
    assert metrics["test/samples"] == 200
    assert metrics["test/dataset_size"] == 360
    assert "200 of 360" in result.err


def test_sums_of_sample_weights_are_not_reported_as_a_partial_evaluation(lit, trained, monkeypatch):
    step, weight = ImageClassifier.step, 0.3125
    monkeypatch.setattr(ImageClassifier, "step", lambda task, loss, n, **sums: step(task, loss, weight * n, **sums))
    assert lit(f"test {trained}").err == ""
    found = json.loads((trained / "metrics.json").read_text())["test"]
    assert (found["test/samples"], "test/dataset_size" in found) == (360 * weight, False)


def test_predictions_on_a_folder_of_images_match_the_test_split(lit, trained, workspace, monkeypatch):
    from toy.data import Digits

    images, _ = Digits().load("test")
    (workspace / "my pictures").mkdir()
    for number in range(12):
        Image.fromarray(images[number, 0].numpy()).save(workspace / "my pictures" / f"{number:02d}.png")
    (workspace / "my pictures" / "11.png").rename(workspace / "my pictures" / os.fsdecode(b"\xe4.png"))  # not UTF-8
    for samples in ([], ["--images", workspace / "my pictures"]):
        assert lit(f"predict --run {trained}", *samples).status == 0
    split, mine = (RunDir(trained).predictions(name) for name in ("test", "images_my pictures"))
    names = [*(f"{n:02d}.png" for n in range(11)), r"\udce4.png"]
    assert [(row["index"], Path(row["file"]).name) for row in mine] == [*enumerate(names)]
    for name in ("class_name", "probability"):
        assert [row[name] for row in mine] == [row[name] for row in split[:12]]
    assert set(split[0]) == {"index", "prediction", "class_name", "probability", "target"}
    (workspace / "my pictures" / "05.png").write_text("no image")
    predict = f"predict --run {trained} --data.eval_batch_size=4"
    damaged = lit(predict, *samples)
    assert (damaged.status, damaged.err.count("error: cannot read ")) == (1, 1)
    # samples after the last batch are unread, not damaged
    assert lit(predict, *samples, "--trainer.limit_predict_batches=1").status == 0
    # torchrun would kill the first process, which writes the table, if another one failed
    monkeypatch.setattr("lit_engine.session.is_first", lambda: False)
    assert lit(predict, *samples).status == 0


@pytest.mark.parametrize(("command", "kind"), [("predict", "best"), ("test", "best"), ("fit", "last")])
def test_each_command_loads_exactly_one_checkpoint(lit, trained, monkeypatch, command, kind):
    files, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda file, **options: files.append(Path(file).name) or load(file, **options))
    more = "--trainer.max_epochs=4 --model.schedulers=null --test_after_fit=false" if command == "fit" else ""
    assert lit(f"{command} --run {trained} {more}").status == 0
    assert [name.partition("-")[0].partition(".")[0] for name in files] == [kind]


def test_num_workers_and_pin_memory_apply_to_prediction_images(tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    data = DatasetImages(class_names=["a", "b"], num_workers=2, pin_memory=True)
    data.predict_from(tmp_path)
    workers = data.predict_dataloader().workers
    assert (workers.num_workers, workers.pin_memory) == (2, True)


@pytest.mark.parametrize(("tensors", "option", "device", "pins"), [
    ("cpu", None, "cuda", True), ("cpu", None, "cpu", False), ("cpu", False, "cuda", False),
    ("meta", None, "cuda", False), ("meta", True, "cuda", False),
])  # fmt: skip
def test_cpu_batches_are_pinned_for_cuda_unless_disabled(tensors, option, device, pins):
    data = SplitData()
    data.batch, data.pin_memory = ImageBatch, option
    data.splits["train"] = torch.zeros(8, 1, 4, 4, device=tensors), torch.zeros(8, device=tensors)
    data.trainer = MagicMock(overfit_batches=0, world_size=1, global_rank=0)
    data.trainer.strategy.root_device = torch.device(device)
    data.rank_settings = lambda: {"seed": 1}
    workers = data.train_dataloader().workers
    assert (workers is not None and workers.pin_memory) == pins


def test_denormal_numbers_are_flushed_to_zero(lit, trained):
    torch.set_flush_denormal(False)
    assert torch.tensor(1e-39).mul(1.0) > 0
    assert lit(f"validate --run {trained}").status == 0
    assert torch.tensor(1e-39).mul(1.0) == 0


def test_a_checkpoint_is_sufficient_for_prediction(lit, trained):
    """The checkpoint contains class names and normalization, so Python code needs nothing else from the run."""
    from toy.data import Digits
    from toy.tasks import ImageClassifier

    assert lit(f"predict --run {trained} --ckpt_path last").status == 0
    rows = list(csv.DictReader((trained / "predictions" / "test.csv").open()))
    file = trained / "checkpoints" / "last.ckpt"
    task = ImageClassifier.load_from_checkpoint(file, map_location="cpu", weights_only=True).eval()
    assert task.class_names == [str(n) for n in range(10)]
    images, _ = Digits().load("test")
    with torch.no_grad():
        probabilities, classes = task(images.float() / 255).softmax(dim=1).max(dim=1)
    assert classes.tolist() == [int(row["prediction"]) for row in rows]
    assert probabilities.tolist() == pytest.approx([float(row["probability"]) for row in rows], abs=1e-6)


def test_lightnings_model_checkpoint_can_select_the_best_checkpoint(lit):
    callback = "[{class_path: lightning.pytorch.callbacks.ModelCheckpoint, init_args: {monitor: val/loss, mode: max}}]"
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3", ["--trainer.callbacks", callback])
    assert result.status == 0, result.err
    assert "best checkpoint: " in result.out
    after_fit = json.loads((result.run / "metrics.json").read_text())["test"]
    assert "epoch=0" in after_fit["checkpoint"]  # mode max selects the worst epoch, which is not the last
    assert lit(f"test --run {result.run}").status == 0
    assert json.loads((result.run / "metrics.json").read_text())["test"] == after_fit
