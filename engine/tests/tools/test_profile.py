"""The `profile` overlay reports where time is spent, and does not change training."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset

from helpers import TINY, TOY, same_weights
from killing import at_call
from lit_engine.checkpoints.io import read
from lit_engine.data.images import ImageData
from lit_engine.tools.profile import MEASURING, NAMES, Profile, advice
from toy.tasks import ImageClassifier

PROFILED = f"fit -c configs/quickstart.yaml --trainer.callbacks+=Profile {TINY} --test_after_fit=false"


def found_in(run):
    return json.loads((run / "profile.json").read_text())


def weights_of(run):
    return read(run / "checkpoints" / "last.ckpt")["state_dict"]


def test_profiling_does_not_change_training_and_counts_the_flop_of_an_mlp(lit, trained):
    """FLOP = 6 · weights · batch: forward pass, weight gradients and input gradients (except in the first layer)."""
    result = lit(f"{PROFILED} --trainer.max_epochs=3 --run_name=profiled")
    assert result.status == 0, result.err
    assert result.err == ""
    assert same_weights(weights_of(result.run), weights_of(trained))

    found, (first, last) = found_in(result.run), (64 * 32, 32 * 10)
    assert found["flop_per_batch"] == 6 * (first + last) * 128 - 2 * first * 128
    assert list(found["percent"]) == list(NAMES)
    assert sum(found["percent"].values()) == pytest.approx(100, abs=1)
    assert min(found["percent"][name] for name in ("forward", "backward", "optimizer", "validation", "saving")) > 0
    assert found["batches"] == 30
    assert (found["data"], found["num_workers"]) == ("Digits", None)  # in-memory data needs no workers
    assert found["peak_bytes"]["process"] > 2**26
    speed = found["flop_per_second"]
    assert found["percent_of_matrix_product"] == 100 * speed / found["matrix_product"]["flop_per_second"]
    peak = f"peak memory: {found['peak_bytes']['process'] / 1e9:.2f} GB "  # in GB, as on the run's page
    for line in ("fit time: ", "  waiting for data ", peak, "advice: ", f"profile: {result.run}"):
        assert f"\n{line}" in result.out
    names = {event.get("name", "") for event in json.loads((result.run / "trace.json").read_text())["traceEvents"]}
    assert {"aten::addmm", "Optimizer.step#AdamW.step"} <= names


def test_a_run_that_is_resumed_within_an_epoch_is_profiled_from_there_on(lit, trained, monkeypatch):
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 14, signal.SIGTERM)
        killed = lit(f"{PROFILED} --trainer.max_epochs=3 --run_name=killed")
    assert killed.status == 128 + signal.SIGTERM
    result = lit(f"fit --run {killed.run}")
    assert result.status == 0, result.err
    assert same_weights(weights_of(result.run), weights_of(trained))
    assert found_in(result.run)["batches"] == 30 - 14


@pytest.mark.slow
def test_both_processes_measure_and_only_the_first_prints(tmp_path):
    command = f"{PROFILED} --trainer.accelerator=cpu --trainer.max_epochs=2"
    command = (
        command.replace("configs/", f"{TOY}/configs/") + f" --runs_dir={tmp_path}"
    )  # only the first process knows the name of the run
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    torchrun = "-m torch.distributed.run --standalone --nproc_per_node=2 -m -- toy"
    done = subprocess.run(
        [sys.executable, *torchrun.split(), *command.split()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (run,) = (tmp_path / "quickstart").iterdir()
    assert {path.name for path in run.glob("*_1.json")} == {"profile_1.json", "trace_1.json"}
    both = [json.loads((run / name).read_text()) for name in ("profile.json", "profile_1.json")]
    assert [found["batches"] for found in both] == [10, 10]
    assert done.stdout.count("fit time: ") == 1


class Sleepy(Dataset):
    """Dataset of 40 images that takes 10 ms to load an image."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((1, 4, 4), index, dtype=torch.uint8), index % 2


class Images(ImageData):
    def __init__(self, num_workers):
        super().__init__(batch_size=5, num_workers=num_workers)
        self.class_names, self.input_shape, self.mean, self.std = ["a", "b"], (1, 4, 4), [0.0], [1.0]

    def load(self, split):
        return Subset(Sleepy(), range(40))


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_advice_reports_a_slow_dataset_by_name(trainer, tmp_path, num_workers, capsys):
    profile = Profile(traced=0)
    task = ImageClassifier(net(), sgd, ["a", "b"])
    trainer(callbacks=[profile], max_epochs=2, limit_val_batches=0).fit(task, datamodule=Images(num_workers))
    found = found_in(tmp_path)
    waited = found["percent"]["waiting for data"] / 100 * found["seconds"]
    if num_workers == 0:  # the waiting time is mostly the sleeping time
        assert 0.8 < waited < 1.6
    assert found["percent"]["waiting for data"] > 30
    assert (found["data"], found["num_workers"]) == ("Sleepy", num_workers)
    assert f"try this: load Sleepy in more processes (--data.num_workers={2 * num_workers or 2})" in found["advice"]
    assert found["advice"] in capsys.readouterr().out


