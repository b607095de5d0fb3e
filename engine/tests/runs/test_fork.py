"""Tests what `fit --fork` continues, changes and drops, without changing the parent run."""

import csv
import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
import yaml

from helpers import TINY, differences
from killing import at_call
from lit_engine.checkpoints.io import read
from lit_engine.tools.runs.reading import Run
from toy.tasks import ImageClassifier

# Each epoch has ten steps, and the checkpoints of all epochs are kept.
BASE = f"-c configs/quickstart.yaml {TINY} --test_after_fit=false --trainer.log_every_n_steps=1"
KEEP = ("--trainer.callbacks", "[{class_path: Checkpoint, init_args: {monitor: val/loss, mode: min, keep_last: 9}}]")
CONSTANT = "--model.schedulers=null"
STEP = "{class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 2, gamma: 0.5}}"
COSINE = "[{scheduler: {class_path: CosineAnnealingLR}, interval: step}]"
PLATEAU = (
    "[{scheduler: {class_path: torch.optim.lr_scheduler.ReduceLROnPlateau, "
    "init_args: {factor: 0.5, patience: 0, mode: max}}, interval: epoch, monitor: val/loss}]"
)


def fit(lit, *more):
    result = lit("fit", BASE, [*KEEP], *more)
    assert result.status == 0, result.err
    return result.run


def fork(lit, source, *more, name="child"):
    result = lit(f"fit --fork {source} --name {name} --runs_dir forks", *more)
    assert result.status == 0, result.err
    return result


def files(run):
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def rows(run):
    found = csv.DictReader((run / "metrics.csv").open())
    return [{name: value for name, value in row.items() if not name.endswith("per_second")} for row in found]


def rates(run, start=0):
    return [row["lr"] for row in rows(run) if row.get("lr") and int(row["step"]) >= start]


@pytest.mark.parametrize(("epoch", "which"), [(0, "0"), (2, "epoch002.ckpt")])
def test_an_unchanged_fork_reproduces_the_rest_of_its_parent_run(lit, epoch, which):
    parent = fit(lit, ["--model.schedulers", f"[{{scheduler: {STEP}, interval: epoch}}]", "--trainer.max_epochs=4"])
    before = files(parent)
    result = fork(lit, f"{parent}@{which}")
    assert (
        f"after {epoch + 1} epoch{'s' * (epoch > 0)} ({10 * (epoch + 1)} steps); learning rates continue" in result.out
    )
    assert files(parent) == before
    assert differences(parent, result.run) == []


@pytest.mark.parametrize("more", [
    [], ["--trainer.val_check_interval=10"], ["--trainer.max_epochs=-1", "--trainer.max_steps=30"],
])  # fmt: skip
def test_a_fork_of_the_best_checkpoint_repeats_the_rest_of_its_parent(lit, more):
    """The checkpoint is saved at the end of an epoch, or in its last validation if `val_check_interval` is set."""
    options = ["--model.schedulers", f"[{{scheduler: {STEP}, interval: epoch}}]", "--trainer.max_epochs=3", *more]
    once = (
        "[{class_path: Checkpoint, init_args: {monitor: val/loss, mode: max, keep_last: 9}}]"  # the first is the best
    )
    parent = fit(lit, options, ["--trainer.callbacks", once])
    assert (parent / "checkpoints" / "best-epoch000.ckpt").exists()
    child = fork(lit, f"{parent}@best").run
    assert json.loads((child / "provenance.json").read_text())[0]["fork"]["checkpoint"] == "best-epoch000.ckpt"
    assert differences(parent, child) == []
    # a different schedule is advanced by the same number of steps
    other = [f"--model.schedulers=[{{scheduler: {STEP.replace('0.5', '0.1')}, interval: epoch}}]"]
    assert rates(fork(lit, f"{parent}@best", other, name="other").run, 10) == rates(fit(lit, options, other), 10)


