"""`lit-project sweep` with real fits: the shipped sweeps, mistakes before the first trial, and kill -9."""

import csv
import importlib.util
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SWEEPS = sorted(path.name for path in (ROOT / "configs" / "sweeps").glob("*.yaml"))
TINY = {"class_path": "lit_project.models.MLP", "init_args": {"hidden_sizes": [32], "norm": "none"}}


@pytest.fixture
def written(workspace):
    """Writes the shipped sweep of the quickstart with other parameters and keys; returns the file's name."""

    def write(parameters, **changes):
        content = yaml.safe_load((ROOT / "configs" / "sweeps" / "quickstart_cnn.yaml").read_text())
        content["parameters"] = {"model.net": {"value": TINY}, "trainer.max_epochs": {"value": 2}, **parameters}
        (workspace / "sweep.yaml").write_text(yaml.safe_dump({**content, **changes}))
        return "sweep.yaml"

    return write


def trials(folder):
    with (Path(folder) / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", SWEEPS)
def test_the_command_line_accepts_the_shipped_sweeps(lit, name):
    result = lit(f"sweep configs/sweeps/{name} --dry_run")
    assert result.status == 0, result.err
    commands = [line for line in result.out.splitlines() if line.startswith("lit-project fit ")]
    content = yaml.safe_load((ROOT / "configs" / "sweeps" / name).read_text())
    assert len(commands) == content.get("run_cap", 4)
    assert all("--config configs/" in line and "--run_name=trial-" in line for line in commands)
    assert not Path("sweeps").exists()
    assert f"lit-project sweep configs/sweeps/{name}" in (ROOT / "configs" / "sweeps" / name).read_text()


def test_a_system_without_its_locks_is_told_before_a_trial(lit, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("lit_project.sweep.command.find_spec", lambda name: None if name == "fcntl" else find(name))
    result = lit("sweep configs/sweeps/quickstart_cnn.yaml")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert "WSL" in result.err
    assert not Path("sweeps").exists()


@pytest.mark.timeout(280)
def test_the_command_line_accepts_every_command_of_a_dry_run(lit, workspace, capfd):
    printed = lit("sweep configs/sweeps/quickstart_cnn.yaml --dry_run --dir found").out.splitlines()
    assert len(printed) == 8
    for number, (command, values) in enumerate(zip(printed[::2], printed[1::2], strict=True)):
        program, *words = shlex.split(command)
        file, point = values.strip().split(": ", 1)
        assert program == "lit-project"
        (workspace / file).parent.mkdir(parents=True, exist_ok=True)
        (workspace / file).write_text(point)
        with pytest.raises(SystemExit) as ended:
            lit(words, "--print_config")
        shown = capfd.readouterr()
        assert not ended.value.code, shown.err
        config = yaml.safe_load(shown.out)
        assert config["run_name"] == f"trial-{number:04d}"
        assert (config["runs_dir"], config["test_after_fit"], config["trainer"]["logger"]) == ("found", False, None)
        net, optimizer = config["model"]["init_args"]["net"], config["model"]["init_args"]["optimizer"]
        assert net["init_args"]["dropout"] == json.loads(point)["model.net.dropout"]
        assert optimizer["init_args"]["lr"] == json.loads(point)["model.optimizer.lr"]


def test_all_wrong_names_are_said_before_the_first_trial(lit, written):
    file = written({"model.optimizer.lrr": {"value": 0.1}, "data.batchsize": {"value": 3}})
    result = lit(f"sweep {file}")
    assert result.status == 2
    assert "parameter model.optimizer.lrr: " in result.err
    assert "parameter data.batchsize: " in result.err
    assert not Path("sweeps").exists()


def test_a_value_of_the_wrong_type_is_said_before_the_first_trial(lit, written):
    result = lit(f"sweep {written({'data.batch_size': {'values': [32, 'many']}})}")
    assert result.status == 2
    assert "parameter data.batch_size: " in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--workers 0", "workers must be at least 1, got 0"),
        ("--count -1", "count must be at least 1, got -1"),
        ("--seed -1", "seed must be at least 0, got -1"),
        ("--report", "holds no sweep"),
        ("--worker 2", "no such option: --worker; did you mean --workers?"),
        ("--workers two", "--workers: invalid int value: 'two'"),
        ("--count", "--count needs a value"),
    ],
)
def test_options_are_checked(lit, written, options, message):
    result = lit(f"sweep {written({})} {options}")
    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_a_sweep_needs_a_file(lit):
    result = lit("sweep --workers 2")
    assert (result.status, result.out) == (2, "")
    assert result.err == "error: lit-project sweep needs FILE; see lit-project sweep --help\n"


def test_a_search_needs_an_end(lit, written):
    result = lit(f"sweep {written({}, method='random')}")
    assert result.status == 2
    assert "random search has no end: give --count N, or run_cap" in result.err
    assert "holds no sweep" in lit("sweep sweep.yaml --report").err  # which needs none


def test_a_folder_that_cannot_be_written(lit, written, tmp_path):
    (tmp_path / "file").write_text("")
    result = lit(f"sweep {written({})} --dir file/inside")
    assert result.status == 2
    assert "cannot write the sweep to file/inside" in result.err


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_kill_9_loses_no_finished_trial_and_unfinished_ones_go_on(workspace, written):
    # the second of three trials is long, so that the sweep can be killed within it
    file = written({"seed_everything": {"values": [1, 2]}, "trainer.max_epochs": {"values": [2, 40]}})
    command = [sys.executable, "-m", "lit_project", "sweep", file, "--count", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    first = subprocess.Popen(command, cwd=workspace, env=environment, stdout=subprocess.PIPE, text=True)
    folder = workspace / "sweeps" / "sweep" / "quickstart"
    long = folder / "trial-0001" / "checkpoints" / "last.ckpt"
    until(long.exists)
    first.kill()  # before the trial, so that it cannot see the end of it
    first.wait()
    kill_9(workspace, "trial-0001")
    first.communicate()
    done = folder / "trial-0000" / "metrics.json"
    before = done.stat().st_mtime_ns
    second = subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert "2 trials, 1 at a time, 1 done, 1 to go on with" in second.stdout
    assert "trial 1 resumed" in second.stdout
    assert done.stat().st_mtime_ns == before
    rows = trials(workspace / "sweeps" / "sweep")
    assert sorted((row["trial"], row["state"]) for row in rows) == [("0", "finished"), ("1", "finished")]
    assert json.loads((folder / "trial-0001" / "metrics.json").read_text())["fit"]["epochs"] == 40
    best = yaml.safe_load((workspace / "sweeps" / "sweep" / "best.yaml").read_text())
    assert best["trainer"]["logger"] is None
    assert best["model"]["init_args"]["net"]["class_path"] == "lit_project.models.MLP"
    page = (workspace / "sweeps" / "sweep" / "index.html").read_text()
    assert "trial-0001" in page
    for image in ("best_so_far.png", "importance.png", "parallel_coordinates.png"):
        assert (image in page) == (workspace / "sweeps" / "sweep" / image).exists()


def until(condition, seconds=200):
    """Waits for what another process does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def kill_9(folder, run_name):
    """Kills the trial with this name that was started from this folder."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            here = (entry / "cwd").resolve() == folder
        except OSError:
            continue
        if here and f"--run_name={run_name}" in words:
            os.kill(int(entry.name), signal.SIGKILL)
