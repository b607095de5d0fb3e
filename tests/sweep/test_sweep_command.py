"""`lit-project sweep` with real fits: the shipped sweeps, mistakes before the first trial, and kill -9."""

import csv
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
from sqlalchemy import Engine, event

from lit_project.sweep import command, study
from lit_project.sweep.config import SweepConfig
from lit_project.sweep.study import Study

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


@pytest.mark.timeout(280)
def test_the_command_line_accepts_every_command_of_a_dry_run(lit, workspace, capfd):
    printed = lit("sweep configs/sweeps/quickstart_cnn.yaml --dry_run --dir found").out.splitlines()
    assert len(printed) == 8
    for number, (printed_command, values) in enumerate(zip(printed[::2], printed[1::2], strict=True)):
        program, *words = shlex.split(printed_command)
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


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model.optimizer.lrr": {"value": 0.1}}, "lrr; did you mean lr?"),
        ({"data.batch_size": {"values": [32, "many"]}}, "many"),
    ],
)
def test_what_fit_does_not_accept_is_said_before_the_first_trial(lit, written, parameters, message):
    result = lit(f"sweep {written(parameters)}")
    assert result.status == 2
    assert "`fit` does not accept {" in result.err
    assert message in result.err
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--workers 0", "workers must be at least 1, got 0"),
        ("--count -1", "count must be at least 1, got -1"),
        ("--seed -1", "seed must be at least 0, got -1"),
        ("--report", "holds no sweep"),
        ("--worker 2", "--worker 2; did you mean --workers?"),
        ("--workers two", "--workers: invalid int value: 'two'"),
        ("--count", "--count: expected one argument"),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--storage=nothing", "cannot use the study in --storage: Could not parse SQLAlchemy URL"),
        ("--storage=sqlite:///none/all.db", "cannot use the study in --storage: unable to open database file"),
        ("--dir=.", "cannot use the study in study.db: file is not a database"),
    ],
)
def test_a_study_that_cannot_be_used(lit, written, workspace, options, message):
    (workspace / "study.db").write_text("not a database, but long enough to look like one" * 100)
    result = lit(f"sweep {written({})} --report", options)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_disk_that_is_full(lit, written, monkeypatch):
    def full(connection, record):
        connection.execute("pragma query_only = on")

    file = written({})
    Study(Path("sweeps/sweep"), SweepConfig.read(Path(file)))
    monkeypatch.setattr(command, "_check", lambda config, file: {})
    event.listen(Engine, "connect", full)
    try:
        result = lit(f"sweep {file}")
    finally:
        event.remove(Engine, "connect", full)
    assert result.status == 2
    assert "cannot use the study in sweeps/sweep/study.db: attempt to write a readonly database" in result.err


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_kill_9_loses_no_finished_trial_and_unfinished_ones_go_on(workspace, written, lit, monkeypatch):
    # the second of two trials is long, so that the sweep can be killed within it
    file = written({"trainer.max_epochs": {"values": [2, 40]}})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    first = subprocess.Popen([sys.executable, "-m", "lit_project", "sweep", file], cwd=workspace, env=environment)
    folder = workspace / "sweeps" / "sweep" / "quickstart"
    until((folder / "trial-0001" / "checkpoints" / "last.ckpt").exists)
    first.kill()  # before the trial, so that it cannot see the end of it
    first.wait()
    kill_9(workspace, "trial-0001")
    before = (folder / "trial-0000" / "metrics.json").stat().st_mtime_ns
    monkeypatch.setattr(study, "GRACE", 2)
    monkeypatch.setattr(study, "HEARTBEAT", 1)
    result = lit(f"sweep {file} --workers 2")
    assert result.status == 0, result.err
    assert "2 trials, 2 at a time, 2 begun" in result.out
    assert "trial 1 resumed" in result.out
    assert (folder / "trial-0000" / "metrics.json").stat().st_mtime_ns == before
    with (workspace / "sweeps" / "sweep" / "trials.csv").open() as table:
        assert sorted((row["trial"], row["state"]) for row in csv.DictReader(table)) == [
            ("0", "finished"), ("1", "finished"),
        ]  # fmt: skip
    assert json.loads((folder / "trial-0001" / "metrics.json").read_text())["fit"]["epochs"] == 40
    best = yaml.safe_load((workspace / "sweeps" / "sweep" / "best.yaml").read_text())
    assert best["trainer"]["logger"] is None
    assert best["model"]["init_args"]["net"]["class_path"] == "lit_project.models.MLP"
    assert "trial-0001" in (workspace / "sweeps" / "sweep" / "index.html").read_text()
    again = lit(f"sweep {file} --report")
    assert (again.status, again.out.splitlines()[:3]) == (0, result.out.splitlines()[-6:-3])


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
