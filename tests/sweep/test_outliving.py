"""Trials that outlived a sweep that was killed: waited for, ended, recorded. Trials are `fake_fit.py`."""

import fcntl
import os
import signal
import time

import pytest
from grids import after, sweep

from lit_project.sweep import process
from lit_project.sweep.hyperband import Hyperband
from lit_project.sweep.process import Process


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

        after(runner, "found running", end)
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


@pytest.mark.parametrize(
    ("table", "state", "error"),
    [
        ("epoch,step,val/score\r\n0,0,nan\r\n", "failed", "val/score was never finite"),
        ("epoch,step,val/score\n0,0,0.7\n1,1,nan\n", "finished", ""),
    ],
)
def test_a_trial_that_outlived_its_sweep_and_diverged(running, tmp_path, table, state, error):
    runner, study, _ = running(sweep(curve=[[0.1]]), most=1)
    study.next(1)
    run = tmp_path / "x" / "trial-0000"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_bytes(table.encode())
    (run / "metrics.json").write_text('{"fit": {}}')
    assert runner.run() == 0
    assert [(row.state, row.error) for row in study.rows()] == [(state, error)]
    assert runner.run() == 0  # the same command again


@pytest.fixture
def outliving(running, tmp_path):
    """Starts the last trial of a sweep as one that was killed since had; `study` knows it as unfinished."""
    started = []

    def start(config, study):
        job = study.next(100)
        one = Process(job, tmp_path, tmp_path / "x" / f"trial-{job.number:04d}")
        options = [f"--runs_dir={tmp_path}", f"--run_name=trial-{job.number:04d}"]
        assert one.start(config, options, os.environ) == "started"
        started.append(one)
        while not one.history("val/score"):
            time.sleep(0.02)
        return one

    yield start
    for one in started:
        one._popen.kill()
        one._popen.wait()


def test_hyperband_ends_a_trial_that_outlived_its_sweep(running, outliving):
    config = sweep(Hyperband((2,), eta=2), curve=[[0.5], [0.6], [0.1] * 600], pause=0.1)
    runner, study, said = running(config)
    for value in (0.5, 0.6):
        study.finish(study.next(100).number, [value] * 4, "finished")
    one = outliving(config, study)
    assert runner.run() == 0
    assert said[0].startswith("trial 2 found running")
    assert [(row.state, row.value) for row in study.rows()][2] == ("stopped", 0.1)
    assert one._popen.wait() == -signal.SIGTERM


def test_a_signal_ends_a_trial_that_outlived_its_sweep(running, outliving):
    config = sweep(curve=[[0.1] * 600], pause=0.1)
    runner, study, _ = running(config)
    one = outliving(config, study)
    after(runner, "found running", os.kill, os.getpid(), signal.SIGTERM)
    assert runner.run() == 128 + signal.SIGTERM
    assert one._popen.wait() == -signal.SIGTERM
    assert [row.state for row in study.rows()] == ["unfinished"]


def test_a_trial_of_another_machine_is_left_alone(running, outliving, tmp_path, monkeypatch):
    config = sweep(curve=[[0.1] * 600], pause=0.1)
    runner, study, _ = running(config)
    one = outliving(config, study)
    monkeypatch.setattr(process.platform, "node", lambda: "elsewhere")
    after(runner, "found running", os.kill, os.getpid(), signal.SIGTERM)
    assert runner.run() == 128 + signal.SIGTERM
    assert one.exit_status() is None
