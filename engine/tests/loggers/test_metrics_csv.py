"""metrics.csv has one row per step, may gain columns at any time, and is continued when resuming."""

import csv

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from helpers import TINY, classifier
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.training.saver import Saver
from toy.data import Images


def rows(folder):
    """Return the rows without empty cells. All other cells must be numbers."""
    with (folder / "metrics.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items() if value != ""} for row in csv.DictReader(file)]


def resumed(folder, state):
    """Return a logger resumed from a checkpoint with this state."""
    logger = MetricsCSV(folder)
    logger.restore_rows(state)
    return logger


def log(logger, *lines):
    for step, metrics in lines:
        logger.log_metrics(metrics, step)
        logger.save()


def test_metrics_logged_at_the_same_step_share_a_row(tmp_path):
    logger = MetricsCSV(tmp_path)
    log(logger, (0, {"epoch": 0, "train/loss": 2.5}), (0, {"epoch": 0, "val/loss": 2.25}), (5, {"train/loss": 1.5}))
    logger.finalize("success")
    assert rows(tmp_path) == [
        {"epoch": 0, "step": 0, "train/loss": 2.5, "val/loss": 2.25},
        {"step": 5, "train/loss": 1.5},
    ]


def test_steps_may_be_tensors_floats_or_omitted(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.step = lambda: 7
    log(logger, (torch.tensor(1), {"loss": 2.0}), (2.5, {"loss": 1.0}), (None, {"loss": 0.5}))
    assert rows(tmp_path) == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 7, "loss": 0.5}]


def test_file_is_complete_after_repeated_saves_and_late_columns(tmp_path):
    logger = MetricsCSV(tmp_path)
    for step in range(20):
        logger.log_metrics({"loss": step / 8}, step)
        if step == 11:
            logger.log_metrics({"late": 1.0}, step)
        if step % 3 == 0:
            logger.save()
    logger.finalize("success")
    logger.finalize("success")  # Lightning calls this for fit and again for test
    late = [{"late": 1.0} if step == 11 else {} for step in range(20)]
    assert rows(tmp_path) == [{"step": step, "loss": step / 8, **late[step]} for step in range(20)]
    assert (tmp_path / "metrics.csv").read_text().count("step") == 1  # only one header


def test_metrics_of_a_long_epoch_are_written_before_it_ends(tmp_path, monkeypatch):
    now = 0.0
    monkeypatch.setattr("lit_engine.loggers.metrics_csv.monotonic", lambda: now)
    logger = MetricsCSV(tmp_path)
    in_file = []
    for step in range(10):
        now += 4.0
        logger.log_metrics({"loss": float(step)}, step)
        in_file.append(len(rows(tmp_path)) if (tmp_path / "metrics.csv").exists() else 0)
    assert in_file == [0, 0, 3, 3, 3, 6, 6, 6, 9, 9]
    logger.finalize("success")
    assert rows(tmp_path) == [{"step": step, "loss": step} for step in range(10)]


def test_metrics_logged_before_a_resume_are_dropped(tmp_path):
    logger = MetricsCSV(tmp_path)
    logger.log_metrics({"early": 1.0}, 0)
    logger.restore_rows({"rows": 0, "last": []})
    logger.save()
    log(logger, (0, {"loss": 2.0}), (1, {"loss": 1.0}))
    assert rows(tmp_path) == [{"step": 0, "loss": 2.0}, {"step": 1, "loss": 1.0}]


def test_a_new_run_overwrites_the_file_and_a_resumed_run_continues_it(tmp_path):
    logger = MetricsCSV(tmp_path)
    log(logger, *((step, {"loss": float(step)}) for step in range(4)))
    state = logger.rows_to_restore()
    log(logger, (4, {"loss": 4.0}), (5, {"loss": 5.0}))
    log(resumed(tmp_path, state), (4, {"loss": 40.0}), (5, {"loss": 50.0}))
    expected = [0.0, 1.0, 2.0, 3.0, 40.0, 50.0]
    assert rows(tmp_path) == [{"step": step, "loss": value} for step, value in enumerate(expected)]
    log(MetricsCSV(tmp_path), (0, {"loss": 9.0}))
    assert rows(tmp_path) == [{"step": 0, "loss": 9.0}]


