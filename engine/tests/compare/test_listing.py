"""Tests the columns, order, folders and JSON output of `runs`, and the JSON output of `compare`."""

import json
from pathlib import Path

import pytest

ACCURACY = {"test/accuracy": 0.9}


@pytest.fixture
def printed(say):
    """Return a function that runs a command and returns its standard output."""

    def run(command):
        status, out, err = say(command)
        assert status == 0, err
        return out

    return run


def order(table):
    return [Path(line.split()[0]).name for line in table.splitlines()[1:] if not line.startswith("page: ")]


def test_the_main_metric_of_the_task_is_shown_next_to_the_monitored_metric(make_run, printed):
    run = make_run("a", test=ACCURACY, headline="accuracy")
    (run / "metrics.csv").write_text("epoch,step,val/loss,val/accuracy\n0,10,0.3,0.8\n")
    head, line = printed("runs").splitlines()
    assert head.split() == ["run", "state", "started", "time", "best", "validation", "test"]
    assert line.split("  ")[-3:] == ["val/loss 0.3000", "val/accuracy 0.8000", "test/accuracy 0.9000"]


def test_the_test_metric_of_a_plain_lightning_module_is_shown(make_run, printed):
    (make_run("a") / "metrics.json").write_text('{"test": {"test_f1": 0.5}}')
    assert printed("runs").splitlines()[1].endswith("test_f1 0.5000")


def test_runs_are_sorted_by_time_name_or_metric(make_run, printed):
    make_run("c", (0.2,), test={"test/accuracy": 0.5}, time="2026-11-20T00:00:00+00:00")
    make_run("a", (0.6,), test={"test/accuracy": 0.9}, time="2026-11-22T00:00:00+00:00")
    make_run("b", (0.4,), None, time="2026-11-21T00:00:00+00:00")
    assert order(printed("runs")) == ["a", "b", "c"]
    assert order(printed("runs --sort name")) == ["a", "b", "c"]
    assert order(printed("runs --sort val/loss")) == ["c", "b", "a"]  # mode of the monitored metric: min
    assert order(printed("runs --sort accuracy")) == ["a", "c", "b"]  # runs without a value come last
    assert printed("runs --metric accuracy loss").splitlines()[0].split()[-4:] == [
        "val/accuracy", "test/accuracy", "val/loss", "test/loss"
    ]  # fmt: skip
    table = [line.split()[-3:] for line in printed("runs --metric val/loss train/loss epochs").splitlines()[:2]]
    assert table == [["val/loss", "train/loss", "epochs"], ["0.6000", "0.1000", "1"]]


def test_runs_can_be_filtered_by_state(make_run, printed, say):
    make_run("a"), make_run("b", status=None)
    assert order(printed("runs --state finished")) == ["a"]
    assert order(printed("runs --state finished --state killed")) == ["a", "b"]
    for state, message in (("done", "invalid choice: 'done'"), ("failed", "no run is failed")):
        status, _, err = say(f"runs --state {state}")
        assert (status, message in err) == (2, True)


def test_runs_whose_metric_is_nan_come_last(make_run, printed):
    for name, score in (("a", 0.5), ("b", float("nan")), ("c", 0.7)):
        make_run(name, test={"test/accuracy": score})
    assert order(printed("runs --sort accuracy")) == ["c", "a", "b"]


def test_a_metric_that_no_run_has_is_an_error(make_run, say):
    make_run("a")
    for option in ("--sort", "--metric"):
        status, _, err = say(f"runs {option} lss")
        assert (status, "no run has the metric lss; did you mean loss?" in err) == (2, True)


def test_runs_in_the_repeats_folder_are_listed_by_default(make_run, printed):
    make_run("a"), Path("repeats").mkdir(), Path("sweeps", "empty").mkdir(parents=True)
    make_run("b").rename("repeats/b")
    assert set(order(printed("runs"))) == {"a", "b"}
    assert order(printed("runs runs")) == ["a"]


def test_json_contains_every_run_and_nothing_else_is_printed(make_run, printed):
    make_run("a", seed=3), make_run("b", (float("nan"),), None)
    found = {Path(run["path"]).name: run for run in json.loads(printed("runs --json"))["runs"]}
    assert found["a"]["metrics"] == {"val/loss": 0.3, "test/loss": 0.7, "epochs": 3, "train/loss": 0.1}
    assert (found["a"]["monitor"], found["a"]["mode"], found["a"]["seconds"]) == ("val/loss", "min", 90)
    assert found["a"]["options"]["seed_everything"] == 3
    assert found["b"]["state"] == "killed"
    assert found["b"]["seconds"] is None


def test_json_of_a_comparison_has_a_mean_for_each_group(make_run, printed):
    make_run("a", seed=1), make_run("b", (0.5, 0.2), seed=2), make_run("c", (0.9,), seed=1, lr=0.1)
    found = json.loads(printed("compare runs --over seed_everything --json"))
    assert found["differ"] == ["model.optimizer.lr"]
    best, other = found["rows"]
    assert [Path(run).name for run in best["runs"]] == ["a", "b"]
    assert best["options"] == {"model.optimizer.lr": 0.01}
    assert best["metrics"]["val/loss"] == {"mean": pytest.approx(0.25), "sd": pytest.approx(0.5**0.5 / 10), "n": 2}
    assert other["metrics"]["val/loss"] == {"mean": 0.9, "sd": None, "n": 1}
    assert Path(found["page"]).exists()
    assert len(found["runs"]) == 3


def test_columns_whose_values_are_all_equal_are_dropped_first(make_run, monkeypatch):
    from lit_engine.tools.runs import columns

    monkeypatch.setattr(columns.sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "16")
    table = [columns.Column("run", ["a", "b"]), columns.Column("state", ["finished", "finished"]),
             columns.Column("lr", ["0.001", "0.002"], 3)]  # fmt: skip
    assert columns.in_terminal(table)[0].split() == ["run", "lr"]
