"""Tests how trials are sampled, run, resumed, stopped, stored and reported. Trials run `fake_fit.py`."""

import csv
import html
import json
import os
import re
import signal
import time
from pathlib import Path

import optuna
import pytest
import torch
import yaml
from optuna.exceptions import StorageInternalError

from lit_engine.errors import UserError
from lit_engine.tools.sweep import report, study, worker
from lit_engine.tools.sweep.study import Study, TrialEnded
from lit_engine.tools.sweep.worker import build_environment

SPACE = {"a": {"min": 0.0, "max": 1.0}, "b": {"values": [1, 2, 3]}}


def killed_worker(make, run):
    """Start a trial in a worker and kill the worker. Return the PID of the trial's `fit`, which continues."""
    worker = os.fork()
    if not worker:
        make().run()
        os._exit(0)
    while not ((run / "metrics.csv").exists() and len((run / "metrics.csv").read_text().splitlines()) > 1):
        time.sleep(0.02)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    return int((run / "pid").read_text())


def test_every_trial_is_an_ordinary_run(sweep, tmp_path):
    one = sweep(curve=[[0.1, 0.3], [0.5, 0.4]])
    assert one.run() == 0
    assert one.rows == [(1, "finished", 0.5), (0, "finished", 0.3)]
    assert (tmp_path / "s" / "x" / "trial-0001" / "config.yaml").exists()
    assert any("trial 1 finished: val/score 0.5" in line for line in one.said)
    again = Study(tmp_path / "s", one.study.config)
    assert again.rows() == one.study.rows()
    said = len(one.said)
    assert one.run() == 0  # nothing left to do
    assert len(one.said) == said


def test_a_failing_trial_is_recorded_and_the_sweep_continues(sweep):
    one = sweep(curve=[["nan", "inf"], [0.2]], fail=["CUDA out of memory", None])
    assert one.run() == 0
    assert one.rows[0] == (3, "finished", 0.2)
    assert {(row.state, row.error) for row in one.study.rows()[1:]} == {
        ("failed", "CUDA out of memory"),
        ("failed", "val/score was never finite"),
    }
    assert any("trial 0 failed: CUDA out of memory" in line for line in one.said)


def test_a_trial_that_is_killed_is_resumed_once(sweep):
    one = sweep(options={"most": 2}, curve=[[0.1, 0.2, 0.3]], kill=[[0], [0, 1]])
    assert one.run() == 0
    assert one.rows == [(0, "finished", 0.3), (1, "failed", 0.2)]
    assert [line for line in one.said if "resumed" in line and "trial 0" in line]
    assert one.study.rows()[1].error == "killed twice, possibly because memory ran out"


def test_a_metric_that_is_not_logged_stops_all_workers(sweep):
    curves = [[0.1] * 20, [0.1] * 600]  # the first trial lasts until the second has started
    one = sweep(options={"workers": 2}, curve=curves, name="val/scores", pause=0.1)
    with pytest.raises(UserError, match=r"did not log val/score; did you mean val/scores\? \(logged: val/scores\)"):
        one.run()
    assert one.rows == [(0, "failed", None), (1, "stopped", None)]


def test_the_metric_is_minimised_by_default(sweep):
    one = sweep({"metric": {"name": "val/score"}}, curve=[[3.0, 1.0, 2.0], [0.5]])
    assert one.run() == 0
    assert one.rows == [(1, "finished", 0.5), (0, "finished", 1.0)]


def test_forks_are_ranked_by_their_own_epochs(sweep):
    one = sweep(curve=[[0.3, 0.5], [0.4]], parent=[[0.9, 0.8]])
    assert one.run() == 0
    assert one.rows == [(0, "finished", 0.5), (1, "finished", 0.4)]
    assert [attempt.intermediate_values for attempt in one.study.attempts()] == [{1: 0.3, 2: 0.5}, {1: 0.4}]


def test_hyperband_stops_worse_trials_early(sweep):
    early = {"type": "hyperband", "min_iter": 2, "eta": 2}
    curves = [[0.5, 0.6, 0.6], [0.7, 0.3] + [0.3] * 10, [0.1] * 600]
    one = sweep({"early_terminate": early}, curve=curves, pause=0.1)
    assert one.run() == 0
    assert one.rows == [(1, "finished", 0.7), (0, "finished", 0.6), (2, "stopped early", 0.1)]
    assert 2 <= len(one.study.attempts()[2].intermediate_values) < 600


