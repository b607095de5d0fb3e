"""Tests `toy sweep`: errors before the first trial, overrides, JSON output, and studies that cannot be used."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Engine, event

from lit_engine.tools.sweep import command, worker
from lit_engine.tools.sweep.config import SweepConfig
from lit_engine.tools.sweep.study import Study

TINY = {"class_path": "MLP", "init_args": {"hidden_sizes": [32]}}


@pytest.fixture
def written(workspace):
    """Return a function that writes a sweep with the given parameters and keys, and returns the file name."""

    def write(parameters, **changes):
        content = yaml.safe_load(Path("configs/sweeps/grid.yaml").read_text())
        content["parameters"] = {"model.net": {"value": TINY}, "trainer.max_epochs": {"value": 2}, **parameters}
        (workspace / "sweep.yaml").write_text(yaml.safe_dump({**content, **changes}))
        return "sweep.yaml"

    return write


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"model.optimizer.lrr": {"value": 0.1}}, "did you mean lr?"),
        ({"data.batch_size": {"values": [32, "many"]}}, "many"),
    ],
)
def test_values_that_fit_rejects_are_reported_before_the_first_trial(lit, written, parameters, message):
    result = lit(f"sweep {written(parameters)}")
    assert result.status == 2
    assert "`fit` does not accept {" in result.err
    assert message in result.err
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--worker 2", "--worker 2; did you mean --workers?"),
        ("--workers 0", "--workers: must be at least 1, got 0"),
        ("--workers two", "--workers: invalid int value: 'two'"),
        ("--trainer.max_epoch=2", "--trainer.max_epoch=2; did you mean --trainer.max_epochs?"),
        ("-c configs/overlays/emo.yaml", "did you mean configs/overlays/ema.yaml?"),
        ("--trainer.max_epochs=2", "--trainer.max_epochs cannot be set, because the sweep varies trainer.max_epochs"),
    ],
)
def test_invalid_options_cause_one_line_errors(lit, written, options, message):
    result = lit(f"sweep {written({})} {options}")
    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_overrides_apply_to_each_trial_and_identify_the_sweep(lit, written):
    file = written({"model.optimizer.lr": {"values": [0.01, 0.02]}})
    result = lit(f"sweep --data.batch_size 64 {file} --dry_run -c configs/overlays/ema.yaml")
    assert result.out.count(" --data.batch_size=64 --config=configs/overlays/ema.yaml --config values.json") == 2
    assert lit(f"sweep {file} --data.batch_size=64 --report").err == ""
    for other in ("--data.batch_size=32", ""):
        again = lit(f"sweep {file} --report {other}")
        assert again.status == 2
        assert "sweeps/sweep was started with different --data.batch_size: choose" in again.err


def test_a_dry_run_prints_its_commands_as_json(lit, written):
    file = written({"model.optimizer.lr": {"values": [0.01, 0.02]}})
    commands = json.loads(lit(f"sweep {file} --dry_run --json").out)["commands"]
    assert [one["values"]["model.optimizer.lr"] for one in commands] == [0.01, 0.02]
    assert all(one["command"].endswith(" --config values.json") for one in commands)


def test_a_sweep_is_not_continued_with_a_changed_config(lit, written, monkeypatch):
    monkeypatch.setattr(worker.Workers, "run", lambda self: 0)
    file, config = written({"model.optimizer.lr": {"values": [0.01, 0.02]}}), Path("configs/quickstart.yaml")
    assert lit(f"sweep {file} --seed_everything=true").err == ""
    assert lit(f"sweep {file} --seed_everything=true").err == ""  # a new seed is not a change
    text = config.read_text()
    for old, new, changed in (
        ("batch_size: 64", "batch_size: 32", "data.batch_size"),
        ("Figures", "Figures\n    - class_path: EMA", "trainer.callbacks.EMA"),
        ("schedulers:\n      - scheduler: {class_path: OneCycleLR}\n        interval: step", "schedulers: null",
         "model.schedulers[0].scheduler"),
    ):  # fmt: skip
        config.write_text(text.replace(old, new))
        result = lit(f"sweep {file} --seed_everything=true")
        assert result.status == 2
        message = f"the trials in sweeps/sweep used different values of {changed}: choose another --dir"
        assert result.err == f"error: {message}\n"


def test_a_sweep_needs_a_file(lit):
    result = lit("sweep --workers 2")
    assert (result.status, result.out) == (2, "")
    assert result.err == "error: toy sweep needs FILE; see toy sweep --help\n"


def test_a_random_search_needs_a_limit(lit, written):
    result = lit(f"sweep {written({}, method='random')}")
    assert result.status == 2
    assert "random search never ends: set --count N, or run_cap" in result.err
    assert lit("sweep sweep.yaml --report").out.startswith("0 trials: none yet")  # a report needs no limit


def test_json_lists_the_trials_and_the_best(lit, written, workspace, monkeypatch):
    file = written({"model.optimizer.lr": {"values": [0.01]}})
    result = lit(f"sweep {file} --json")
    assert result.status == 0, result.err
    printed = json.loads(result.out)
    assert (printed["dir"], printed["page"]) == ("sweeps/sweep", "sweeps/sweep/index.html")
    (trial,) = printed["trials"]
    assert printed["best"] == trial
    assert (trial["state"], trial["values"]["model.optimizer.lr"]) == ("finished", 0.01)
    recorded = json.loads(Path(trial["run"], "metrics.json").read_text())["fit"]["val/loss"]
    assert trial["value"] == pytest.approx(recorded, rel=1e-5)
    monkeypatch.setenv("HOME", str(workspace))  # a shell does not expand ~ after =
    again = json.loads(lit(f"sweep {file} --report --json --dir=~/sweeps/sweep").out)
    assert (again["dir"], again["best"]["value"]) == (f"{workspace}/sweeps/sweep", trial["value"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--storage=nothing", "cannot use the study in --storage: Could not parse SQLAlchemy URL"),
        ("--storage=postgresql://me@host:port/db", "cannot use the study in --storage: invalid literal for int()"),
        ("--storage=sqlite:///none/all.db", "cannot use the study in --storage: unable to open database file"),
        (
            "--storage=postgresql+psycopg://me:secret@127.0.0.1:1/db",
            "the study in --storage: connection failed: connection to server at "
            '"127.0.0.1", port 1 failed: Connection refused\n',
        ),
        (
            "--storage=postgresql+psycopg2://me@127.0.0.1:1/db",
            "No module named 'psycopg2'; postgresql+psycopg://… needs pip install 'psycopg[binary]'\n",
        ),
        ("--dir=.", "cannot use the study in .: file is not a database"),
        ("--dir=study.db/inside", "cannot use the study in study.db/inside: "),
    ],
)
def test_an_unusable_study_is_an_error_without_a_traceback(lit, written, workspace, options, message):
    (workspace / "study.db").write_text("not a database, but long enough to look like one" * 100)
    result = lit(f"sweep {written({})} --report", options)
    assert result.status == 2
    assert message in result.err
    assert "Traceback" not in result.err


def test_a_study_from_a_different_optuna_version_is_an_error(lit, written):
    file = written({})
    Study(Path("sweeps/sweep"), SweepConfig.read(Path(file)))
    with closing(sqlite3.connect("sweeps/sweep/study.db")) as database, database:
        database.execute("update alembic_version set version_num = 'v2.6.0.a'")
    result = lit(f"sweep {file} --report")
    assert result.status == 2
    assert "error: cannot use the study in sweeps/sweep: The runtime optuna version" in result.err


def test_a_study_that_cannot_be_written_is_an_error(lit, written, monkeypatch):
    def full(connection, record):
        connection.execute("pragma query_only = on")

    file = written({})
    Study(Path("sweeps/sweep"), SweepConfig.read(Path(file)))
    monkeypatch.setattr(command, "_check", lambda *_: ([], {}))
    event.listen(Engine, "connect", full)
    try:
        result = lit(f"sweep {file}")
    finally:
        event.remove(Engine, "connect", full)
    assert result.status == 2
    assert "cannot use the study in sweeps/sweep: attempt to write a readonly database" in result.err
