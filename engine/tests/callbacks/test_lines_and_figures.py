"""Printed lines and figures show the monitored metric and use the same epoch numbers as the run's files."""

import csv
import re

import pytest

from helpers import TINY
from lit_engine.callbacks import figures as viz

MONITORED = "val/top3_accuracy"


@pytest.fixture
def drawn(monkeypatch):
    """Record the drawn figures by name, together with the arguments of the drawing function."""
    made = {}

    def spy(name):
        draw = getattr(viz, name)

        def drawing(*args):
            made[name] = args, draw(*args)
            return made[name][1]

        monkeypatch.setattr(viz, name, drawing)

    for name in ("learning_curves", "gallery"):
        spy(name)
    return made


def test_epochs_are_numbered_consistently_and_the_monitored_metric_is_shown(lit, drawn):
    result = lit(
        f"fit -c configs/quickstart.yaml {TINY} --model.top_k=3 --trainer.max_epochs=4 --run_name=shown "
        "--trainer.callbacks=null --trainer.callbacks+=Figures --trainer.callbacks+=Checkpoint "
        f"--trainer.callbacks.monitor={MONITORED} --trainer.callbacks.mode=max"
    )
    assert result.status == 0, result.err
    rows = {
        row["epoch"]: row[MONITORED] for row in csv.DictReader((result.run / "metrics.csv").open()) if row[MONITORED]
    }
    lines = dict(re.findall(rf"^epoch (\d) .* {MONITORED} (\S+)", result.out, re.MULTILINE))
    assert list(lines) == list(rows) == ["0", "1", "2", "3"]
    for epoch, value in rows.items():
        assert float(lines[epoch]) == pytest.approx(float(value), abs=1e-4)
    (curves, best), figure = drawn["learning_curves"]
    assert curves["top3_accuracy"]["val"] == [(float(epoch), float(value)) for epoch, value in rows.items()]
    assert best == float(max(rows, key=lambda epoch: float(rows[epoch])))
    assert (result.run / "checkpoints" / f"best-epoch{best:03.0f}.ckpt").exists()
    assert figure.axes[0].get_yscale() == "log"
    assert figure.get_supxlabel() == "quickstart/shown"
    (_, captions, _), _ = drawn["gallery"]
    assert re.fullmatch(r"true: \d\npredicted: \d\n\d+%, index \d+", captions[0])


def test_early_stopping_on_a_missing_metric_lists_the_available_metrics(lit):
    stop = "--trainer.callbacks+=EarlyStopping --trainer.callbacks.mode=max"
    fit = f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=1 {stop}"
    result = lit(f"{fit} --trainer.callbacks.monitor=train/f1")
    assert result.status == 2
    assert re.fullmatch(r"error: Early stopping .*`train/f1`.* Available metrics: lr, .*val/loss.*\n", result.err)
    later = "--data.eval_batch_size=1 --trainer.limit_val_batches=1.0 --trainer.callbacks.monitor"
    assert lit(f"{fit} {later}=val/class_accuracy/3").status == 0  # the sanity check sees no class 3
