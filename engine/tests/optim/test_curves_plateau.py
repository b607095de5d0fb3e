"""Tests learning rates that depend on a metric."""

from functools import partial

import pytest
import torch
from curves import LR, Noted, close, halving
from torch.optim import lr_scheduler as torch_schedulers

from lit_engine.errors import UserError
from lit_engine.training.schedules import Schedule


def test_plateau_lowers_the_rate_when_the_metric_stops_falling(train):
    plateau = partial(torch_schedulers.ReduceLROnPlateau, factor=0.1, patience=1)
    losses = [1.0, 0.9, 0.95, 0.92, 0.8, 0.7, 0.7, 0.7]
    # At the end of the fourth and the eighth epoch, the metric has not improved for two epochs.
    task = train(Schedule(plateau, "epoch", monitor="val/loss"), batches=2, max_epochs=8, losses=losses)
    assert task.rates == close([LR] * 8 + [0.1 * LR] * 8)


def test_plateau_may_monitor_a_training_metric(train):
    class Running(Noted):
        def training_step(self, batch, batch_idx):
            output = super().training_step(batch, batch_idx)
            self.running.add(1, loss=torch.tensor(1.0 + self.current_epoch))
            return output

    plateau = partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=0)
    task = train(Schedule(plateau, "epoch", monitor="train/loss"), kind=Running, batches=2, max_epochs=3)
    assert task.rates == close([LR] * 4 + [LR / 2] * 2)


def test_epochs_without_validation_do_not_count_as_bad_epochs(train):
    plateau = partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=0)
    schedule = Schedule(plateau, "epoch", monitor="val/loss")
    # Validation runs only in the second, fourth and sixth epochs, and its loss rises once.
    losses = [9.0, 1.0, 9.0, 2.0, 9.0, 0.5]
    task = train(schedule, batches=1, max_epochs=6, losses=losses, check_val_every_n_epoch=2)
    assert task.rates == close([LR] * 4 + [LR / 2] * 2)


def test_a_subclass_may_create_schedulers_as_in_lightning(train):
    class Scheduled(Noted):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=LR)
            plateau = torch_schedulers.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
            return [optimizer], [
                {"scheduler": plateau, "monitor": "val/loss"},
                {"scheduler": halving(2)(optimizer), "interval": "step"},
            ]

    # The loss rises in the second epoch, which ends with the second step.
    task = train(kind=Scheduled, batches=1, max_epochs=4, losses=[1.0, 2.0, 0.5, 0.4])
    assert task.rates == close([LR] * 2 + [LR / 4] * 2)


def test_rejects_monitoring_a_validation_metric_without_validation(train):
    plateau = partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=0)
    with pytest.raises(UserError, match="monitors 'val/loss', but the run has no validation"):
        train(Schedule(plateau, "epoch", monitor="val/loss"), losses=[1.0], limit_val_batches=0)


def test_plateau_with_frequency_two_sees_every_second_epoch(train):
    plateau = partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=0)
    schedule = Schedule(plateau, "epoch", frequency=2, monitor="val/loss")
    # The schedule sees the second, fourth and sixth epochs, and the loss rises in the fourth.
    task = train(schedule, batches=1, max_epochs=7, losses=[9.0, 1.0, 0.1, 2.0, 0.1, 0.5, 0.1])
    assert task.rates == close([LR] * 4 + [LR / 2] * 3)
