"""A run is a directory that is created once, can be found again, and has complete records."""

import json
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback

from helpers import TINY
from lit_engine.callbacks.record import join_metrics
from lit_engine.checkpoints.choose import choose_checkpoint, find_newest_checkpoint
from lit_engine.errors import RunError
from lit_engine.load import load_data, load_model
from lit_engine.run.directory import RunDir, csv_text, write_text
from lit_engine.run.metric_names import recorded_name
from lit_engine.run.provenance import provenance, read_git_state, read_uncommitted_changes


class TestedMeanwhile(Callback):
    """Callback that writes test results during training, as another process could do."""

    def on_train_epoch_start(self, trainer, pl_module):
        run = RunDir(Path(trainer.default_root_dir))
        run.record("test", {"test/loss": 1.0})
        write_text(run.path / "predictions" / "test.csv", "index,prediction\n")


def test_results_of_a_test_during_training_are_dropped_at_its_end(lit):
    fitted = lit(
        f"fit quickstart {TINY} --epochs 1 --test_after_fit=false --trainer.callbacks+=test_run.TestedMeanwhile"
    )
    assert set(RunDir(fitted.run).metrics()) == {"fit"}
    assert not (fitted.run / "predictions" / "test.csv").exists()


def test_a_resumed_run_prints_which_predictions_it_deletes(lit):
    run = lit(f"fit quickstart {TINY} --epochs 1 --test_after_fit=false --model.schedulers=null").run
    assert lit(f"predict {run}").status == 0
    resumed = lit(f"fit {run} --epochs 2")
    table = run / "predictions" / "test.csv"
    assert f"deleted predictions, which were made with earlier weights: {table}\n" in resumed.out
    assert not table.exists()


def save(run, name, step=1):
    run.checkpoints.mkdir(exist_ok=True)
    torch.save({"global_step": step, "state_dict": {"weight": torch.rand(500)}}, run.checkpoints / name)
    return run.checkpoints / name


@pytest.fixture
def run(tmp_path):
    run = RunDir.create(tmp_path / "runs", "example", "first")
    write_text(run.config_file, "seed_everything: 1\n")
    return run


@pytest.mark.parametrize("name", ["", "..", "../a", "/tmp/a", "a\\b"])
def test_name_must_be_a_plain_folder_name(tmp_path, name):
    with pytest.raises(RunError, match="run_name must be a plain folder name"):
        RunDir.create(tmp_path / "runs", "example", name)
    with pytest.raises(RunError, match="runs_dir must be a local folder, got s3://bucket/runs"):
        RunDir.create("s3://bucket/runs", "example", name)
    assert list(tmp_path.iterdir()) == []


def test_the_error_if_no_run_can_be_created_suggests_options_to_change(tmp_path):
    with pytest.raises(RunError, match="File name too long; choose a different --runs_dir or --name"):
        RunDir.create(tmp_path, "example", "x" * 300)
    write_text(tmp_path / "file", "")
    with pytest.raises(RunError, match="Not a directory; choose a different --runs_dir or --name"):
        RunDir.create(tmp_path / "file", "example", None)
    (tmp_path / "runs").symlink_to("unmounted/runs")
    for name in ("a", None):
        with pytest.raises(RunError, match=r"cannot create a run in .*/runs/example: .*/runs is not a folder"):
            RunDir.create(tmp_path / "runs", "example", name)


def test_open_rejects_paths_that_are_not_runs(tmp_path, run):
    with pytest.raises(RunError, match="no such run directory"):
        RunDir.open(run.config_file)
    with pytest.raises(RunError, match=f"did you mean {run.path.name}"):
        RunDir.open(f"{run.path}x")
    with pytest.raises(RunError) as error:
        RunDir.open(tmp_path / "runs" / "example")
    assert "is not a run directory: it has no config.yaml; runs inside it: " in str(error.value)
    assert str(run.path) in str(error.value)
    for number in range(3):
        shutil.copytree(run.path, run.path.with_name(f"copy{number}"))
    with pytest.raises(RunError, match="copy1 and 1 more"):
        RunDir.open(tmp_path / "runs" / "example")


def test_chooses_the_latest_best_checkpoint_without_a_saved_state(run):
    for epoch in (3, 4, 5):
        save(run, f"best-epoch00{epoch}.ckpt", 10 * epoch)
    assert choose_checkpoint(run).name == "best-epoch005.ckpt"