def test_a_trainer_in_your_own_code_continues_the_file(trainer, tmp_path):
    for epochs in (1, 2):
        saving = {"callbacks": [Saver(), Checkpoint()], "enable_checkpointing": True}
        run = trainer(max_epochs=epochs, logger=MetricsCSV(tmp_path), **saving)
        run.fit(classifier(), datamodule=Images(), ckpt_path="last", weights_only=True)
    assert [row["epoch"] for row in rows(tmp_path)] == [0, 1]


class Stateful(CSVLogger):
    """Logger with a state of its own."""

    def state_dict(self):
        return {"id": 1}

    def load_state_dict(self, state_dict):
        raise AssertionError


def test_other_loggers_may_have_a_state(trainer, tmp_path):
    for epochs in (1, 2):
        saving = {"callbacks": [Saver(), Checkpoint()], "enable_checkpointing": True}
        run = trainer(max_epochs=epochs, logger=[MetricsCSV(tmp_path), Stateful(tmp_path)], **saving)
        run.fit(classifier(), datamodule=Images(), ckpt_path="last", weights_only=True)
    assert [row["epoch"] for row in rows(tmp_path)] == [0, 1]


def test_a_run_resumes_after_a_crash_that_cut_the_last_line_short(tmp_path):
    logger = MetricsCSV(tmp_path)
    log(logger, *((step, {"epoch": 0, "loss": step + 0.125}) for step in range(4)))
    state = logger.rows_to_restore()
    log(logger, (4, {"epoch": 0, "loss": 4.125}))
    file = tmp_path / "metrics.csv"
    file.write_bytes(file.read_bytes()[:-9])
    log(resumed(tmp_path, state), (10, {"loss": 1.0}))
    kept = [{"epoch": 0, "step": step, "loss": step + 0.125} for step in range(4)]
    assert rows(tmp_path) == [*kept, {"step": 10, "loss": 1.0}]


def test_resuming_from_the_validation_at_the_end_of_an_epoch_repeats_no_row(lit):
    options = "--trainer.log_every_n_steps=3 --trainer.check_val_every_n_epoch=2 --model.schedulers=null"
    run = lit(f"fit -c configs/quickstart.yaml {TINY} {options} --epochs 3 --test_after_fit=false").run
    before = (run / "metrics.csv").read_text()
    with (run / "checkpoints" / "last.ckpt").open("r+b") as last:
        last.truncate(1000)  # the run is resumed from the best checkpoint
    assert f"resuming from {run}/checkpoints/best-epoch001.ckpt" in lit(f"fit {run}").out
    steps = [[line.split(",")[0] for line in text.splitlines()] for text in (before, (run / "metrics.csv").read_text())]
    assert steps[0] == steps[1]


def test_resuming_drops_values_logged_after_the_checkpoint(tmp_path):
    logger = MetricsCSV(tmp_path)
    log(logger, (0, {"loss": 1.0}), (4, {"loss": 2.0}))
    state = logger.rows_to_restore()
    log(logger, (4, {"val/loss": 3.0}), (8, {"loss": 4.0}))
    again = MetricsCSV(tmp_path)
    again.finalize("success")
    assert rows(tmp_path)[-1] == {"step": 8, "loss": 4.0}  # without training, the file does not change
    again.restore_rows(state)
    log(again, (4, {"val/loss": 5.0}))
    assert rows(tmp_path) == [{"step": 0, "loss": 1.0}, {"step": 4, "loss": 2.0, "val/loss": 5.0}]


def test_rows_that_could_not_be_written_are_written_later(tmp_path, monkeypatch):
    logger = MetricsCSV(tmp_path)
    log(logger, (0, {"loss": 1.0}))
    logger.log_metrics({"loss": 2.0}, 1)

    def fail(self, rows):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(csv.DictWriter, "writerows", fail)
        with pytest.raises(OSError, match="no space"):
            logger.save()
    logger.save()
    assert rows(tmp_path) == [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 2.0}]
