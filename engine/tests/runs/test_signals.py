"""A run that receives a signal finishes its step, saves, prints how to continue, and loses nothing."""

import os
import signal
import subprocess
import sys
import time
from copy import deepcopy

import pytest
from torch.utils.data import Dataset

from helpers import TINY, classifier, same_weights
from killing import at_call
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.data.sampler import EpochBatches, Loader
from lit_engine.run.directory import RunDir
from lit_engine.training.saver import Saver
from lit_engine.training.signals import Interrupted, Signals
from toy.data import Images
from toy.tasks import ImageClassifier

OPTIONS = f"-c configs/quickstart.yaml {TINY} --trainer.max_epochs=2 --trainer.log_every_n_steps=1"
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]


@pytest.fixture(autouse=True)
def heed(monkeypatch):
    """Reset signals to their default handlers, even if a background shell ignores them."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])  # other signals are tested elsewhere
def test_a_signal_ends_a_run_after_its_step_and_nothing_is_lost(lit, monkeypatch, number):
    whole = lit(f"fit {OPTIONS} --run_name=whole")
    with monkeypatch.context() as patch:
        calls = at_call(patch, ImageClassifier, "training_step", 4, number)
        cut = lit(f"fit {OPTIONS} --run_name=cut")
    assert cut.status == 128 + number  # schedulers and sweeps interpret 0 as completed
    assert len(calls) == 4
    assert "Traceback" not in cut.err
    assert f"interrupted; continue with: toy fit {cut.run}" in cut.out
    last = cut.run / "checkpoints" / "last.ckpt"
    assert read(last)["global_step"] == 4
    assert RunDir.open(cut.run).state() == "stopped"
    resumed = lit(f"fit --run {cut.run}")
    assert resumed.status == 0, resumed.err
    assert RunDir.open(cut.run).state() == "finished"
    assert same_weights(read(last)["state_dict"], read(whole.run / "checkpoints" / "last.ckpt")["state_dict"])


def test_a_trainer_can_reuse_the_saver_of_an_interrupted_fit(trainer, monkeypatch, tmp_path):
    whole = classifier()
    cut, resumed = deepcopy(whole), classifier()
    trainer(max_epochs=2).fit(whole, datamodule=Images(batch_size=8))
    options = {"max_epochs": 2, "callbacks": [Saver(), Checkpoint(monitor=None)], "enable_checkpointing": True}
    calls = at_call(monkeypatch, ImageClassifier, "training_step", 3, signal.SIGINT)
    with pytest.raises(Interrupted):
        trainer(**options).fit(cut, datamodule=Images(batch_size=8))
    assert len(calls) == 3
    last = tmp_path / "checkpoints" / "last.ckpt"
    trainer(**options).fit(resumed, datamodule=Images(batch_size=8), ckpt_path=last, weights_only=True)
    assert same_weights(resumed.state_dict(), whole.state_dict())


def test_a_signal_interrupts_validation_and_resuming_repeats_it(lit, monkeypatch):
    whole = lit(f"fit {OPTIONS} --run_name=whole")
    with monkeypatch.context() as patch:
        # The first two calls are the sanity check.
        calls = at_call(patch, ImageClassifier, "validation_step", 3, signal.SIGTERM)
        cut = lit(f"fit {OPTIONS} --run_name=cut --data.eval_batch_size=20")
    assert cut.status == 143
    assert len(calls) == 3
    last = cut.run / "checkpoints" / "last.ckpt"
    assert read(last)["global_step"] == 10
    resumed = lit(f"fit --run {cut.run}")
    assert resumed.status == 0, resumed.err
    assert "nothing to do" not in resumed.out
    assert same_weights(read(last)["state_dict"], read(whole.run / "checkpoints" / "last.ckpt")["state_dict"])
    assert [path.name for path in last.parent.glob("best*")] == [p.name for p in whole.run.glob("checkpoints/best*")]


def test_a_signal_during_the_sanity_check_creates_no_run(lit, monkeypatch, workspace):
    at_call(monkeypatch, ImageClassifier, "validation_step", 1, signal.SIGTERM)
    cut = lit(f"fit {OPTIONS}")
    assert cut.status == 143
    assert cut.out.splitlines()[-1].startswith("interrupted before anything was saved; deleted runs/quickstart/")
    assert not (workspace / "runs" / "quickstart").exists()


def test_a_signal_while_the_last_figures_are_drawn_postpones_the_test_until_resuming(lit, monkeypatch):
    from lit_engine.callbacks import figures

    at_call(monkeypatch, figures, "save_figure", 2, signal.SIGTERM)
    cut = lit(f"fit {OPTIONS} --test_after_fit=true")
    assert cut.status == 143
    assert not (cut.run / "figures" / "test_confusion_matrix.png").exists()
    resumed = lit(f"fit --run {cut.run}")
    assert resumed.status == 0
    assert "nothing to do" in resumed.out
    assert "test/accuracy" in resumed.out


def test_a_signal_ends_a_prediction(lit, monkeypatch, trained):
    at_call(monkeypatch, ImageClassifier, "predict_step", 1, signal.SIGTERM)
    assert lit(f"predict --run {trained}").status == 143


class Signalled(Dataset):
    """Sends a signal to its own process in the first batch, like a terminal or scheduler."""

    def __init__(self, number):
        self.number = number

    def __len__(self):
        return 4

    def __getitem__(self, indices):
        if 0 in indices:
            signal.raise_signal(self.number)
        return indices


@pytest.mark.parametrize("number", SIGNALS)
def test_dataloader_workers_ignore_signals(number):
    signals, dataset = Signals(), Signalled(number)
    signals.install()
    try:
        loader = Loader(dataset, EpochBatches(4, 2, shuffle=False, seed=0), num_workers=1)
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    finally:
        signals.remove()
    assert not signals.number


def test_a_second_ctrl_c_ends_the_run_immediately(lit, monkeypatch):
    calls = at_call(monkeypatch, ImageClassifier, "training_step", 4, signal.SIGINT, signal.SIGINT)
    cut = lit(f"fit {OPTIONS}")
    assert cut.status == 130
    assert len(calls) == 4
    assert read(cut.run / "checkpoints" / "last.ckpt")["global_step"] == 0  # saved at the start


@pytest.mark.slow
def test_a_stopped_wandb_trial_is_terminated_by_the_signal(workspace):
    """W&B agents count exit status 143 as a failure, but not termination by SIGTERM. Shells report 143 for both."""
    process = subprocess.Popen(
        [sys.executable, "-m", "toy", "fit", *OPTIONS.split(), "--run_name=ended", "--trainer.max_epochs=2000"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "WANDB_SWEEP_ID": "sweep", "WANDB_MODE": "disabled"},
    )  # fmt: skip
    checkpoint = workspace / "runs" / "quickstart" / "ended" / "checkpoints" / "last.ckpt"
    try:
        while not checkpoint.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, err) == (-signal.SIGTERM, "")
    assert out.startswith("run: runs/quickstart/ended\n")  # imports print nothing
    assert "interrupted; continue with: toy fit runs/quickstart/ended" in out


def test_ctrl_c_while_lightning_is_imported_ends_without_a_traceback(workspace):
    code = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'lightning': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "sys.argv[1:] = ['fit', '-c', 'configs/quickstart.yaml']\n"
        "from toy.__main__ import entry_point\n"
        "entry_point()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=workspace, capture_output=True, text=True, timeout=120)
    assert done.returncode == 130
    assert done.stderr == ""
