"""How a sweep runs its trials: failures, early ends, several at a time, crashes. Trials are `fake_fit.py`."""

import fcntl
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from lit_project.errors import UserError
from lit_project.sweep import process
from lit_project.sweep.config import SweepConfig
from lit_project.sweep.hyperband import Hyperband
from lit_project.sweep.process import environment_of
from lit_project.sweep.runner import Runner
from lit_project.sweep.space import parameters_of
from lit_project.sweep.study import Study

COMMAND = ("fit", "--config", "configs/x.yaml", "--config", "${args_json_file}")


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    monkeypatch.setattr(process, "PROGRAM", [sys.executable, str(Path(__file__).with_name("fake_fit.py"))])


def sweep(hyperband=None, **parameters):
    """A grid; lists are values, anything else is a constant."""
    section = {k: {"values": v} if k in ("curve", "fail", "number") else {"value": v} for k, v in parameters.items()}
    return SweepConfig("grid", "val/score", True, tuple(parameters_of(section)), COMMAND, hyperband, None)


@pytest.fixture
def running(tmp_path):
    """Runs a sweep in the test's folder and returns its study and what was said."""

    def run(config, workers=1, most=100):
        said = []
        study = Study(tmp_path, config)
        runner = Runner(study, tmp_path, tmp_path / "x", [f"--runs_dir={tmp_path}"], workers, most, say=said.append)
        return runner, study, said

    return run


def test_every_trial_is_an_ordinary_run(running, tmp_path):
    runner, study, said = running(sweep(curve=[[0.1, 0.3], [0.5, 0.4]]))
    assert runner.run() == 0
    assert [(row.number, row.state, row.value) for row in study.rows()] == [(1, "finished", 0.5), (0, "finished", 0.3)]
    assert (tmp_path / "x" / "trial-0001" / "config.yaml").exists()
    assert any("trial 1 finished: val/score 0.5" in line for line in said)


def test_a_failing_trial_is_recorded_and_the_sweep_goes_on(running):
    runner, study, said = running(sweep(curve=[[0.1]], fail=["CUDA out of memory", None]))
    assert runner.run() == 0
    assert [(row.state, row.error) for row in study.rows()] == [("finished", ""), ("failed", "CUDA out of memory")]
    assert any("trial 0 failed: CUDA out of memory" in line for line in said)


def test_a_metric_that_is_not_logged_is_said_after_the_first_trial(running):
    runner, study, _ = running(sweep(curve=[[0.1], [0.2]], name="val/scores"))
    with pytest.raises(UserError, match=r"did not log val/score; did you mean val/scores\? \(logged: val/scores\)"):
        runner.run()
    assert [row.state for row in study.rows()] == ["failed"]


def test_hyperband_ends_the_worse_trials_and_keeps_what_they_reached(running):
    good, better, bad = [0.5, 0.6, 0.7], [0.5, 0.6, 0.8], [0.1] * 600
    runner, study, _ = running(sweep(Hyperband((2,), eta=2), curve=[good, better, bad], pause=0.05))
    assert runner.run() == 0
    assert [(row.state, row.value) for row in study.rows()] == [("finished", 0.8), ("finished", 0.7), ("stopped", 0.1)]
    assert 2 <= len(study.histories()[2]) < 600


@pytest.mark.parametrize("workers", [1, 2])
def test_as_many_trials_at_a_time_as_workers(running, workers):
    runner, study, said = running(sweep(curve=[[0.1] * 4], number=[1, 2, 3], pause=0.1), workers=workers)
    assert runner.run() == 0
    first_end = next(n for n, line in enumerate(said) if "finished" in line)
    assert first_end == workers  # so many have been started before
    assert [row.state for row in study.rows()] == ["finished"] * 3


def test_a_signal_ends_trials_and_the_next_call_goes_on(running):
    config = sweep(curve=[[0.1] * 40], number=[1, 2], pause=0.1)
    runner, study, _ = running(config)
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert runner.run() == 128 + signal.SIGTERM
    assert [row.state for row in study.rows()] == ["unfinished"]
    assert runner.slots[0].exit_status() is not None  # no trial was left behind
    runner, study, _ = running(replace(config))
    assert runner.run() == 0
    assert [row.state for row in study.rows()] == ["finished"] * 2


def test_a_trial_that_outlived_its_sweep_is_waited_for(running, tmp_path):
    runner, study, said = running(sweep(curve=[[0.1, 0.2]]), most=1)
    job = study.next(1)
    run = tmp_path / "x" / "trial-0000"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("x: 1\n")
    (tmp_path / "logs").mkdir()
    with (tmp_path / "logs" / f"{job.number:04d}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as the process of a sweep that was killed holds it

        def end():
            (run / "metrics.csv").write_text("epoch,step,val/score\n0,0,0.7\n")
            (run / "metrics.json").write_text('{"fit": {}}')
            lock.close()

        threading.Timer(1.0, end).start()
        assert runner.run() == 0
    assert [(row.state, row.value) for row in study.rows()] == [("finished", 0.7)]
    assert "trial 0 found running" in said[0]


def test_a_trial_that_ended_before_its_record_is_not_run_again(running, tmp_path):
    runner, study, said = running(sweep(curve=[[0.1]]), most=1)
    study.next(1)
    run = tmp_path / "x" / "trial-0000"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text("epoch,step,val/score\n0,0,0.7\n")
    (run / "metrics.json").write_text('{"fit": {}}')
    assert runner.run() == 0
    assert [(row.state, row.value) for row in study.rows()] == [("finished", 0.7)]
    assert not any("started" in line for line in said)


def test_each_worker_has_its_part_of_the_machine(monkeypatch):
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert environment_of(0, 4)["OMP_NUM_THREADS"] == "2"
    assert "CUDA_VISIBLE_DEVICES" not in environment_of(0, 1, devices=2)  # one trial may use both
    assert [environment_of(n, 3, devices=2)["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert environment_of(1, 2, devices=2)["CUDA_VISIBLE_DEVICES"] == "5"
    assert environment_of(1, 2)["OMP_NUM_THREADS"] == "7"
