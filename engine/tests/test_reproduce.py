"""`reproduce RUN` trains a run again with its own code and data, and compares the results."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

import lit_engine
from helpers import TINY, TOY
from lit_engine.run.directory import RunDir
from lit_engine.tools.reproduce import code
from lit_engine.tools.reproduce.outcome import compare_results

FIT = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=2 --run_name=a"
RUN = Path("runs/quickstart/a")
ENGINE = str(Path(lit_engine.__file__).parents[1])


def git(*args):
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.hooksPath=/dev/null"]
    return subprocess.run(["git", *names, *args], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def workspace(workspace, monkeypatch):
    """A repository with `mine` (a copy of the toy project), one commit, and uncommitted changes to the data."""
    for file in TOY.glob("*.py"):
        place = workspace / "src" / "mine" / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(file.read_text().replace("toy", "mine"))
    config = workspace / "configs" / "quickstart.yaml"
    config.write_text(config.read_text().replace("toy", "mine"))
    (workspace / ".gitignore").write_text("runs\nreproductions\n__pycache__\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    data = workspace / "src" / "mine" / "data.py"
    data.write_text(data.read_text().replace("120 * torch.randn", "60 * torch.randn"))
    monkeypatch.syspath_prepend(str(workspace / "src"))
    monkeypatch.setenv("PYTHONPATH", ENGINE)
    yield workspace
    for name in [name for name in sys.modules if name.split(".")[0] == "mine"]:
        del sys.modules[name]


@pytest.fixture
def command_line(workspace):
    from mine.__main__ import main

    return main


@pytest.fixture
def fitted(lit):
    """A finished run."""
    assert lit(FIT).status == 0
    return RunDir(RUN)


def edit(run, **facts):
    """Change the last entry in provenance.json."""
    *earlier, last = run.entries()
    (run.path / "provenance.json").write_text(json.dumps([*earlier, {**last, **facts}]))


def test_a_fork_is_reproduced_with_its_original_code(lit, fitted, workspace):
    assert lit(f"fit --fork {RUN} --trainer.max_epochs=3 --run_name=b").status == 0
    (workspace / "src" / "mine" / "data.py").write_text("broken")
    done = lit("reproduce runs/quickstart/b --here --json")
    found = json.loads(done.out)
    assert (done.status, found["verdict"], found["reason"], found["differences"]) == (0, "bit-identical", None, [])
    assert set(found["weights"]) == {"best-epoch002.ckpt", "last.ckpt"}
    (entry,), (again,) = RunDir(Path("runs/quickstart/b")).entries(), RunDir(Path(found["reproduction"])).entries()
    assert found["reproduction"] == "reproductions/quickstart/b"
    assert entry["data"] == again["data"]
    assert entry["data"].keys() == {"train", "val", "test"}
    assert entry["fork"]["step"] == again["fork"]["step"] > 0
    assert git("worktree", "list").count("\n") == 1
    assert git("status", "--porcelain").split() == ["M", "src/mine/data.py"]


def test_a_different_result_is_reported_with_its_location_and_likely_reason(lit, fitted):
    config = fitted.config_file
    config.write_text(config.read_text().replace("seed_everything: 42", "seed_everything: 43"))
    versions = {**fitted.entries()[0]["versions"], "torch": "1.0"}
    edit(fitted, versions=versions, cpu_threads=torch.get_num_threads())
    Path("runs/linked").mkdir()
    Path("runs/linked/a").symlink_to(fitted.path.absolute())
    done = lit("reproduce runs/linked/a --here")
    lines = done.out.splitlines()
    assert done.status == 3
    assert f"note: torch: {version('torch')} instead of 1.0" in lines
    assert any(line.startswith("different: ") for line in lines)
    assert any(line.startswith("first difference: step 4 (epoch 0): train/loss_step ") for line in lines)
    assert f"most likely reason: torch: {version('torch')} instead of 1.0" in lines
    assert lines[-1] == "reproduction: reproductions/linked/a"


def test_changed_data_stop_the_reproduction(lit, fitted):
    edit(fitted, data={**fitted.entries()[0]["data"], "val": "0"})
    done = lit("reproduce runs/quickstart/a --here")
    assert done.status == 2
    assert done.err.splitlines()[-1].endswith("runs/quickstart/a cannot be reproduced: the data have changed (val)")
    assert not list(Path("reproductions").rglob("*.yaml"))
    assert git("worktree", "list").count("\n") == 1


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"status": None}, "the run is killed, but only finished runs can be compared"),
        ({"status": 143}, "the run is stopped"),
        ({"git": None}, "no commit was recorded, because the code was not in a Git repository"),
        ({"git": {"commit": "0" * 40, "dirty": False}}, "git worktree failed"),
        ({"git": {"commit": "HEAD", "dirty": True}}, "the code had uncommitted changes, which were not recorded"),
        ({"init_from": "weights.ckpt"}, "the initial weights weights.ckpt do not exist"),
        ({"fork": {"run": "runs/gone", "step": 3}}, "the run was forked from runs/gone, which does not exist"),
    ],
)
def test_runs_that_cannot_be_reproduced_are_rejected_with_a_one_line_error(lit, trained, facts, why):
    edit(RunDir(trained), **{"git": {"commit": "HEAD", "dirty": False}, **facts})
    (trained / "code.patch").unlink(missing_ok=True)
    done = lit("reproduce", trained, "--here")
    assert done.status == 2
    assert done.err.startswith(f"error: {trained} cannot be reproduced: {why}")
    assert done.err.count("\n") == 1


def test_runs_without_provenance_or_with_several_versions_are_rejected(lit, trained):
    run = RunDir(trained)
    edit(run, git={"commit": "HEAD", "dirty": False})
    (entry,) = run.entries()
    (trained / "provenance.json").write_text(json.dumps([{**entry, "versions": {"torch": "1.0"}}, entry]))
    assert "different code, options or versions (versions)" in lit("reproduce", trained).err
    (trained / "provenance.json").write_text(json.dumps([entry]))
    (trained / "config.1.yaml").touch()
    assert "different code, options or versions (config.1.yaml)" in lit("reproduce", trained).err
    (trained / "provenance.json").unlink()
    assert "provenance.json, which records the commit, is missing" in lit("reproduce", trained).err
    assert "No such file" not in lit("reproduce runs/quickstart/tinny").err


def test_fails_outside_of_a_git_repository(lit, trained, workspace):
    edit(RunDir(trained), git={"commit": "HEAD", "dirty": False})
    shutil.rmtree(workspace / ".git")
    assert "git rev-parse failed" in lit("reproduce", trained, "--here").err


def changed(run, name, change):
    """Return a copy of a run with a changed file."""
    copy = RunDir(Path(f"copies/{len(list(Path('.').glob('copies/*')))}"))
    shutil.copytree(run.path, copy.path)
    change(copy.path / name)
    return copy


def scale(file, factor):
    content = torch.load(file, weights_only=True)
    content["state_dict"] = {key: value * factor for key, value in content["state_dict"].items()}
    torch.save(content, file)


def test_the_verdict_reflects_differences_in_weights_and_metrics(trained):
    run = RunDir(trained)
    last = "checkpoints/last.ckpt"
    assert compare_results(run, changed(run, last, lambda file: None)).verdict == "bit-identical"
    weights = compare_results(run, changed(run, last, lambda file: scale(file, 1.01)))
    assert (weights.verdict, weights.weights["last.ckpt"]) == ("equal within rounding", pytest.approx(0.01, rel=1e-3))
    rows = run.history()[1]
    row = next(row for row in rows if row["train/loss_step"])
    for factor, verdict in ((1.00001, "equal within rounding"), (1.01, "different")):
        value = str(float(row["train/loss_step"]) * factor)
        copy = changed(run, "metrics.csv", lambda f: f.write_text(f.read_text().replace(row["train/loss_step"], value)))  # noqa: B023
        found = compare_results(run, copy)
        assert (found.verdict, len(found.metrics), found.extremes["first"].metric) == (verdict, 1, "train/loss_step")
        assert found.extremes["first"].place == f"step {row['step']} (epoch {row['epoch']})"
        assert found.extremes["largest"].size == pytest.approx(factor - 1, rel=0.1)
    steps = run.metrics()["fit"]["steps"]
    fewer = changed(
        run, "metrics.json", lambda f: f.write_text(f.read_text().replace(f'"steps": {steps}', '"steps": 9'))
    )
    assert (found := compare_results(run, fewer)).verdict == "different"
    assert f"first difference: fit: steps 9 instead of {steps}" in "\n".join(found.lines())
    best = run.metrics()["fit"]["best_checkpoint"]  # rounding may decide which of two equally good epochs is the best
    tie = changed(run, "metrics.json", lambda f: f.write_text(f.read_text().replace(best, "best-epoch999.ckpt")))
    assert compare_results(run, tie).verdict == "bit-identical"
    bare = changed(run, "checkpoints", shutil.rmtree)
    assert [*compare_results(run, bare).lines()] == [
        "equal within rounding: all recorded metrics agree; no checkpoints to compare"
    ]


def fake_uv(folder, script):
    """Create a fake `uv` program, and return a PATH that starts with its folder."""
    folder.mkdir()
    (folder / "uv").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "uv").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


LOCK = """numpy==1.0 \\
    --hash=sha256:00
