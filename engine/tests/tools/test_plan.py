"""Tests the predictions of `fit --plan`."""

import json
import sys
import time
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from lit_engine.tools.plan import Meter, power
from lit_engine.training.task import Task
from toy.tasks import ImageClassifier

# With 437 training samples, an epoch has seven steps of 64 samples. There are 1,000 validation samples.
FIT = "fit -c configs/quickstart.yaml --data.val_size=1000 --trainer.accelerator=cpu"


def planned(lit, *options, fit=FIT):
    result = lit(fit, "--plan --json", *options)
    assert result.status == 0, result.err
    return json.loads(result.out)


@pytest.fixture
def slow(monkeypatch):
    """Add known delays to the start of training, each step, each validation batch and the end of each epoch."""

    def sleep_in(owner, name, seconds):
        original = getattr(owner, name)

        def slowly(*args, **kwargs):
            time.sleep(seconds)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, slowly)

    sleep_in(Task, "on_before_optimizer_step", 0.15)
    sleep_in(Task, "evaluate", 0.02)
    sleep_in(Task, "on_train_epoch_end", 0.5)
    sleep_in(Task, "on_train_start", 1.0)


def test_predicted_time_includes_steps_validations_and_epoch_overhead(lit, slow):
    """Each epoch has seven steps of two micro-batches. The last micro-batch is not full."""
    options = "--data.batch_size=32 --trainer.accumulate_grad_batches=2 --data.eval_batch_size=100"
    found = planned(lit, f"{options} --trainer.max_epochs=4 --trainer.callbacks=[]")
    assert (found["epochs"], found["steps"], found["validations"], found["batches"]) == (4, 28, 4, 10)
    expected = 28 * 0.15 + 4 * 10 * 0.02 + 4 * 0.5 + 1.0
    assert expected <= found["seconds"] < 1.6 * expected
    assert 0.15 <= found["seconds_per_step"] < 0.4
    assert found["samples_per_second"] == pytest.approx(64 / found["seconds_per_step"])
    assert 2**26 < found["peak_bytes"]["process"] < 2**36
    assert "joules" not in found
    assert found["micro_batch"] == {
        "samples": 64,
        "samples_per_step": 64,
        "options": {"trainer.accumulate_grad_batches": 1, "data.batch_size": 64},
    }


@pytest.mark.parametrize(("options", "length"), [
    ("--trainer.max_epochs=-1 --trainer.max_steps=16", (3, 16, 2)),
    ("--trainer.max_epochs=4 --trainer.val_check_interval=3 --trainer.max_steps=17", (3, 17, 5)),
    ("--trainer.max_epochs=5 --trainer.check_val_every_n_epoch=2", (5, 35, 2)),
    ("--trainer.max_epochs=2 --trainer.val_check_interval=0.5", (2, 14, 4)),
    ("--trainer.max_epochs=2 --trainer.limit_val_batches=0 --trainer.callbacks=[]", (2, 14, 0)),
    ("--trainer.max_epochs=3 --data.batch_size=437", (3, 3, 3)),
])  # fmt: skip
def test_predicts_the_number_of_epochs_steps_and_validations(lit, options, length):
    found = planned(lit, options)
    assert (found["epochs"], found["steps"], found["validations"]) == length
    assert min(found["seconds_per_step"], found["samples_per_second"]) > 0


def test_the_plan_includes_layers_that_are_unfrozen_late(lit, monkeypatch):
    """Only three epochs are measured, so all layers train from the start."""

    def watched(task, *args):
        trained.append(task.net.layers[1].weight.requires_grad)
        return step(task, *args)

    trained, step = [], ImageClassifier.training_step
    monkeypatch.setattr(ImageClassifier, "training_step", watched)
    unfreezing = "{class_path: Unfreezing, init_args: {schedule: {net.layers.1: 7}}}"
    swa = "{class_path: SWA, init_args: {start: 8}}"
    found = planned(lit, "--epochs 9", [f"--trainer.callbacks+={unfreezing}", f"--trainer.callbacks+={swa}"])
    assert (found["epochs"], found["steps"]) == (9, 63)
    assert trained
    assert all(trained)


