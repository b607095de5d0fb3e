"""Epoch lines, the summary before training, and the live display in terminals."""

import csv
import io
import itertools
import json
import math
import re
import signal
from pathlib import Path

import pytest
from lightning.pytorch.demos.boring_classes import BoringModel
from rich.console import Console

from helpers import SaveAt
from lit_engine.callbacks import progress
from lit_engine.callbacks.progress import display
from lit_engine.training.signals import Interrupted, Signals


def test_each_epoch_prints_a_line_and_new_best_epochs_are_marked(lit):
    result = lit("fit -c configs/quickstart.yaml --epochs 4 --trainer.limit_train_batches=4 --name a")
    lines = [line for line in result.out.splitlines() if line.startswith("epoch ")]
    assert [re.match(r"epoch (\d) \((\d) of 4\)", line).groups() for line in lines] == [
        (str(n), str(n + 1)) for n in range(4)
    ]
    losses = [float(re.search(r"val/loss (\S+)", line)[1]) for line in lines]
    for number, line in enumerate(lines):
        assert line.endswith("  best") == (losses[number] < min(losses[:number], default=float("inf")))


def test_an_epoch_is_marked_if_any_of_its_validations_is_the_best(lit):
    options = "--epochs 6 --trainer.val_check_interval=2 --model.optimizer.lr=0.3 --model.schedulers=null"
    result = lit("fit -c configs/quickstart.yaml --trainer.limit_train_batches=6 --name a", options)
    marked = [line.endswith("  best") for line in result.out.splitlines() if line.startswith("epoch ")]
    losses = {}
    for row in csv.DictReader((result.run / "metrics.csv").open()):
        if row["val/loss"]:
            losses.setdefault(row["epoch"], []).append(float(row["val/loss"]))
    lowest = [min(values) for values in losses.values()]
    assert marked == [value < min(lowest[:number], default=math.inf) for number, value in enumerate(lowest)]
    ends_worse = [values[-1] > min(values) for values in losses.values()]
    assert any(mark and worse for mark, worse in zip(marked, ends_worse, strict=True))


def test_the_summary_counts_samples_classes_and_steps(lit):
    out = lit("fit -c configs/quickstart.yaml --epochs 2 --name a").out
    (line,) = [line for line in out.splitlines() if " samples, " in line]
    assert line.endswith("; cpu, 32-true")
    found = dict(re.findall(r"(?P<count>\d[\d,]*) (train|val|classes|epochs)", line))
    counts = {what: int(count.replace(",", "")) for count, what in found.items()}
    fit = json.loads((Path("runs/quickstart/a") / "metrics.json").read_text())["fit"]
    steps = int(re.search(r"× ([\d,]+) steps", line)[1])
    assert (counts["epochs"], counts["epochs"] * steps) == (fit["epochs"], fit["steps"]) == (2, 2 * steps)
    assert counts["train"] > counts["val"] > counts["classes"] > 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_progress_display_has_two_lines_at_any_width(width):
    text = io.StringIO()
    facts = ["12:34:56 left", "1,234,567 samples/s", "lr 0.00123"]
    Console(file=text, width=width).print(display("epoch 99 (100 of 100)", 99, 100, facts, "x 1.0  " * 99))
    assert len(text.getvalue().splitlines()) == 2


def test_the_speed_after_a_resume_within_an_epoch_counts_only_new_batches(trainer, tmp_path, monkeypatch):
    file, seconds, speeds = tmp_path / "saved.ckpt", itertools.count(), []
    monkeypatch.setattr(progress, "perf_counter", lambda: next(seconds))
    monkeypatch.setattr(progress, "SECONDS", 0)
    monkeypatch.setattr(progress, "display", lambda *args: speeds.append(float(args[3][1].split()[0])) or "")
    trainer(max_epochs=1, callbacks=[SaveAt(40, file)]).fit(BoringModel())
    resumed = trainer(max_epochs=1, callbacks=[progress.TerminalProgress(Signals())], limit_val_batches=0)
    resumed.fit(BoringModel(), ckpt_path=file)
    assert len(speeds) == 24
    assert max(speeds) <= 1


@pytest.mark.parametrize("shown", [True, False])
def test_the_message_after_ctrl_c_replaces_the_bar(capfd, shown):
    signals = Signals()
    signals.deferred, signals.is_bar_shown = True, shown
    signals.receive(signal.SIGINT, None)
    text = capfd.readouterr().err
    assert "finishing this step and saving" in text
    assert ("\x1b[J" in text.partition("finishing")[0]) == shown  # erases the bar before the message
    with pytest.raises(Interrupted):
        signals.receive(signal.SIGINT, None)