@pytest.mark.parametrize("names", [("best-epoch003.ckpt", "best-epoch004.ckpt"), ("epoch=3.ckpt", "epoch=4.ckpt")])
def test_state_in_the_last_checkpoint_overrides_the_recorded_best_checkpoint(run, names):
    """The run may have been moved, may have been extended and then killed, or may use one of Lightning's callbacks."""
    for step, name in enumerate(names):
        save(run, name, step)
    run.record("fit", {"best_checkpoint": names[1]})
    folder = "/old/place/checkpoints"
    state = {"dirpath": folder, "best_model_path": f"{folder}/{names[0]}", "best_model_score": torch.tensor(0.5)}
    content = {"global_step": 9, "state_dict": {}, "callbacks": {"ModelCheckpoint": state, "Other": {"skipped": 1}}}
    torch.save(content, run.checkpoints / "last.ckpt")
    assert choose_checkpoint(run).name == names[0]


def test_a_run_is_not_resumed_from_the_checkpoint_of_the_nan_guard(run):
    save(run, "epoch000.ckpt", 3)
    save(run, "before-nan.ckpt", 5)
    assert find_newest_checkpoint(run).name == "epoch000.ckpt"


def test_provenance_is_appended(run):
    for seed in (1, 2):
        run.describe("", {"seed": seed, **provenance()})
    entries = json.loads((run.path / "provenance.json").read_text())
    assert [entry["seed"] for entry in entries] == [1, 2]
    for entry in entries:
        assert entry["command"][0] == sys.argv[0]
        assert entry["versions"]["torch"] == version("torch")
        assert entry["versions"]["lit-engine"] == version("lit-engine")
        assert "toy" in entry["versions"]
        assert entry["devices"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])


@pytest.fixture
def git(tmp_path, monkeypatch):
    """Return a function that runs git in the repository `code`, which has one commit."""
    for name in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{name}_NAME", "a")
        monkeypatch.setenv(f"{name}_EMAIL", "a@b.c")
    folder = tmp_path / "code"

    def git(*args, inside=folder):
        command = ["git", "-C", inside, "-c", "core.hooksPath=/dev/null", *args]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q", folder, inside=tmp_path)
    for name, content in (("a.py", b"1\n"), ("old.py", b"1\r\n2\n"), ("b\xe9 c.py", b"\xe9\n"), ("d.png", b"\0\1")):
        (folder / name).write_bytes(content)
    git("add", ".")
    git("commit", "-q", "-m", "first")
    return git


def test_git_state_reports_commit_and_uncommitted_changes(tmp_path, git):
    assert read_git_state(tmp_path) is None
    commit = git("rev-parse", "HEAD")
    assert read_git_state(tmp_path / "code") == {"commit": commit, "dirty": False}
    (tmp_path / "code" / "a.py").write_text("two")
    assert read_git_state(tmp_path / "code") == {"commit": commit, "dirty": True}


def test_without_a_repository_the_commit_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_COMMIT", "0123abc")
    assert read_git_state(tmp_path) == {"commit": "0123abc", "dirty": False}
    monkeypatch.setenv("TOY_COMMIT", "0123abc-dirty")
    assert read_git_state(tmp_path) == {"commit": "0123abc", "dirty": True}


def tree(folder):
    files = [file for file in folder.rglob("*") if file.is_file() and ".git" not in file.parts]
    return {file.relative_to(folder): file.read_bytes() for file in files}


def test_applying_the_patch_to_a_clone_reproduces_the_code_that_ran(tmp_path, git, monkeypatch):
    """The patch includes changed, removed, binary, imported and new source files, and lists other new files."""
    code, clone = tmp_path / "code", tmp_path / "clone"
    (code / "a.py").write_text("a = 2\r\n")
    (code / "b\xe9 c.py").write_bytes(b"\xe9\xe8")
    (code / "d.png").write_bytes(bytes(range(256)))
    (code / "old.py").unlink()
    (code / "src" / "new dir").mkdir(parents=True)
    (code / "src" / "new dir" / "new.py").write_text("new = 1\n")
    (code / "staged.py").write_text("")
    (code / "package").mkdir()
    (code / "package" / "new.py").write_text("new = 2\n")
    git("add", "staged.py")
    (code / "imported_by_run.py").write_text("imported = 1\n")
    module = SimpleNamespace(__file__=str(code / "imported_by_run.py"))
    monkeypatch.setitem(sys.modules, "imported_by_run", module)
    before = git("status", "--porcelain")
    files = tree(code)
    left_out = {"keys.py": "1", "secrets.yaml": "1", "src/data.csv": "1", "src/huge.py": "#" * 1_000_001}
    for name, text in left_out.items():
        (code / name).write_text(text)
    patch, included = read_uncommitted_changes(code / "package")
    assert patch.startswith(b"".join(b"New file, not in this patch: %s\n" % name.encode() for name in left_out))
    assert set(included) == {
        "a.py", "b\xe9 c.py", "d.png", "old.py", "staged.py", "package/new.py", "src/new dir/new.py",
        "imported_by_run.py",
    }  # fmt: skip
    (tmp_path / "code.patch").write_bytes(patch)
    git("clone", "-q", code, clone, inside=tmp_path)
    git("apply", tmp_path / "code.patch", inside=clone)
    assert tree(clone) == files
    for name in left_out:
        (code / name).unlink()
    assert git("status", "--porcelain") == before
    (code / "a.py").write_text("a" * 1_000_001)
    assert read_uncommitted_changes(code)[0].startswith(b"The changes are not saved: a patch of 1,0")
    monkeypatch.setenv("PATH", "")
    assert read_uncommitted_changes(code)[0].startswith(b"The changes are not known")