def test_each_worker_runs_one_trial_at_a_time(sweep):
    one = sweep(options={"workers": 2}, curve=[[0.1] * 4], number=[1, 2, 3], pause=0.1)
    assert one.run() == 0
    assert next(n for n, line in enumerate(one.said) if "finished" in line) == 2
    assert sorted(row.values["number"] for row in one.study.rows()) == [1, 2, 3]


def test_processes_share_a_study_and_its_trial_count(sweep, read, tmp_path):
    """This test uses one process with several connections, because processes share only the storage."""
    one = sweep(options={"workers": 4, "most": 6}, curve=[[0.1]], number=list(range(9)))
    other = sweep(options={"workers": 4, "most": 6}, curve=[[0.1]], number=list(range(9)))
    one.then["trial 0 started"] = (lambda: other.workers._work(0),)
    assert one.run() == 0
    time.sleep(1)
    assert sorted(row.values["number"] for row in one.study.rows()) == list(range(6))
    sweep(options={"most": 9}, curve=[[0.1]], number=list(range(9))).run()
    assert sorted(row.values["number"] for row in one.study.rows()) == list(range(9))


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGUSR1, marks=pytest.mark.slow)])
def test_a_signal_stops_trials_and_the_next_call_resumes_them(sweep, number):
    one = sweep(curve=[[0.1] * 20], number=[1, 2], pause=0.1)
    one.then["trial 0 started"] = (os.kill, os.getpid(), number)
    assert one.run() == 128 + number
    assert one.rows == [(0, "stopped", None)]
    again = sweep(options={"workers": 4}, curve=[[0.1] * 20], number=[1, 2], pause=0.1)
    assert again.run() == 0
    assert sum("trial 0 resumed" in line for line in again.said) == 1  # exactly one worker resumes it
    assert again.rows == [(0, "finished", 0.1), (1, "finished", 0.1)]


def test_a_trial_resumes_after_a_database_failure(sweep, monkeypatch):
    one = sweep(curve=[[0.1, 0.2]], number=[1, 2])

    def away(trial, value, step):
        raise StorageInternalError("connection refused")

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "report", away)
        with pytest.raises(StorageInternalError):
            one.run()
    assert one.rows == [(0, "stopped", None)]
    assert sweep(curve=[[0.1, 0.2]], number=[1, 2]).run() == 0
    assert one.rows == [(0, "finished", 0.2), (1, "finished", 0.2)]


@pytest.mark.parametrize(
    "survives",
    [pytest.param(True, id="fit survives", marks=pytest.mark.slow), pytest.param(False, id="fit is killed")],
)
def test_the_trial_of_a_killed_worker_is_taken_over_by_another_worker(sweep, tmp_path, monkeypatch, survives):
    monkeypatch.setattr(study, "LOST_AFTER", 2)
    trials = {"curve": [[0.1] * 30, [0.2]], "pause": 0.1}
    fit = killed_worker(lambda: sweep(**trials), tmp_path / "s" / "x" / "trial-0000")
    if not survives:
        os.kill(fit, signal.SIGKILL)
    one = sweep(**trials)
    assert one.run() == 0
    assert one.rows == [(1, "finished", 0.2), (0, "finished", 0.1)]
    assert len((tmp_path / "s" / "x" / "trial-0000" / "metrics.csv").read_text().splitlines()) == 31


