"""Tests for finding runs and reading their state, best epoch and options."""

import json
import subprocess
import sys
from itertools import pairwise

import pytest
import yaml
from filelock import FileLock

from lit_engine.errors import RunError
from lit_engine.run.directory import RunDir
from lit_engine.run.options import options_of
from lit_engine.tools.notify import select_main_metrics
from lit_engine.tools.runs.differences import find_differing_options
from lit_engine.tools.runs.reading import Run, read_runs


def test_counts_and_durations_are_not_main_metrics(make_run):
    run = make_run("a")
    (run / "metrics.csv").unlink()
    (run / "metrics.json").write_text('{"fit": {"epochs": 3, "steps": 30, "seconds": 9.5, "train/loss": 0.1}}')
    assert select_main_metrics(RunDir(run)) == {"train/loss": 0.1}


def test_without_metrics_csv_only_the_best_value_of_the_monitored_metric_is_known(make_run):
    run = make_run("a", (0.5, 0.3, 0.4))
    (run / "metrics.csv").unlink()
    sections = json.loads((run / "metrics.json").read_text())
    sections["fit"] |= {"val/loss": 0.4, "val/accuracy": 0.7}  # the last epoch
    (run / "metrics.json").write_text(json.dumps(sections))
    assert {name: value for name, value in Run.read(run).metrics.items() if name.startswith("val/")} == {
        "val/loss": 0.3
    }


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (0, "finished"),
        (1, "failed"),
        (2, "failed"),
        (129, "stopped"),
        (130, "stopped"),
        (143, "stopped"),
        (None, "killed"),
    ],
)
def test_state_is_derived_from_the_recorded_exit_status(make_run, status, state):
    assert RunDir.open(make_run("a", status=status)).state() == state


def test_a_locked_run_counts_as_running_and_reading_its_state_does_not_lock_it(make_run):
    run = RunDir.open(make_run("a", status=None))
    assert not (run.path / ".lock").exists()
    assert run.state() == "killed"
    assert not (run.path / ".lock").exists()
    with run.lock():
        assert run.state() == "running"
        assert Run.read(run.path).seconds > 0
    assert run.state() == "killed"
    with FileLock(run.path / ".lock").acquire(blocking=False):  # like `fit`
        pass


@pytest.mark.parametrize("losses", [(0.5, 0.3, 0.4, 0.3), (float("nan"), 0.3, float("inf"))])
@pytest.mark.parametrize("status", [0, None])
def test_finished_and_killed_runs_report_the_validation_loss_of_the_best_epoch(make_run, losses, status):
    run = make_run("a", losses, status)
    if status == 0:
        (run / "metrics.json").write_text('{"fit": {"best val/loss": 0.3000000119, "val/loss": 0.4}}')
    assert Run.read(run).metrics["val/loss"] == 0.3


def test_the_recorded_best_score_overrides_a_better_epoch_in_metrics_csv(make_run):
    run = make_run("a", (0.5, 0.3, 0.4))
    (run / "metrics.json").write_text('{"fit": {"best val/loss": 0.4}}')
    assert Run.read(run).metrics["val/loss"] == 0.4


def test_a_metrics_csv_without_the_best_validation_gives_no_metrics_of_other_epochs(make_run):
    run = make_run("a", (0.5, 0.4))
    (run / "metrics.json").write_text('{"fit": {"best val/loss": 0.3}}')
    assert Run.read(run).metrics == {"val/loss": 0.3}


def test_without_a_monitor_the_final_validation_metrics_are_reported(make_run):
    run = make_run("a", (0.5, 0.3, 0.4), config={"seed_everything": 1, "trainer": {"callbacks": None}})
    (run / "metrics.json").write_text('{"fit": {"val/loss": 0.4}}')
    assert Run.read(run).metrics["val/loss"] == 0.4
    (run / "metrics.csv").unlink()
    (run / "metrics.json").write_text('{"fit": {"val/loss": 0.7, "val/class_accuracy/cat": 1.0}}')
    assert Run.read(run).metrics == {"val/loss": 0.7}