def test_only_the_first_process_prints_json(lit, monkeypatch):
    monkeypatch.setattr("lit_engine.tools.plan.is_first", lambda: False)
    result = lit(FIT, "--plan --json --trainer.max_epochs=2")
    assert (result.status, "{" in result.out) == (0, False)


def test_plan_prints_four_lines_and_creates_no_run(lit, workspace):
    result = lit(FIT, "--plan --trainer.max_epochs=2")
    assert result.status == 0
    lines = result.out.splitlines()
    names = ["time", "speed", "peak memory", "largest micro-batch that fits"]
    assert [line.partition(":")[0] for line in lines] == names
    assert "(2 epochs: 14 steps of " in lines[0]
    assert lines[-1].endswith(": 64 of 64 samples per step; as configured")
    assert not list(workspace.glob("runs/*"))
    assert result.err == ""


class Net(nn.Module):
    """A linear classifier that needs too much memory to train with more than 16 samples."""

    def __init__(self, input_shape, num_classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))

    def forward(self, inputs):
        if self.training and len(inputs) > 16:
            raise torch.OutOfMemoryError("out of memory")
        return self.layers(inputs)


@pytest.mark.parametrize(("given", "options"), [
    ("--data.batch_size=24", {"trainer.accumulate_grad_batches": 2, "data.batch_size": 12}),
    ("--data.batch_size=4 --trainer.accumulate_grad_batches=6",
     {"trainer.accumulate_grad_batches": 2, "data.batch_size": 12}),
    ("--data.batch_size=null --data.global_batch_size=48", {"trainer.accumulate_grad_batches": 3}),
])  # fmt: skip
def test_the_largest_micro_batch_divides_the_samples_of_a_step(lit, given, options):
    found = planned(lit, f"--trainer.max_epochs=2 --model.net=test_plan.Net {given}")["micro_batch"]
    assert found["options"] == options
    assert found["samples"] == found["samples_per_step"] // options["trainer.accumulate_grad_batches"]
    words = [f"--{name}={value}" for name, value in options.items()]
    result = lit(FIT, f"--trainer.max_epochs=1 --model.net=test_plan.Net {given}", words)
    assert result.status == 0, result.err


def test_running_out_of_memory_causes_a_one_line_error(lit, monkeypatch):
    monkeypatch.setattr(Net, "forward", lambda *_: torch.empty(2**60))
    result = lit(FIT, "--plan --model.net=test_plan.Net --data.batch_size=2 --trainer.num_sanity_val_steps=0")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert "out of memory with the smallest micro-batch" in result.err


@pytest.mark.parametrize(("options", "message"), [
    ("--plan --find lr", "--plan measures a new run and then stops: remove --find"),
    ("--plan --resume --run_name=a", "--plan measures a new run and then stops: remove --resume"),
    ("--json", "--json needs --plan"),
    ("--plan --trainer.max_epochs=0", "there are no training steps"),
    ("--plan --trainer.max_epochs=-1", "set trainer.max_epochs or max_steps"),
])  # fmt: skip
def test_invalid_options_cause_one_line_errors(lit, options, message):
    result = lit(FIT, options)
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert message in result.err


def test_the_predicted_energy_includes_all_gpus(monkeypatch):
    monkeypatch.setattr("lit_engine.tools.plan.power", lambda device: [100.0])
    meter, trainer = Meter(), MagicMock(world_size=4, accumulate_grad_batches=1, is_last_batch=False)
    trainer.strategy.root_device = torch.device("cpu")
    meter.on_train_batch_end(trainer, None, None, None, 0)
    meter.step, meter.length = 0.5, {"epochs": 1, "steps": 6, "validations": 0, "batches": 0}
    assert meter.predictions("samples")["joules"] == 4 * 100 * 6 * 0.5


def test_power_draw_is_reported_in_watts_if_nvml_is_installed(monkeypatch):
    """NVML reports milliwatts."""
    monkeypatch.setattr(torch.cuda, "power_draw", lambda device: 250_000)
    assert power(torch.device("cuda", 0)) == [250.0]
    assert power(torch.device("cpu")) == []
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda device: __import__("pynvml"))
    assert power(torch.device("cuda", 0)) == []
