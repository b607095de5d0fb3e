"""`fit --run` and `--init_from`: what is resumed, what is rejected, and what stays unchanged."""

import csv
import json
import shlex
import signal

import pytest
import yaml

from helpers import TINY, differences, same_weights
from killing import at_call
from lit_engine.checkpoints.io import read
from toy.tasks import ImageClassifier


def test_resuming_at_an_epoch_end_matches_an_uninterrupted_run(lit):
    """Weights, optimizer, schedule and history are equal bit for bit, even with dropout and augmentation."""
    # Without schedules, the first half does not depend on the length of the run.
    options = (
        "-c configs/quickstart.yaml --model.schedulers=null --model.net.dropout=0.2 --data.batch_size=100 "
        "--test_after_fit=false --trainer.log_every_n_steps=4"
    )
    whole = lit(f"fit {options} --trainer.max_epochs=4 --run_name=whole")
    half = lit(f"fit {options} --trainer.max_epochs=2 --run_name=half")
    resumed = lit(f"fit --run {half.run} --trainer.max_epochs=4")
    assert (whole.status, half.status, resumed.status) == (0, 0, 0)
    assert resumed.run == half.run
    assert read(half.run / "checkpoints" / "last.ckpt")["global_step"] == 4 * 13
    assert differences(whole.run, half.run) == []
    # The config describes the run as it is now, and the previous config is kept.
    assert yaml.safe_load((half.run / "config.yaml").read_text())["trainer"]["max_epochs"] == 4
    assert yaml.safe_load((half.run / "config.1.yaml").read_text())["trainer"]["max_epochs"] == 2
    assert len(json.loads((half.run / "provenance.json").read_text())) == 2


def test_resuming_a_finished_run_reports_nothing_to_do_and_changes_nothing(lit, trained):
    assert lit(f"test --run {trained}").status == 0
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    result = lit(f"fit --run {trained} --data.eval_batch_size=7 --test_after_fit=true --trainer.limit_test_batches=1")
    assert result.status == 0
    assert "nothing to do" in result.out
    assert "best checkpoint: " in result.out
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    next((trained / "checkpoints").glob("best*")).unlink()
    assert "best checkpoint" not in lit(f"fit --run {trained}").out


def test_ending_a_stopped_run_without_training_records_no_duration(lit, monkeypatch):
    at_call(monkeypatch, ImageClassifier, "training_step", 30, signal.SIGTERM)
    options = "--data.batch_size=100 --model.schedulers=null --test_after_fit=false"
    stopped = lit(f"fit -c configs/quickstart.yaml {options} --epochs 4")
    assert stopped.status == 128 + signal.SIGTERM
    ended = lit(f"fit {stopped.run} --epochs 2")
    assert ended.status == 0, ended.err
    recorded = json.loads((stopped.run / "metrics.json").read_text())["fit"]
    assert recorded["steps"] == 30
    assert "seconds" not in recorded


def test_continuing_a_tested_run_drops_its_test_results_and_tests_it_again_on_request(lit):
    run = lit(f"fit -c configs/quickstart.yaml {TINY} --model.schedulers=null --epochs 1 --test_after_fit=true").run
    first = json.loads((run / "metrics.json").read_text())["test"]
    assert lit(f"predict {run}").status == 0
    assert lit(f"fit {run} --epochs 3 --test_after_fit=false").status == 0
    assert not [*run.glob("predictions/*"), *run.glob("figures/test_*")]
    assert json.loads((run / "metrics.json").read_text()).keys() == {"fit"}
    again = lit(f"fit {run} --test_after_fit=true")
    assert "nothing to do" in again.out
    second = json.loads((run / "metrics.json").read_text())["test"]
    assert second["test/loss"] < first["test/loss"]


@pytest.mark.parametrize(("change", "expected"), [
    ("--model.optimizer.lr=0.01", "model.optimizer.lr was "),
    ("--model.optimizer=torch.optim.SGD --model.optimizer.lr=0.01", "model.optimizer.class_path was torch.optim."),
    ("'--model.schedulers=[{scheduler: {class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 9}}, "
     "interval: step}]'",
     "model.schedulers[0].scheduler.class_path was lit_engine.training.schedules.OneCycleLR"),
    ("--trainer.max_epochs=1", "max_epochs=1"),
])  # fmt: skip
def test_a_rejected_resume_does_not_change_the_run(lit, trained, change, expected):
    """Lightning would silently restore the checkpoint's optimizer."""
    config, entries = ((trained / name).read_text() for name in ("config.yaml", "provenance.json"))
    result = lit(["fit", "--run", str(trained), *shlex.split(change)])
    assert result.status == 2
    assert expected in result.err
    assert (trained / "config.yaml").read_text() == config
    assert (trained / "provenance.json").read_text() == entries
    assert not list(trained.glob("config.*.yaml"))
    assert lit(f"fit --run {trained}").status == 0


