"""With `data.global_batch_size`, steps that run out of memory are repeated with smaller micro-batches."""

import signal

import pytest
import torch
from torch import nn

from killing import at_call
from lit_engine.callbacks.record import RunRecord
from lit_engine.checkpoints.io import read
from lit_engine.run.directory import RunDir
from lit_engine.training.task import Task
from toy.tasks import ImageClassifier

FIT = (
    "fit -c configs/quickstart.yaml --model.net=test_out_of_memory.Net --trainer.max_epochs=2 "
    "--data.batch_size=null --data.global_batch_size=64 --trainer.precision=64-true --test_after_fit=false "
    "--trainer.log_every_n_steps=1 --trainer.accelerator=cpu --trainer.callbacks=[] --data.val_size=1000 "
    "--data.train_transforms=null"  # random draws depend on the micro-batch
)
EVERY_FOURTH = "--trainer.val_check_interval=4 --trainer.check_val_every_n_epoch=null"
STEPS = 7  # per epoch; the last one has 53 samples


class Net(nn.Module):
    """A perceptron that counts its training batches in a buffer, and runs out of memory in some of them."""

    needs = staticmethod(lambda calls, size: None)  # returns "forward" or "backward" if memory runs out in that pass

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, num_classes))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, inputs):
        if not self.training:
            return self.layers(inputs)
        self.calls += 1
        where = Net.needs(int(self.calls), len(inputs))
        if where == "forward":
            raise torch.OutOfMemoryError("out of memory")
        logits = self.layers(inputs)
        if where == "backward":  # after the gradients of the last layer have been added
            self.layers[1].weight.register_hook(fail)
        return logits


def fail(gradient):
    raise torch.OutOfMemoryError("out of memory")


@pytest.fixture
def limit(monkeypatch):
    """Return a function that makes training batches above `size` samples run out of memory from call `first` on."""

    def set_limit(where, size, first=1):
        needs = staticmethod(lambda calls, samples: where if calls >= first and samples > size else None)
        monkeypatch.setattr(Net, "needs", needs)

    return set_limit


def last(run):
    return read(run / "checkpoints" / "last.ckpt")


def rows(run):
    """Return the rows of metrics.csv without the speed column."""
    lines = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    speed = lines[0].index("train/samples_per_second")
    return [[value for k, value in enumerate(line) if k != speed] for line in lines]


def assert_same(run, other):
    for name, weight in last(run)["state_dict"].items():
        assert torch.equal(weight, last(other)["state_dict"][name]), name
    a, b = (last(one)["optimizer_states"][0]["state"] for one in (run, other))
    assert all(torch.equal(a[k][name], b[k][name]) for k in a for name in a[k])
    assert rows(run) == rows(other)