def test_a_fork_with_a_new_lr_and_length_advances_the_schedule_to_its_step(lit):
    parent = fit(lit, "--epochs 2 --name parent")
    before = files(parent)
    result = fork(lit, parent, "--lr 0.001 --epochs 5")
    assert files(parent) == before
    assert f"forked {parent}/checkpoints/last.ckpt after 2 epochs (20 steps); learning rates follow" in result.out
    whole = fit(lit, "--lr 0.001 --epochs 5 --name whole")
    assert rates(result.run, 20) == rates(whole, 20)
    assert len(rates(result.run, 20)) == 30
    assert rates(result.run)[:20] == rates(parent)
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    assert (config["trainer"]["max_epochs"], config["data"]["init_args"]["batch_size"]) == (5, 128)
    (entry,) = json.loads((result.run / "provenance.json").read_text())
    assert entry["fork"] == {"run": str(parent), "checkpoint": "last.ckpt", "epochs": 2, "step": 20, "rows": 20}
    assert entry["changed"] == {"model.optimizer.lr": [0.004, 0.001], "trainer.max_epochs": [2, 5]}
    state = read(result.run / "checkpoints" / "last.ckpt")["optimizer_states"][0]["state"]
    assert state[0]["step"] == 50  # Adam's moments continue


def test_metrics_after_the_forked_checkpoint_are_not_copied(lit, monkeypatch):
    parent = fit(lit, "--epochs 3", CONSTANT)
    table = parent / "metrics.csv"
    table.write_text(table.read_text().replace("val/accuracy", "val/accuracy/a\u2028b"), encoding="utf-8")
    copies = []
    monkeypatch.setattr("lit_engine.training.fork.write_text", lambda file, text: copies.append(text))
    result = lit(f"fit --fork {parent}@1 --epochs 9 --name child --trainer.logger=false")
    assert result.status == 0, result.err
    (copy,) = copies
    assert copy.split("\n")[:-1] == table.read_text(encoding="utf-8").split("\n")[:21]


def test_a_new_batch_size_keeps_the_position_of_the_schedule_in_epochs(lit):
    parent = fit(lit, "--epochs 2 --model.schedulers", [COSINE])
    child = fork(lit, parent, "--batch_size 64 --epochs 4").run
    whole = fit(lit, "--epochs 4 --batch_size 64 --name whole --model.schedulers", [COSINE])
    assert rates(child, 20) == rates(whole, 40)
    assert float(rates(child)[-1]) < 1e-4


@pytest.mark.parametrize("checkpoint", ["", "@best"])
def test_the_batch_size_can_change_after_an_epoch_of_limited_length(lit, checkpoint):
    parent = fit(lit, "--epochs 1 --trainer.limit_train_batches=3", CONSTANT)
    child = fork(lit, f"{parent}{checkpoint}", "--epochs 2 --data.batch_size=64").run
    assert read(child / "checkpoints" / "last.ckpt")["global_step"] == 6


def test_changing_options_other_than_the_lr_keeps_the_schedule(lit):
    parent = fit(lit, "--epochs 3 --model.schedulers", [PLATEAU])
    reached = float(rates(parent)[-1])
    assert reached < 0.004
    changed = "--model.optimizer.weight_decay 0.5 --model.optimizer.betas [0.5,0.9]"
    child = fork(lit, parent, f"--epochs 4 {changed}").run
    (group,) = read(child / "checkpoints" / "last.ckpt")["optimizer_states"][0]["param_groups"]
    assert (group["weight_decay"], group["betas"]) == (0.5, (0.5, 0.9))
    assert float(rates(child, 30)[0]) == reached / 2  # reduced after the last epoch of the parent
    new = fork(lit, parent, "--epochs 4 --lr 0.1", name="new").run
    assert float(rates(new, 30)[0]) == 0.1


def test_new_options_apply_with_any_checkpoint_plugin(lit, trained):
    plugin = "[{class_path: lightning.pytorch.plugins.io.TorchCheckpointIO}]"
    child = fork(lit, trained, "--epochs 4 --lr 0.1", CONSTANT, ["--trainer.plugins", plugin]).run
    assert float(rates(child, 30)[0]) == 0.1


def test_an_interrupted_fork_resumes_bit_for_bit(lit, monkeypatch):
    parent = fit(lit, "--epochs 2")
    more = "--lr 0.002 --epochs 4"
    whole = fork(lit, parent, more, name="whole").run
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 14, signal.SIGTERM)
        cut = lit(f"fit --fork {parent} --name cut {more}")
    assert cut.status == 143
    assert lit(f"fit --run {cut.run}").status == 0
    assert differences(whole, cut.run) == []
    assert Run.read(cut.run).options["fork"] == f"{parent}, last.ckpt, step 20"  # the first entry of provenance.json