def test_workers_divide_the_threads_and_gpus(monkeypatch):
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [build_environment(0, workers, "a")["OMP_NUM_THREADS"] for workers in (4, 16)] == ["2", "1"]
    assert "CUDA_VISIBLE_DEVICES" not in build_environment(0, 1, "a")  # a single trial may use both GPUs
    assert [build_environment(n, 3, "a")["CUDA_VISIBLE_DEVICES"] for n in range(3)] == ["0", "1", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert build_environment(1, 2, "a")["CUDA_VISIBLE_DEVICES"] == "5"
    assert build_environment(1, 2, "a")["OMP_NUM_THREADS"] == "7"
    assert build_environment(0, 1, "a")["WANDB_RUN_GROUP"] == "a"


# --------------------------------------------------------------------------------------------------------- sampling


class Searched(Study):
    """A study whose trials end immediately, with `a` as their metric."""

    def search(self, count):
        found = []

        def objective(trial):
            self.begin(trial, "x")
            found.append(trial.user_attrs["values"]["a"])
            trial.report(found[-1], 1)
            return found[-1]

        self.connect().optimize(objective, n_trials=count)
        return found


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_a_resumed_search_matches_an_uninterrupted_one(tmp_path, read, method):
    config = read(method=method, parameters=SPACE)
    whole = Searched(tmp_path / "whole", config, seed=3).search(14)
    cut = [Searched(tmp_path / "cut", config, seed=3).search(7) for _ in range(2)]
    assert whole == [*cut[0], *cut[1]]
    assert len(set(whole)) == 14
    assert not set(whole) & set(Searched(tmp_path / "other", config, seed=4).search(3))
    assert method == "random" or sum(whole[10:]) / 4 > sum(whole[:10]) / 10  # the sampler favours better values


def test_rejects_the_folder_of_a_different_sweep(tmp_path, read):
    Study(tmp_path / "s", read())
    Study(tmp_path / "s", read(run_cap=5, name="b"))  # the number of trials may change
    with pytest.raises(UserError, match="was started with different metric, parameters: choose"):
        Study(tmp_path / "s", read(metric={"name": "val/loss"}, parameters={"c": {"value": 1}}))


def test_special_characters_in_the_folder_are_part_of_its_name(tmp_path, read):
    Study(tmp_path / "a%41" / "what?=1", read())
    assert (tmp_path / "a%41" / "what?=1" / "study.db").is_file()


def test_a_failed_trial_reports_the_exception_that_it_raised():
    printed = "Traceback (most recent call last):\n  raise KeyError(\"boom\")\nKeyError: 'boom'\nin epoch 1, step 2\n"
    assert worker._explain_status(1, printed) == "exit status 1: KeyError: 'boom'"


def test_trials_started_concurrently_do_not_exceed_the_count(tmp_path, read):
    """All machines ask for a trial before the first trial begins. Each machine has its own folder and lock."""
    config, url = read(), f"sqlite:///{tmp_path / 'all.db'}"
    machines = [Study(tmp_path / name / "s", config, url=url) for name in "abc"]
    trials = [machine.connect().ask() for machine in machines]
    assert [machine.begin(trial, "x", 2) for machine, trial in zip(machines[:2], trials[:2], strict=True)] == [0, 1]
    with pytest.raises(TrialEnded):
        machines[2].begin(trials[2], "x", 2)
    assert [row.values["b"] for row in machines[2].rows()] == ["x", "y"]
    assert (
        machines[0].begin(machines[0].connect().ask(), "x", 3) == 2
    )  # with --count 3, this is the next point of the grid


def test_the_state_of_an_unfinished_trial_is_read_from_its_run(tmp_path, read):
    one = Study(tmp_path / "s", read())
    one.begin(one.connect().ask(), "x")
    run = tmp_path / "s" / "x" / "trial-0000"
    run.mkdir(parents=True)
    (run / "config.yaml").touch()
    (run / "provenance.json").write_text('[{"status": null}]')
    assert [row.state for row in one.rows()] == ["killed"]


def test_two_sweeps_can_share_a_database(tmp_path, read):
    url = f"sqlite:///{tmp_path / 'all.db'}"
    for name in ("s", "t"):
        Searched(tmp_path / name, read(method="random", parameters=SPACE), url=url).search(2)
    for name in "st":
        assert len(Study(tmp_path / name, read(method="random", parameters=SPACE), url=url).rows()) == 2
    assert not (tmp_path / "s" / "study.db").exists()


# ---------------------------------------------------------------------------------------------------------- report


@pytest.mark.draws
def test_the_report_can_be_written_after_the_folder_was_moved(sweep, tmp_path):
    one = sweep(curve=[[0.1, 0.25], [0.5], [0.75]], fail=[None, "no <memory>"])
    one.run()
    one.study.folder.rename(tmp_path / "moved")
    moved = Study(tmp_path / "moved", one.study.config)
    report.write_report(moved, moved.rows())
    best, table = ((moved.folder / name).read_text() for name in ("best.yaml", "trials.csv"))
    assert best.startswith("# The best of 6 trials in a sweep: trial 4, val/score 0.75.\n")
    assert best.endswith('#\ndrawn: {"curve": [0.75], "fail": null}\ntest_after_fit: true\n')
    assert table.splitlines()[0] == "trial,state,val/score,curve,fail,seconds,run,host,error"
    assert table.splitlines()[1].startswith("4,finished,0.75,[0.75],,")
    assert table.splitlines()[-1].endswith("no <memory>")
    page = (moved.folder / "index.html").read_text()
    best = re.search(r'class="line"[^>]* d="M([^"]*)"', page)[1].split("L")  # a higher score is further up
    heights = [float(at.split()[1]) for at in best]
    assert len(heights) == 3
    assert heights == sorted(set(heights), reverse=True)
    assert re.findall('aria-label="(.*?)"', page) == ["val/score by trial", "val/score by curve"]  # fail does not vary
    assert "Importance" not in page
    assert report.lines(moved.rows(), "val/score")[-1] == "6 trials: 3 finished, 3 failed"


def test_the_table_shows_the_digits_of_small_values():
    trials = [study.Trial(k, "finished", v, {}, 1.0, Path("x"), "", "") for k, v in enumerate((1.2e-5, 0.25))]
    assert [line.split()[2] for line in report.lines(trials, "val/mse")[1:3]] == ["1.2e-05", "0.2500"]


def test_a_quantised_parameter_is_plotted(tmp_path, read):
    section = {"a": {"distribution": "q_uniform", "min": 0.0, "max": 1.0, "q": 0.25}, "b": {"value": [8, None]}}
    found = Searched(tmp_path / "s", read(method="random", parameters=section))
    assert set(found.search(20)) == {0.0, 0.25, 0.5, 0.75, 1.0}
    report.write_report(found, found.rows())
    page = (found.folder / "index.html").read_text()
    assert re.findall('aria-label="(.*?)"', page) == ["val/score by trial", "val/score by a"]


@pytest.mark.parametrize(("trials", "shown"), [(19, False), (20, True)])
def test_importance_is_shown_for_20_or_more_trials(tmp_path, read, trials, shown):
    section = {name: {"distribution": "uniform", "min": 0.0, "max": 1.0} for name in ("a", "noise")}
    found = Searched(tmp_path / "s", read(method="random", parameters=section))
    found.search(trials)
    rows = found.rows()
    assert bool(report.importances(found, rows)) == shown
    assert ("Importance of the parameters" in report.page_of(found, rows)) == shown
    if shown:
        assert report.importances(found, rows)["a"] > 0.8


def test_quantised_values_are_stored_as_they_were_used(sweep, tmp_path):
    section = {"curve": {"value": [0.5]}, "a": {"distribution": "q_uniform", "min": 0.1, "max": 0.9, "q": 0.1}}
    one = sweep({"method": "random", "parameters": section}, {"most": 3})
    assert one.run() == 0
    report.write_report(one.study, one.study.rows())
    used = [json.loads(file.read_text())["a"] for file in sorted((tmp_path / "s" / "values").iterdir())]
    assert all(repr(value) == f"{value:.1f}" for value in used)  # no 0.30000000000000004
    with (tmp_path / "s" / "trials.csv").open() as file:
        assert [row["a"] for row in csv.DictReader(file)] == [repr(value) for value in used]
    assert yaml.safe_load((tmp_path / "s" / "best.yaml").read_text())["drawn"]["a"] == used[0]


def test_the_command_for_the_best_config_includes_the_initial_weights(sweep, tmp_path):
    one = sweep({"method": "grid", "parameters": {"curve": {"value": [0.5]}}}, {"most": 1})
    assert one.run() == 0
    file = one.study.rows()[0].run / "provenance.json"
    file.write_text(json.dumps([{**json.loads(file.read_text())[0], "init_from": "runs/a b"}]))
    report.write_report(one.study, one.study.rows())
    for name in ("best.yaml", "index.html"):
        assert "best.yaml '--init_from=runs/a b'" in html.unescape((tmp_path / "s" / name).read_text())


def test_the_best_config_is_removed_if_all_trials_failed(sweep, tmp_path):
    one = sweep(fail="no memory", curve=[[1.0]])
    (tmp_path / "s" / "best.yaml").write_text("of a sweep before")
    one.run()
    report.write_report(one.study, one.study.rows())
    assert not (tmp_path / "s" / "best.yaml").exists()