def test_a_monitored_metric_of_a_single_class_is_a_metric(make_run):
    config = {"trainer": {"callbacks": [{"class_path": "p.Checkpoint", "init_args": {"monitor": "val/mse/price"}}]}}
    run = make_run("a", config=config)
    (run / "metrics.csv").write_text("epoch,step,val/mse/price,val/mse/rent\n0,1,3.0,1.0\n1,2,2.0,1.5\n")
    assert Run.read(run).metrics["val/mse/price"] == 2
    assert "val/mse/rent" not in Run.read(run).metrics


@pytest.mark.parametrize("step", [40, 10, 20])  # two optimizers, two batches per step, or neither
def test_a_fork_reports_the_best_of_its_own_epochs(make_run, step):
    fork = {"run": "runs/x/parent", "checkpoint": "last.ckpt", "epochs": 2, "step": step, "rows": 2}
    run = Run.read(make_run("child", (0.1, 0.2, 0.5, 0.4), status=None, fork=fork))
    assert (run.metrics["val/loss"], run.forked_at) == (0.4, (2, 11))  # 10 batches per row, starting at 0


def test_duration_is_summed_over_all_completed_fits(make_run):
    run = make_run("a")
    (first,) = json.loads((run / "provenance.json").read_text())
    killed = {name: value for name, value in first.items() if name != "seconds"} | {"status": None}
    last = {**first, "time": "2026-11-23T01:00:00+00:00", "seconds": 30.0}
    (run / "provenance.json").write_text(json.dumps([first, killed, last]))
    found = Run.read(run)
    assert found.seconds == 120
    assert f"{found.started:%H:%M}" == "22:31"


def test_options_use_command_line_names_and_include_classes():
    config = {
        "trainer": {
            "max_epochs": 3,
            "callbacks": [{"class_path": "p.A", "init_args": {"a": 1}}, {"class_path": "p.A"}],
        },
        "model": {
            "class_path": "p.M",
            "init_args": {
                "net": {"class_path": "p.models.cnn.CNN", "init_args": {"layers": [4, "pool"]}},
                "schedulers": [{"scheduler": {"class_path": "p.S", "init_args": {"x": None}}, "interval": "step"}],
                "schedule": {1: "net.body"},
            },
        },
    }
    assert dict(options_of(config)) == {
        "trainer.max_epochs": 3,
        "trainer.callbacks.A": "p.A",
        "trainer.callbacks.A.a": 1,
        "trainer.callbacks.A[2]": "p.A",
        "model": "p.M",
        "model.net": "p.models.cnn.CNN",
        "model.net.layers": [4, "pool"],
        "model.schedulers[0].scheduler": "p.S",
        "model.schedulers[0].scheduler.x": None,
        "model.schedulers[0].interval": "step",
        "model.schedule": {1: "net.body"},
    }


def test_models_with_the_same_name_and_reordered_classes_count_as_differences():
    def config(module, *layers):
        layers = [{"class_path": f"torch.nn.{layer}"} for layer in layers]
        return {"model": {"class_path": f"nets.{module}.Net", "init_args": {"layers": layers}}}

    def differing(one, other):
        return find_differing_options([dict(options_of(config(*parts))) for parts in (one, other)])

    assert differing(("v1", "ReLU", "Tanh"), ("v1", "ReLU", "Tanh")) == []
    assert differing(("v1", "ReLU", "Tanh"), ("v2", "ReLU", "Tanh")) == ["model"]
    assert differing(("v1", "ReLU", "Tanh"), ("v1", "Tanh", "ReLU")) == ["model.layers"]
    assert differing(("v1", "ReLU"), ("v1", "ReLU", "Tanh")) == ["model.layers.Tanh"]


def test_links_to_folders_are_followed_once(make_run, tmp_path):
    run = make_run("a")
    elsewhere = tmp_path / "disk"
    run.parent.rename(elsewhere)
    (tmp_path / "runs" / "a-link").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(tmp_path / "runs")
    (elsewhere / "best").symlink_to("a")
    assert [str(run.path) for run in read_runs(["runs"])] == ["runs/a-link/a"]