def test_a_run_that_was_interrupted_within_an_epoch_can_be_forked(lit, monkeypatch):
    whole = fit(lit, "--epochs 3", CONSTANT)
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 14, signal.SIGTERM)
        cut = lit("fit", BASE, [*KEEP], "--epochs 3", CONSTANT)
    assert cut.status == 143
    assert differences(whole, fork(lit, cut.run).run) == []
    changed = lit(f"fit --fork {cut.run} --data.val_size=100")
    assert changed.status == 2
    assert "the data changed since training" in changed.err


def test_data_overlays_and_averages_can_change_between_epochs(lit):
    parent = fit(lit, "--epochs 1", CONSTANT)
    result = fork(lit, parent, "--epochs 2 --data.val_size=100 -c ema -c label_smoothing")
    assert "the validation split may contain training samples" in result.out
    child = result.run
    assert yaml.safe_load((child / "config.yaml").read_text())["trainer"]["callbacks"][-1]["class_path"].endswith("EMA")
    averaged = read(child / "checkpoints" / "last.ckpt")
    assert "current_model_state" in averaged
    # without the average, the fork continues with the trained weights
    reloaded = lit(f"fit --fork {child} --name plain --epochs 3 --lr 0 --trainer.callbacks=null")
    assert reloaded.status == 0, reloaded.err
    last = read(reloaded.run / "checkpoints" / "last.ckpt")["state_dict"]
    torch.testing.assert_close(last, averaged["current_model_state"], rtol=0, atol=0)


@pytest.mark.parametrize(("change", "message"), [
    ("--model.optimizer=torch.optim.SGD --lr 0.1 --model.optimizer.momentum=0.9", "the optimizer or its parameter"),
    ("--model.optimizer=torch.optim.Adamax --lr 0.1", "the optimizer or its parameter groups differ"),
    ("-c no_decay", "the optimizer or its parameter groups differ"),
    ("--model.net.hidden_sizes=[32,32]", "some weights do not fit"),
])  # fmt: skip
def test_state_that_does_not_fit_is_dropped_with_a_message(lit, change, message):
    parent = fit(lit, "--epochs 2")
    before = files(parent)
    result = fork(lit, parent, change, "--epochs 3")
    assert message in result.err
    assert files(parent) == before
    last = read(result.run / "checkpoints" / "last.ckpt")
    assert last["global_step"] == 30
    steps = {float(state["step"]) for state in last["optimizer_states"][0]["state"].values() if "step" in state}
    assert steps <= {10.0}


def test_the_state_of_one_parameter_group_is_not_used_for_another_one(lit):
    groups = "--model.parameter_groups={{groups: [{{name: slow, match: [net.layers.{}], lr_factor: 0.1}}]}}"
    parent = fit(lit, "--epochs 1 --model.net.hidden_sizes=[64,64]", [groups.format(1)])
    result = fork(lit, parent, "--epochs 2", [groups.format(3)])  # a layer of the same shape
    assert "the optimizer or its parameter groups differ" in result.err


class Wrapper(torch.optim.SGD):
    """Optimizer that saves its state in its own format, as wrappers of other optimizers do."""

    def state_dict(self):
        return {"inner": super().state_dict()}

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict["inner"])


def test_an_optimizer_may_have_its_own_format(lit):
    parent = fit(lit, "--epochs 1 --name parent", ["--model.optimizer=test_fork.Wrapper", "--model.optimizer.lr=0.1"])
    assert "its state is not restored" in fork(lit, parent, "--epochs 2").err
    resumed = lit(f"fit {parent} --epochs 2", ["--model.schedulers=null"])
    assert resumed.status == 0, resumed.err


def test_max_time_limits_only_the_time_of_the_fork(lit):
    parent = fit(lit, "--epochs 2", CONSTANT, ["--trainer.max_time={microseconds: 1}"])  # ends after one step
    child = fork(lit, parent).run
    assert [read(run / "checkpoints" / "last.ckpt")["global_step"] for run in (parent, child)] == [1, 2]


def test_a_fork_resets_the_best_checkpoint_and_early_stopping(lit):
    stop = "[{class_path: EarlyStopping, init_args: {monitor: val/loss, mode: max, patience: 1}}]"
    parent = fit(lit, "--epochs 9", CONSTANT, ["--trainer.callbacks+", stop])
    assert len(rows(parent)) < 60
    child = fork(lit, parent, "--trainer.max_epochs=12").run
    assert len(rows(child)) == len(rows(parent)) + 20
    first = Run.read(parent).rows[-1]["epoch"]
    best = json.loads((child / "metrics.json").read_text())["fit"]["best_checkpoint"]
    assert best > f"best-epoch{int(first):03}.ckpt"
    assert (child / "checkpoints" / best).exists()
    own = Run.read(child)
    assert own.metrics["val/loss"] in [
        float(row["val/loss"]) for row in rows(child)[len(rows(parent)) :] if row["val/loss"]
    ]