nvidia-cublas==13 ; sys_platform == 'linux' \\
    --hash=sha256:00
colorama==0.4 ; os_name == 'nt' \\
    --hash=sha256:00
    # via torch
"""


def test_the_environment_has_the_recorded_and_the_locked_versions(trained, workspace, monkeypatch, lit):
    (workspace / "requirements.lock").write_text(LOCK)
    monkeypatch.setenv("PATH", fake_uv(workspace / "bin", 'echo "$@" >> calls'))
    versions = {"python": "3.11.7", "mine": "0.1", "torch": "2.8.0+cpu", "numpy": "2.1", "absent": None}
    lit("examples")  # sets the current project
    python = code.create_environment(RunDir(trained), versions, workspace, workspace)
    assert python == workspace / "environment" / "bin" / "python"
    assert (workspace / "requirements.txt").read_text().splitlines() == [
        "numpy==2.1", "colorama==0.4 ; os_name == 'nt'", "torch==2.8.0+cpu",
    ]  # fmt: skip
    venv, install = (workspace / "calls").read_text().splitlines()
    assert venv == f"--quiet --project / venv --python 3.11.7 {workspace}/environment"
    assert "--torch-backend cpu" in install
    assert install.endswith(f"--editable {workspace}")


def test_a_failing_or_missing_uv_causes_a_one_line_error(trained, workspace, monkeypatch, lit):
    edit(RunDir(trained), git={"commit": "HEAD", "dirty": False})
    monkeypatch.setenv("PATH", fake_uv(workspace / "bin", "printf '  × No network\\n  ╰─▶ at all\\n' >&2; exit 2"))
    done = lit("reproduce", trained)
    why = "uv venv failed: No network at all; --here uses the current environment"
    assert done.err == f"error: {trained} cannot be reproduced: {why}\n"
    monkeypatch.setattr(code.shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert lit("reproduce", trained).err.startswith("error: uv is needed to install the recorded versions")


def test_the_library_of_a_generated_project_comes_from_its_wheel(trained, workspace, lit):
    (workspace / "vendor").mkdir()
    with zipfile.ZipFile(workspace / "vendor" / "lit_engine-0.9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("lit_engine/__init__.py", "")
    (workspace / "pyproject.toml").touch()
    git("add", "--force", "vendor", "pyproject.toml")
    git("commit", "-qm", "vendor")
    lit("examples")
    (workspace / "scratch").mkdir()
    with code.checkout(RunDir(trained), {"commit": "HEAD"}, workspace / "scratch") as found:
        assert found.project == workspace / "scratch" / "code"
        source, library, here = map(Path, found.python_path)
        assert (source / "mine" / "__main__.py").exists()
        assert (library / "lit_engine" / "__init__.py").exists()
        assert here == found.project
    assert not found.project.exists()


@pytest.mark.slow
def test_a_module_on_pythonpath_is_found_and_only_python_files_are_listed(
    lit, workspace, monkeypatch, tmp_path_factory
):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "own_callback.py").write_text("from lightning.pytorch import Callback\nclass Own(Callback): pass\n")
    monkeypatch.syspath_prepend(str(outside))
    monkeypatch.setenv("PYTHONPATH", str(outside), prepend=os.pathsep)
    for name in ("notes.txt", "other.py", "script.py"):
        (workspace / name).write_text("")
    assert lit(FIT, "--trainer.callbacks+=own_callback.Own").status == 0
    monkeypatch.setattr("lit_engine.tools.reproduce.command.create_environment", lambda *args: Path(sys.executable))
    done = lit(f"reproduce {RUN}")
    assert done.status == 0, done.err
    assert "note: code.patch does not contain other.py, script.py. " in done.out
    assert "notes.txt" not in done.out
    changes = json.loads(lit(f"reproduce {RUN} --json").out)["differences"]
    assert [change for change in changes if "code.patch" in change] == [
        "code.patch does not contain other.py, script.py"
    ]


def test_a_changed_module_outside_the_repository_is_the_likely_reason(lit, workspace, monkeypatch, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    module = outside / "shrinking.py"
    module.write_text(
        "from lightning.pytorch import Callback\nclass Shrink(Callback):\n"
        "    def on_train_start(self, trainer, pl_module):\n"
        "        for parameter in pl_module.parameters():\n            parameter.data *= 1.0\n"
    )
    monkeypatch.chdir(outside)
    monkeypatch.syspath_prepend(str(outside))
    fit = lit(FIT.replace("configs", f"{workspace}/configs"), "--trainer.callbacks+=shrinking.Shrink")
    assert fit.status == 0, fit.err
    (entry,) = RunDir(RUN).entries()
    assert entry["modules"] == {"shrinking.py": hashlib.sha256(module.read_bytes()).hexdigest()}
    module.write_text(module.read_text().replace("1.0", "0.25"))  # of another length, so that no .pyc file is reused
    done = lit(f"reproduce {RUN} --here")
    assert done.status == 3, done.err
    assert "most likely reason: shrinking.py has changed" in done.out.splitlines()