def test_each_run_is_found_only_once_by_path_pattern_or_folder(make_run, tmp_path):
    first, second = make_run("a"), make_run("b")
    inside = first / "wandb" / "offline-run" / "files"
    inside.mkdir(parents=True)
    (inside / "config.yaml").write_text("wandb: {}\n")
    (tmp_path / "runs" / "x" / "compare.html").touch()
    (tmp_path / "link").symlink_to(first, target_is_directory=True)
    assert [run.path for run in read_runs(["runs"])] == [first, second]
    assert [run.path for run in read_runs([str(second), "runs/*", "link", "runs/x/compare.html"])] == [second, first]
    (tmp_path / "empty").mkdir()
    for names in (["runs/y"], ["runs/x/c*t"], ["runs/x/*.html"], ["runs", "empty"]):
        with pytest.raises(RunError, match=r"no such run or folder: runs/|there is no run in"):
            read_runs(names)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metrics.json", '{"fit": '), ("metrics.json", "[]"), ("metrics.json", '{"fit": []}'),
        ("provenance.json", "[1]"), ("config.yaml", "a: [1"), ("config.yaml", "text"), ("config.yaml", "trainer: 5\n"),
        ("metrics.csv", "epoch,step,val/loss\n0,x,1\n"), ("metrics.csv", "epoch,step,val/loss\n0,1,high\n"),
    ],
)  # fmt: skip
def test_a_run_with_a_broken_file_is_skipped_with_a_warning(make_run, capsys, name, content):
    broken, good = make_run("broken"), make_run("good")
    (broken / name).write_text(content)
    if content == "trainer: 5\n":  # unusual, but a valid config
        assert len(read_runs(["runs"])) == 2
        return
    assert [run.path for run in read_runs(["runs"])] == [good]
    error = capsys.readouterr().err
    assert error.startswith(f"warning: skipped a run: {broken}")
    assert error.count("\n") == 1
    with pytest.raises(RunError, match="broken"):
        read_runs([str(broken)])


def test_ignores_a_partially_written_row(make_run):
    run = make_run("a", (0.5, 0.4), status=None)
    with (run / "metrics.csv").open("a") as file:
        file.write("2,20,0.")
    assert Run.read(run).curve("val/loss", "epoch") == {0.0: 0.5, 1.0: 0.4}


def test_fit_records_its_exit_status(lit, trained):
    entries = json.loads((trained / "provenance.json").read_text())
    assert [entry["status"] for entry in entries] == [0]
    assert entries[0]["seconds"] > 0
    before = (trained / "provenance.json").read_bytes()
    assert lit(f"fit --run {trained}").status == 0  # nothing left to do
    assert (trained / "provenance.json").read_bytes() == before
    killed = [{**entries[0], "status": None}]
    (trained / "provenance.json").write_text(json.dumps(killed))
    assert RunDir.open(trained).state() == "killed"
    assert lit(f"fit --run {trained}").status == 0  # the run was killed after its last step
    assert RunDir.open(trained).state() == "finished"
    failed = lit("fit -c", trained / "config.yaml", "--model.optimizer.lr=1e30 --run_name=failed")
    assert failed.status == 2
    assert RunDir.open(failed.run).state() == "failed"


def test_reads_options_metrics_and_facts_of_a_trained_run(trained):
    run = Run.read(trained)
    config = yaml.safe_load((trained / "config.yaml").read_text())
    sections = json.loads((trained / "metrics.json").read_text())
    assert run.options["seed_everything"] == config["seed_everything"]
    assert run.options["model.net.hidden_sizes"] == [32]
    assert run.monitor == config["trainer"]["callbacks"][0]["init_args"]["monitor"]
    assert run.metrics[run.monitor] == pytest.approx(sections["fit"][f"best {run.monitor}"], rel=1e-6)
    assert run.metrics["train/loss"] == sections["fit"]["train/loss"]
    assert all(later > earlier for earlier, later in pairwise(run.curve("val/loss", "epoch")))
    assert not any("class_accuracy" in name for name in run.metrics)
    assert run.facts["commit"][:9].isalnum()


def test_reading_imports_neither_torch_nor_lightning(make_run, tmp_path):
    make_run("a"), make_run("b", (0.4, 0.2), lr=0.1)
    for command in ("runs", "compare runs"):
        code = (
            f"import lit_engine.tools.pages.run_page, sys; sys.argv[1:] = {command.split()!r}\n"
            "from toy.__main__ import entry_point\n"
            "try: entry_point()\n"
            "finally: assert not {'torch', 'lightning', 'jsonargparse'} & set(sys.modules)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        assert "0.3000" in done.stdout