def test_pages_and_compare_join_the_curves_of_a_fork_and_its_parent(lit):
    parent = fit(lit, "--epochs 2 --name parent")
    child = fork(lit, parent, "--lr 0.001 --epochs 3").run
    page = (child / "index.html").read_text()
    assert f"{parent}, last.ckpt, step 20" in page
    assert Run.read(child).curve("val/loss", "epoch").keys() == {0, 1, 2}
    result = lit(f"compare {parent} {child} --html both.html")
    assert result.status == 0
    assert f"{parent}, last.ckpt, step 20" in result.out


def test_a_plain_module_can_be_forked(lit, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "plain"))
    data = "--data=collection.Data --trainer.max_epochs=4 --trainer.accelerator=cpu"
    parent = lit(f"fit --model=collection.Collected {data} --run_name=parent").run
    before = files(parent)
    result = lit(f"fit --fork {parent} --epochs 6 --lr 0.5 --name child")
    assert result.status == 0, result.err
    assert files(parent) == before
    (group,) = read(result.run / "checkpoints" / "last.ckpt")["optimizer_states"][0]["param_groups"]
    assert group["lr"] == 0.5 * 0.5**6  # StepLR, advanced to the step of the fork and then continued


def test_resume_continues_an_existing_fork(lit):
    parent = fit(lit, "--epochs 1", CONSTANT)
    command = f"fit --fork {parent} --epochs 2 --name child --resume"
    assert "forked " in lit(command).out
    again = lit(command)
    assert again.status == 0
    assert "nothing to do" in again.out


@pytest.mark.parametrize(("words", "message"), [
    ("--fork RUN@7 --epochs 9", "has no checkpoint for epoch 7 (available: 2)."),
    ("--fork RUN@first --epochs 9", "write @best, @last, or @ followed by an epoch number or a file in checkpoints/"),
    ("--fork RUN@epoch999.ckpt --epochs 9", "epoch999.ckpt"),
    ("--fork RUN --run RUN", "remove --run"),
    ("--fork RUN --init_from RUN", "remove --init_from"),
    ("--fork RUN --find lr", "remove --find"),
    ("--fork RUN --plot_lr", "remove --plot_lr"),
    ("--fork RUNS", "no such run directory"),
    ("--fork", "--fork needs a value"),
    ("--fork RUN --trainer.max_epoch 9", "did you mean --trainer.max_epochs"),
    ("--fork RUN --epochs 9 --name tiny", "already exists"),
    ("--fork RUN --epochs 3", "after 3 epochs (30 steps): increase --epochs"),
    ("--fork RUN@2 --epochs 2", "after 3 epochs (30 steps): increase --epochs"),
])  # fmt: skip
def test_mistakes_are_explained_and_create_no_run(lit, trained, words, message):
    before = files(Path("runs"))
    result = lit(f"fit {words.replace('RUN', str(trained))}")
    assert result.status == 2
    assert message in result.err
    assert len(result.err.splitlines()) <= 2
    assert files(Path("runs")) == before


def test_a_weights_only_checkpoint_cannot_be_forked(lit, trained):
    last = trained / "checkpoints" / "last.ckpt"
    content = read(last)
    del content["optimizer_states"]
    torch.save(content, last)
    result = lit(f"fit --fork {trained} --epochs 9")
    assert result.status == 2
    assert f"{last} contains only weights: use --init_from" in result.err


@pytest.mark.parametrize("source", ["other/quickstart/tiny", "latest", "latest@best"])
def test_print_config_prints_the_config_of_the_fork(lit, trained, capfd, source):
    Path("runs").rename("other")
    with pytest.raises(SystemExit):
        lit(f"fit --fork {source} --runs_dir other --epochs 9 --print_config")
    config = yaml.safe_load(capfd.readouterr().out)
    assert config["trainer"]["max_epochs"] == 9
    assert config["model"]["init_args"]["net"]["init_args"]["hidden_sizes"] == [32]
    assert config["fork"] is None


def test_a_run_without_checkpoints_cannot_be_forked(lit, trained):
    shutil.rmtree(trained / "checkpoints")
    result = lit(f"fit --fork {trained} --epochs 9")
    assert result.status == 2
    assert f"{trained} has no checkpoint" in result.err
