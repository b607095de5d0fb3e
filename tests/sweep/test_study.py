"""The stored study: every point once, the same search after a crash, and not the study of another sweep."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import Engine, event

from lit_project.errors import UserError
from lit_project.sweep.config import SweepConfig
from lit_project.sweep.parameters import parameters_of
from lit_project.sweep.study import Study

COMMAND = ("fit", "--config", "configs/x.yaml", "--config", "${args_json_file}")


def sweep(method, **parameters):
    return SweepConfig(method, "val/score", True, tuple(parameters_of(parameters)), COMMAND, None, None)


GRID = sweep("grid", a={"values": [1, None, [2, 3]]}, b={"values": ["x", "y"]})
SPACE = {"a": {"min": 0.0, "max": 1.0}, "b": {"values": [1, 2, 3]}}


def test_a_grid_is_enumerated_once_over_crashes(tmp_path):
    found = []
    for _ in range(6):  # a new process a trial
        study = Study(tmp_path, GRID)
        job = study.next(100)
        found.append(job.values)
        study.finish(job.number, [0.5], "finished")
    assert found == list(GRID.grid())
    assert Study(tmp_path, GRID).next(100) is None


def test_unfinished_trials_are_found_again_and_no_others(tmp_path):
    study = Study(tmp_path, GRID)
    jobs = [study.next(100) for _ in range(4)]
    study.finish(jobs[0].number, [0.1], "finished")
    study.finish(jobs[2].number, [], "failed")
    assert Study(tmp_path, GRID).unfinished() == [jobs[1], jobs[3]]


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_a_search_that_goes_on_is_the_one_that_was_not_interrupted(tmp_path, method):
    config = sweep(method, **SPACE)

    def search(folder, again):
        folder.mkdir()
        study = Study(folder, config, seed=3)
        found = []
        for n in range(14):
            if n == again:
                study = Study(folder, config, seed=3)
            job = study.next(14)
            found.append(job.values)
            study.finish(job.number, [job.values["a"]], "finished")
        return found

    whole, cut = search(tmp_path / "whole", None), search(tmp_path / "cut", 7)
    assert whole == cut
    assert len({json.dumps(values) for values in whole}) == 14


@pytest.mark.parametrize("method", ["random", "bayes"])
def test_seeds_next_to_each_other_draw_other_points(tmp_path, method):
    draws = []
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        study = Study(tmp_path / str(seed), sweep(method, **SPACE), seed)
        draws += [study.next(5).values["a"] for _ in range(5)]
    assert len(set(draws)) == 15


def test_bayes_without_results_is_what_is_run_until_there_are_ten(tmp_path):
    draws = []
    for results in (True, False):
        (tmp_path / str(results)).mkdir()
        study = Study(tmp_path / str(results), sweep("bayes", **SPACE))
        draws.append([])
        for _ in range(13):
            job = study.next(13)
            draws[-1].append(job.values["a"])
            if results:
                study.finish(job.number, [job.values["a"]], "finished")
    assert draws[0][:10] == draws[1][:10]
    assert not set(draws[0][10:]) & set(draws[1][10:])


def test_bayes_finds_the_better_half(tmp_path):
    study = Study(tmp_path, sweep("bayes", **SPACE), seed=1)
    values = []
    for _ in range(40):
        job = study.next(40)
        values.append(job.values["a"])
        study.finish(job.number, [job.values["a"]], "finished")
    assert sum(values[20:]) / 20 > sum(values[:10]) / 10 + 0.2


def test_the_count_is_kept(tmp_path):
    study = Study(tmp_path, sweep("random", **SPACE))
    assert [study.next(2) is None for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(("maximize", "values"), [(True, (0.5, 0.95)), (False, (1.5, 0.9))])
def test_no_trial_begins_once_the_target_is_reached(tmp_path, maximize, values):
    study = Study(tmp_path, replace(GRID, maximize=maximize, target=0.9))
    study.finish(study.next(100).number, [0.99 if maximize else 0.1], "failed")
    study.finish(study.next(100).number, [values[0]], "finished")
    running, best = study.next(100), study.next(100)
    study.finish(best.number, [values[1]], "stopped")
    assert study.next(100) is None
    assert study.reached().number == best.number
    assert study.unfinished() == [running]  # it may go on


def test_the_target_may_change(tmp_path):
    study = Study(tmp_path, replace(GRID, target=0.5))
    study.finish(study.next(100).number, [0.6], "finished")
    assert study.next(100) is None
    assert Study(tmp_path, replace(GRID, target=0.7)).next(100) is not None


def test_rows_are_sorted_and_say_what_happened(tmp_path):
    study = Study(tmp_path, GRID)
    for history, state in (([0.1, 0.4, 0.2], "finished"), ([0.9], "stopped"), ([0.95], "failed"), ([0.5], "finished")):
        number = study.next(100).number
        study.note(number, error="out of memory" if state == "failed" else "")
        study.finish(number, history, state)
    study.next(100)
    rows = study.rows()
    assert [(row.number, row.state, row.value) for row in rows] == [
        (1, "stopped", 0.9), (3, "finished", 0.5), (0, "finished", 0.4), (2, "failed", 0.95), (4, "unfinished", None),
    ]  # fmt: skip
    assert rows[3].error == "out of memory"
    assert study.histories() == [[-0.1, -0.4, -0.2], [-0.9], [-0.95], [-0.5]]  # lower is better


def test_runs_are_found_where_the_folder_of_the_sweep_has_gone_to(tmp_path):
    (tmp_path / "here").mkdir()
    study = Study(tmp_path / "here", GRID)
    number = study.next(100).number
    study.note(number, run=str(tmp_path / "here" / "quickstart" / "trial-0000"))
    study.finish(number, [0.5], "finished")
    (tmp_path / "here").rename(tmp_path / "there")
    (row,) = Study(tmp_path / "there", GRID, create=False).rows()
    assert row.run == str(tmp_path / "there" / "quickstart" / "trial-0000")


def test_less_is_better_where_the_sweep_minimises(tmp_path):
    study = Study(tmp_path, replace(GRID, maximize=False))
    for history in ([3.0, 1.0, 2.0], [0.5]):
        study.finish(study.next(100).number, history, "finished")
    assert [row.value for row in study.rows()] == [0.5, 1.0]


def test_another_sweep_in_the_folder_is_refused(tmp_path):
    Study(tmp_path, GRID)
    with pytest.raises(UserError, match=r"holds another sweep \(its metric, parameters differ\)"):
        Study(tmp_path, replace(sweep("grid", c={"value": 1}), metric="val/loss"))
    Study(tmp_path, replace(GRID, run_cap=5))  # how many trials there are may change


def test_a_file_that_is_no_study(tmp_path):
    (tmp_path / "study.db").write_text("not a database, but long enough to look like one" * 100)
    with pytest.raises(UserError, match="cannot be used as the study of a sweep"):
        Study(tmp_path, GRID)


@pytest.fixture
def read_only():
    """Turns the database of a study into one that cannot be written, for root too."""

    def forbid(connection, record):
        connection.execute("pragma query_only = on")

    def turn(study=None):
        event.listen(Engine, "connect", forbid)
        if study is not None:
            study.optuna._storage._backend.engine.dispose()  # it connects anew

    yield turn
    event.remove(Engine, "connect", forbid)


def test_a_study_that_can_no_longer_be_written(tmp_path, read_only):
    study = Study(tmp_path, GRID)
    number = study.next(100).number
    read_only(study)
    for write in (
        lambda: study.next(100),
        lambda: study.note(number, seconds=1.0),
        lambda: study.finish(number, [0.5], "finished"),
    ):
        with pytest.raises(UserError, match=r"cannot write .*study\.db: attempt to write a readonly database"):
            write()


def test_a_study_that_cannot_be_written_can_be_reported(tmp_path, read_only):
    study = Study(tmp_path, GRID)
    study.finish(study.next(100).number, [0.5], "finished")
    read_only()
    with pytest.raises(UserError, match=r"cannot write .*study\.db: attempt to write a readonly database"):
        Study(tmp_path, GRID)
    assert [row.value for row in Study(tmp_path, GRID, create=False).rows()] == [0.5]


def test_a_report_on_nothing(tmp_path):
    with pytest.raises(UserError, match="holds no sweep"):
        Study(tmp_path, GRID, create=False)
