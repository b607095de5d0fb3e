"""How a sweep runs its trials: failures, early ends, several at a time, signals. Trials are `fake_fit.py`."""

import os
import signal
from dataclasses import replace

import pytest
from grids import after, sweep

from lit_project.errors import UserError
from lit_project.sweep.hyperband import Hyperband
from lit_project.sweep.process import environment_of


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


def test_the_others_end_in_order_where_a_metric_is_not_logged(running):
    runner, study, _ = running(sweep(curve=[[0.1], [0.1] * 600], name="val/scores", pause=0.1), workers=2)
    with pytest.raises(UserError, match="did not log val/score"):
        runner.run()
    assert [row.state for row in study.rows()] == ["failed", "unfinished"]
    assert all(process.exit_status() is not None for process in runner.slots)


def test_a_trial_that_diverges_at_once_fails_and_the_sweep_goes_on(running):
    runner, study, _ = running(sweep(curve=[["nan", "nan"], ["inf"], [0.2]]))
    assert runner.run() == 0
    assert [(row.state, row.error) for row in study.rows()] == [
        ("finished", ""), ("failed", "val/score was never finite"), ("failed", "val/score was never finite"),
    ]  # fmt: skip


def test_the_target_ends_the_sweep(running):
    runner, study, said = running(replace(sweep(curve=[[0.1], [0.9], [0.2]]), target=0.5))
    assert runner.run() == 0
    assert [row.value for row in study.rows()] == [0.9, 0.1]
    assert said[-1] == "trial 1 has reached the target 0.5"


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
    after(runner, "started", os.kill, os.getpid(), signal.SIGTERM)
    assert runner.run() == 128 + signal.SIGTERM
    assert [row.state for row in study.rows()] == ["unfinished"]
    assert runner.slots[0].exit_status() is not None  # no trial was left behind
    runner, study, _ = running(replace(config))
    assert runner.run() == 0
    assert [row.state for row in study.rows()] == ["finished"] * 2


def test_a_folder_that_can_no_longer_be_written(running, tmp_path):
    runner, study, _ = running(sweep(curve=[[0.1]]))
    (tmp_path / "logs").write_text("")
    with pytest.raises(UserError, match=r"cannot start trial 0: .*logs"):
        runner.run()
    assert [row.state for row in study.rows()] == ["unfinished"]


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