@pytest.mark.parametrize(("where", "first", "accumulate"), [
    ("forward", 1, 1),  # in the first step of the run
    ("backward", 4, 1),
    ("backward", STEPS + 1, 1),  # in the first step of an epoch
    ("backward", 2 * STEPS + 6, 2),  # in the second micro-batch of a step
])  # fmt: skip
def test_a_step_is_repeated_with_half_the_micro_batch(lit, limit, monkeypatch, where, first, accumulate):
    """The run matches a run that was stopped before the step and resumed with smaller micro-batches."""
    command = f"{FIT} --trainer.accumulate_grad_batches={accumulate}"
    limit(where, 32 // accumulate, first)
    halved = lit(command, "--run_name=halved")
    assert halved.status == 0, halved.err
    step, option = (first - 1) // accumulate, f"--trainer.accumulate_grad_batches={2 * accumulate}"
    assert f"note: out of memory in epoch {step // STEPS}, step {step}: trying again with {option}\n" in halved.err
    assert halved.err.count("out of memory") == 1

    limit(None, 0)
    hook = (Task, "on_before_optimizer_step", step) if step else (RunRecord, "on_train_epoch_start", 1)
    with monkeypatch.context() as patch:
        at_call(patch, *hook, signal.SIGTERM)
        stopped = lit(command, "--run_name=stopped")
    assert stopped.status == 128 + signal.SIGTERM
    resumed = lit(f"fit --run {stopped.run} {option}")
    assert resumed.status == 0, resumed.err
    assert_same(halved.run, stopped.run)


def test_gradients_match_the_full_batch_and_resuming_is_exact(lit, limit, monkeypatch):
    """Memory runs out twice, for 64 and for 32 samples. Then the run is stopped, and resumed without options.

    Both trainer options count batches. An epoch has six steps, and validation follows every fourth step of the run.
    """
    command = f"{FIT} --trainer.limit_train_batches=6 {EVERY_FOURTH}"
    whole = lit(command, "--run_name=whole")
    limit("backward", 16, 8)  # in the second epoch
    halved = lit(command, "--run_name=halved")
    assert (halved.status, halved.err.count("out of memory")) == (0, 2), halved.err
    with monkeypatch.context() as patch:
        at_call(patch, Task, "on_before_optimizer_step", 9, signal.SIGTERM)
        stopped = lit(command, "--run_name=stopped")
    assert stopped.status == 128 + signal.SIGTERM
    assert lit(f"fit --run {stopped.run}").status == 0
    assert_same(halved.run, stopped.run)
    for name, weight in last(whole.run)["state_dict"].items():
        if name != "net.calls":
            assert (weight - last(halved.run)["state_dict"][name]).abs().max() < 1e-12
    for row, other in zip(rows(whole.run)[1:], rows(halved.run)[1:], strict=True):
        assert [float(x or 0) for x in row] == pytest.approx([float(x or 0) for x in other], rel=1e-6)


def test_changing_gradient_accumulation_requires_adjusting_limits(lit):
    """The limits count micro-batches, so epochs would otherwise become shorter."""
    limits = f"--trainer.limit_train_batches=6 {EVERY_FOURTH}"
    run = lit(f"{FIT} --model.schedulers=null {limits} --run_name=a").run
    more = f"fit --run {run} --trainer.max_epochs=3 --trainer.accumulate_grad_batches=2"
    result = lit(more)
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert "also set --trainer.limit_train_batches=12" in result.err
    assert "also set --trainer.val_check_interval=8" in lit(f"{more} --trainer.limit_train_batches=12").err
    result = lit(f"{more} --trainer.limit_train_batches=12 --trainer.val_check_interval=8")
    assert result.status == 0, result.err
    assert last(run)["global_step"] == 18
    assert [row["step"] for row in RunDir(run).history()[1] if row["val/loss"]] == ["3", "7", "11", "15"]


@pytest.mark.parametrize("options", [
    "--data.global_batch_size=null --data.batch_size=64",
    "--trainer.accumulate_grad_batches=64",  # micro-batches of one sample
])  # fmt: skip
def test_out_of_memory_errors_include_advice_if_the_step_cannot_be_repeated(lit, limit, options):
    limit("forward", 0, 3)
    with pytest.raises(torch.OutOfMemoryError) as failure:
        lit(FIT, options)
    assert "double trainer.accumulate_grad_batches" in str(failure.value.__notes__)


def test_a_step_that_may_have_changed_weights_is_not_repeated(lit, monkeypatch):
    def step(self, closure):
        closure()
        fail(None)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(torch.OutOfMemoryError):
        lit(FIT)


def test_a_step_is_not_repeated_if_a_validation_runs_out_of_memory(lit, monkeypatch):
    """The validation within an accumulated step may use averaged weights."""
    at_call(monkeypatch, ImageClassifier, "validation_step", 1, torch.OutOfMemoryError("out of memory"))
    options = "--trainer.val_check_interval=3 --trainer.num_sanity_val_steps=0"
    with pytest.raises(torch.OutOfMemoryError):
        lit(f"{FIT} --trainer.accumulate_grad_batches=2 {options}")


@pytest.mark.parametrize("count", [
    lambda task, targets: task.log("train/seen", float(len(targets)), on_epoch=True, reduce_fx="sum"),
    lambda task, targets: task.confusion.update(targets, targets),
], ids=["log", "metric"])  # fmt: skip
def test_a_step_whose_samples_were_counted_elsewhere_is_not_repeated(lit, limit, monkeypatch, count):
    """If the step were repeated, `self.log` and torchmetrics would count some of its samples twice."""
    original = ImageClassifier.training_step

    def step(self, batch, batch_idx):
        count(self, batch[1])
        return original(self, batch, batch_idx)

    monkeypatch.setattr(ImageClassifier, "training_step", step)
    limit("backward", 32, 3)
    with pytest.raises(torch.OutOfMemoryError):
        lit(FIT)