def test_read_only_commands_do_not_change_a_run(lit, trained, capfd):
    config, entries = ((trained / name).read_text() for name in ("config.yaml", "provenance.json"))
    assert lit(f"fit --run {trained} --plot_lr=true --data.batch_size=64").status == 0
    with pytest.raises(SystemExit):
        lit(f"fit --run {trained} --print_config=skip_unset")
    assert "\nrun:" not in capfd.readouterr().out
    assert (trained / "config.yaml").read_text() == config
    assert (trained / "provenance.json").read_text() == entries


def test_warm_start_loads_only_the_weights_into_a_new_run(lit, trained):
    options = f"-c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --test_after_fit=false"
    same = lit(f"fit {options} --init_from latest --model.optimizer.lr=0 --model.schedulers=null")
    assert same.status == 0, same.err
    assert same.run != trained
    assert json.loads((same.run / "provenance.json").read_text())[0]["init_from"] == str(trained)
    best = read(next((trained / "checkpoints").glob("best*.ckpt")))["state_dict"]
    mine = read(same.run / "checkpoints" / "last.ckpt")
    assert mine["global_step"] == 10
    assert same_weights(mine["state_dict"], best)


def test_init_from_suggests_the_name_of_a_mistyped_run(lit, trained):
    fit = f"fit -c configs/quickstart.yaml {TINY} --init_from"
    assert lit(f"{fit} {trained.with_name('tny')}").err == (
        "error: no such run directory: runs/quickstart/tny; did you mean tiny?\n"
    )
    assert lit(f"{fit} nowhere.ckpt").err == "error: no such checkpoint: nowhere.ckpt\n"


def test_a_run_stopped_mid_epoch_resumes_with_the_rest_of_the_epoch(lit):
    """Each epoch has 13 batches, so step 5 is within the first epoch, and step 20 within the second."""
    options = "-c configs/quickstart.yaml --model.schedulers=null --data.batch_size=100 --test_after_fit=false"
    whole = lit(f"fit {options} --trainer.max_steps=31 --run_name=whole")
    cut = lit(f"fit {options} --trainer.max_steps=5 --run_name=cut")
    for steps in (20, 31):
        assert lit(f"fit --run {cut.run} --trainer.max_steps={steps}").status == 0
    a, b = (read(run / "checkpoints" / "last.ckpt") for run in (whole.run, cut.run))
    assert a["global_step"] == b["global_step"] == 31
    assert same_weights(a["state_dict"], b["state_dict"])
    means = [
        [(row["train/samples"], row["train/loss"]) for row in csv.DictReader((run / "metrics.csv").open())
         if row["val/loss"]]
        for run in (whole.run, cut.run)
    ]  # fmt: skip
    assert means[0] == means[1]
    assert len(means[0]) == 2


def test_more_patience_continues_a_run_that_stopped_early(lit):
    stop = "{class_path: EarlyStopping, init_args: {monitor: val/loss, mode: max, patience: 1}}"
    options = f"fit -c configs/quickstart.yaml {TINY} --test_after_fit=false --model.schedulers=null"
    first = lit(options, "--trainer.max_epochs=20", ["--trainer.callbacks+=" + stop])
    run, reason = first.run, "stopped early: val/loss did not improve in the last 1 records"
    assert reason in first.out.splitlines()
    assert reason in (run / "index.html").read_text()
    before = json.loads((run / "metrics.json").read_text())["fit"]["epochs"]
    again = lit(f"fit --run {run} --trainer.max_epochs=30")
    assert "nothing to do" in again.out
    assert "val/loss did not improve in the last 1 records. To continue, increase the patience" in again.out
    resumed = lit(f"fit --run {run} --trainer.callbacks.patience=3")
    assert resumed.status == 0, resumed.err
    assert json.loads((run / "metrics.json").read_text())["fit"]["epochs"] == before + 2
    assert "stopped early: val/loss did not improve in the last 3 records" in resumed.out.splitlines()
    longer = lit(f"fit --run {run} --trainer.callbacks.patience=9 --trainer.max_epochs={before + 3}")
    assert (longer.status, "stopped early" in longer.out) == (0, False)
    assert "stopped early" not in (run / "index.html").read_text()


def test_resuming_a_run_without_checkpoints_is_an_error(lit, trained):
    for file in (trained / "checkpoints").iterdir():
        file.unlink()
    same = f"fit -c configs/quickstart.yaml {TINY} --epochs 3 --test_after_fit=false --run_name=tiny --resume"
    for command in (f"fit --run {trained}", same):
        result = lit(command)
        assert result.status == 2
        assert "no checkpoint" in result.err