class Slowly(torch.autograd.Function):
    """Identity whose backward pass takes 50 ms."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.05)
        return gradient


class SlowSGD(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        time.sleep(0.05)
        return loss


class SlowNet(nn.Linear):
    """Linear net with a forward and a backward pass of 50 ms each, like the step of `SlowSGD`."""

    def forward(self, x):
        time.sleep(0.05)
        return Slowly.apply(super().forward(x.flatten(1)))


def test_forward_backward_and_optimizer_times_are_measured_with_accumulation(trainer, tmp_path):
    """Three of the 8 batches, which include two of the 4 steps, are counted and traced instead of timed."""
    task = ImageClassifier(SlowNet(16, 2), lambda p: SlowSGD(p, 0.1), ["a", "b"])
    run = trainer(callbacks=[Profile(traced=2)], max_epochs=1, limit_val_batches=0, accumulate_grad_batches=2)
    run.fit(task, datamodule=Images(0))
    found = found_in(tmp_path)
    seconds = {name: share / 100 * found["seconds"] for name, share in found["percent"].items()}
    assert found["batches"] == 8
    for name, calls in {"forward": 5, "backward": 5, "optimizer": 2}.items():
        assert 0.05 * calls - 0.01 < seconds[name] < 0.05 * calls + 0.2, name


def test_validation_and_saving_are_measured(trainer, tmp_path):
    """Validations and checkpoints directly follow batches that are not timed, which are all except the first."""

    class Slow(ImageClassifier):
        def validation_step(self, batch, batch_idx):
            time.sleep(0.5)
            return super().validation_step(batch, batch_idx)

        def on_save_checkpoint(self, checkpoint):
            time.sleep(0.4)
            super().on_save_checkpoint(checkpoint)

        def on_train_epoch_end(self):
            super().on_train_epoch_end()
            self.trainer.save_checkpoint(tmp_path / "some.ckpt")

    task = Slow(net(), sgd, ["a", "b"])
    limits = {"limit_train_batches": 2, "limit_val_batches": 1}
    trainer(callbacks=[Profile()], max_epochs=2, **limits).fit(task, datamodule=Images(0))
    found = found_in(tmp_path)
    seconds = {name: share / 100 * found["seconds"] for name, share in found["percent"].items()}
    assert 1 < seconds["validation"] < 2.5  # also includes loading 80 images
    assert 0.8 < seconds["saving"] < 1.2
    assert "flop_per_second" not in found  # no batch was timed


def test_operation_counting_stops_after_an_error(trainer):
    class Failing(ImageClassifier):
        def training_step(self, batch, batch_idx):
            if batch_idx == 1:  # operations are counted in this batch
                raise ValueError("on purpose")
            return super().training_step(batch, batch_idx)

    task = Failing(net(), sgd, ["a", "b"])
    with pytest.raises(ValueError, match="on purpose"):
        trainer(callbacks=[Profile()], max_epochs=1, limit_val_batches=0).fit(task, datamodule=Images(0))
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


@pytest.mark.parametrize(
    ("percent", "product", "words"),
    [
        (
            {"waiting for data": 31.0},
            50,
            "31 % of the time is waiting for data; try this: make the samples of Rainy cheaper",
        ),
        ({"transfer and transforms": 31.0}, 50, "transforms"),
        ({"validation": 31.0}, 50, "--trainer.check_val_every_n_epoch"),
        ({"saving": 21.0}, 50, "longer epochs"),
        ({"callbacks": 31.0}, 50, "figures"),
        ({"other": 41.0}, 50, "larger batches"),
        ({"forward": 60.0}, 5, "small for this device"),
        ({"forward": 60.0}, 50, "bf16"),
    ],
)
def test_advice_depends_on_the_phase_that_takes_the_most_time(percent, product, words):
    shares = {**dict.fromkeys(NAMES, 0.0), **percent}
    assert MEASURING not in shares
    assert words in advice(
        {"percent": shares, "num_workers": None, "data": "Rainy", "percent_of_matrix_product": product}
    )


def test_lightning_profilers_are_supported(lit):
    profiler = ["--trainer.profiler={class_path: SimpleProfiler, init_args: {dirpath: ., filename: times}}"]
    result = lit(f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 --test_after_fit=false", profiler)
    assert result.status == 0, result.err
    assert "run_training_batch" in Path("fit-times.txt").read_text()