def test_a_run_keeps_the_patch_of_each_fit(run, monkeypatch):
    patches = iter(((b"one", ["a.py"]), (b"two", ["b.py"])))
    monkeypatch.setattr("lit_engine.run.directory.read_uncommitted_changes", lambda folder: next(patches))
    for dirty in (True, True, False):
        run.describe("", {"git": {"dirty": dirty}})
    assert {file.name: file.read_bytes() for file in run.path.glob("*.patch")} == {
        "code.1.patch": b"one", "code.2.patch": b"two"
    }  # fmt: skip
    assert [entry.get("patch") for entry in run.entries()] == [["a.py"], ["b.py"], None]


def test_earlier_configs_are_not_overwritten_if_one_was_deleted(run):
    for config in ("a: 2\n", "a: 3\n"):
        run.describe(config, {})
    (run.path / "config.1.yaml").unlink()
    run.describe("a: 4\n", {})
    assert {file.read_text() for file in run.path.glob("config*.yaml")} == {"a: 2\n", "a: 3\n", "a: 4\n"}


def test_numeric_prediction_columns_are_parsed_as_numbers(run):
    table = 'index,class_name,score,target,size\n0,"7, or 1",0.5,1.5,1_2\n1,8,2,,3_4\n'
    write_text(run.path / "predictions" / "new.csv", table)
    first = {"index": 0, "class_name": "7, or 1", "score": 0.5, "target": 1.5, "size": "1_2"}
    second = {"index": 1, "class_name": "8", "score": 2.0, "target": None, "size": "3_4"}
    assert run.predictions("new") == [first, second]
    with pytest.raises(RunError, match=r"no such predictions: .*test.csv \(available: new\)"):
        run.predictions()


def test_predictions_may_contain_long_texts_and_line_breaks(run):
    rows = [{"index": place, "text": text} for place, text in enumerate(("long " * 40_000, "a\rb", "a\r\nb\n", '"'))]
    write_text(run.path / "predictions" / "test.csv", csv_text(rows))
    assert run.predictions() == rows


def test_task_data_predictions_and_figures_of_a_run_can_be_loaded(lit, trained):
    assert lit(f"predict --run {trained}").status == 0
    run = RunDir.latest("runs")
    task, data, rows = load_model(run), load_data(run), run.predictions()
    batch = data.on_after_batch_transfer(data.dataset("test")[torch.arange(360)], 0)
    assert task(batch.images).argmax(dim=1).tolist() == [row["prediction"] for row in rows]
    assert batch.targets.tolist() == [row["target"] for row in rows]
    assert {"learning_curves.png", "learning_rate.png"} <= {file.name for file in run.figures()}
    assert not task.training
    with pytest.raises(RunError, match=r"no such checkpoint: other\.ckpt"):
        load_model(run, "other.ckpt")


@pytest.mark.parametrize(("value", "text"), [
    (0.98765, "0.9877"), (-12.5, "-12.5000"), (40887.3711, "40887.37"), (2357217792.0, "2.357218e+09"),
])  # fmt: skip
def test_metrics_are_printed_with_at_most_seven_significant_digits(value, text):
    assert join_metrics({"val/loss": value}, None) == f"val/loss {text}"


def test_metric_names_may_contain_line_breaks(run):
    name = "test/class_accuracy/two\nlines"
    assert recorded_name(name, "test") == name


def test_metric_names_may_contain_unicode_line_separators(run):
    (run.path / "metrics.csv").write_text("step,val/class_accuracy/a\u2028b\n3,0.5\n4,0.", encoding="utf-8")
    assert run.history() == (
        ["step", "val/class_accuracy/a\u2028b"],
        [{"step": "3", "val/class_accuracy/a\u2028b": "0.5"}],
    )
