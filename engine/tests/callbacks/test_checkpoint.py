"""Tests which checkpoints a run keeps, and whether runs stopped at unusual points resume correctly."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback
from lightning.pytorch.loggers import CSVLogger
from small_images import Images
from torch import nn
from torchmetrics import SumMetric

from helpers import SaveAt
from lit_engine.callbacks.record import RunRecord
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.errors import UserError
from lit_engine.run.directory import RunDir
from lit_engine.training.saver import Saver
from toy.tasks import ImageClassifier


def task():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    return ImageClassifier(net, partial(torch.optim.SGD, lr=0.1), ["a", "b", "c"], [0.4], [0.3])


class StopAfterValidation(Callback):
    """Requests a stop in the validation after the second step."""

    def on_validation_end(self, trainer, module):
        trainer.should_stop |= trainer.global_step == 2


def test_a_stop_requested_by_mid_epoch_validation_loses_no_batch(trainer, tmp_path):
    options = {"max_epochs": 2, "val_check_interval": 2, "enable_checkpointing": True}
    whole = task()
    trainer(**options).fit(whole, datamodule=Images())
    stopped = trainer(callbacks=[Saver(), StopAfterValidation(), Checkpoint(monitor=None)], **options)
    stopped.fit(task(), datamodule=Images())
    assert stopped.global_step == 2
    last, resumed = tmp_path / "checkpoints" / "last.ckpt", task()
    run = trainer(callbacks=[Saver(), Checkpoint(monitor=None)], **options)
    run.fit(resumed, datamodule=Images(), ckpt_path=last, weights_only=True)
    assert run.global_step == 8
    assert torch.equal(resumed.net[1].weight, whole.net[1].weight)


def test_a_checkpoint_that_is_saved_after_training_can_be_resumed(trainer, tmp_path):
    run = trainer(max_epochs=1, callbacks=[Saver()])
    run.fit(task(), datamodule=Images())
    run.save_checkpoint(tmp_path / "final.ckpt")
    resumed = trainer(max_epochs=2, callbacks=[Saver()])
    resumed.fit(task(), datamodule=Images(), ckpt_path=tmp_path / "final.ckpt", weights_only=True)
    assert resumed.global_step == 2 * run.global_step


def test_a_fit_after_a_test_does_not_start_from_the_tested_checkpoint(trainer, tmp_path):
    saver, seen = Saver(), []
    run = trainer(max_epochs=1, callbacks=[saver])
    run.fit(task(), datamodule=Images())
    run.save_checkpoint(tmp_path / "final.ckpt")
    run.test(task(), datamodule=Images(), ckpt_path=tmp_path / "final.ckpt", weights_only=True)
    look = LambdaCallback(on_train_epoch_start=lambda trainer, module: seen.append({**trainer.callback_metrics}))
    trainer(max_epochs=1, callbacks=[saver, look]).fit(task(), datamodule=Images())
    assert seen == [{}]


def test_the_last_checkpoint_is_found_even_if_a_logger_has_its_own_folder(trainer, tmp_path):
    for epochs in (1, 2):
        saving = {"callbacks": [Saver(), Checkpoint(monitor=None)], "enable_checkpointing": True}
        run = trainer(max_epochs=epochs, logger=CSVLogger(tmp_path), **saving)
        run.fit(task(), datamodule=Images(), ckpt_path="last", weights_only=True)
    assert run.ckpt_path == str(tmp_path / "checkpoints" / "last.ckpt")


class Counts(ImageClassifier):
    """Logs the number of training samples in an epoch."""

    def __init__(self, *args):
        super().__init__(*args)
        self.total = SumMetric()

    def training_step(self, batch, batch_idx):
        self.total.update(len(batch[0]))
        self.log("total", self.total, on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)


def test_a_second_fit_does_not_restore_the_checkpoint_again(trainer, tmp_path):
    counts = Counts(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), partial(torch.optim.SGD, lr=0.1), ["a", "b", "c"])
    trainer(max_epochs=1, callbacks=[Saver(), SaveAt(2, tmp_path / "middle.ckpt")]).fit(counts, datamodule=Images())
    run = trainer(max_epochs=1, callbacks=[Saver()])
    run.fit(counts, datamodule=Images(), ckpt_path=tmp_path / "middle.ckpt", weights_only=True)
    run.fit_loop.max_epochs = 2
    run.fit(counts, datamodule=Images())
    assert run.callback_metrics["total"] == 32


class StopAfterBatch(Callback):
    """Requests a stop after the given micro-batch."""

    def __init__(self, number):
        self.number = number

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        trainer.should_stop |= batch_idx + 1 == self.number


def test_a_stop_waits_for_the_end_of_gradient_accumulation(trainer, tmp_path):
    """The eight micro-batches are accumulated in windows of three, so the last window has two."""
    options = {"max_epochs": 2, "accumulate_grad_batches": 3, "enable_checkpointing": True}
    whole = task()
    trainer(**options).fit(whole, datamodule=Images(batch_size=4))
    stopped = trainer(callbacks=[Saver(), StopAfterBatch(7), Checkpoint(monitor=None)], **options)
    stopped.fit(task(), datamodule=Images(batch_size=4))
    assert stopped.global_step == 3
    last, resumed = tmp_path / "checkpoints" / "last.ckpt", task()
    run = trainer(**options)
    run.fit(resumed, datamodule=Images(batch_size=4), ckpt_path=last, weights_only=True)
    assert run.global_step == 6
    assert torch.allclose(resumed.net[1].weight, whole.net[1].weight, atol=1e-7)


def test_a_run_early_stopped_in_its_first_epoch_counts_as_finished(trainer, tmp_path):
    def run(**resumed):
        stopping = EarlyStopping("val/loss", min_delta=100, patience=1, check_on_train_epoch_end=False)
        parts = [RunRecord(RunDir(tmp_path)), Saver(), stopping, Checkpoint(monitor=None)]
        runner = trainer(max_epochs=3, val_check_interval=1, callbacks=parts, enable_checkpointing=True)
        runner.fit(task(), datamodule=Images(), **resumed)
        return runner.global_step

    assert run() == 2
    assert run(ckpt_path=tmp_path / "checkpoints" / "last.ckpt", weights_only=True) <= 3  # Lightning performs one step


def test_keep_last_orders_epochs_by_number(trainer, tmp_path):
    """In alphabetical order, epoch1000 would be first."""
    (tmp_path / "checkpoints").mkdir()
    mine = tmp_path / "checkpoints" / "epoch-of-mine.ckpt"
    mine.touch()
    fit = trainer(
        max_epochs=1002, callbacks=[Saver(), Checkpoint(monitor=None, keep_last=2)], enable_checkpointing=True
    )
    fit.fit_loop.epoch_progress.current.processed = 997
    fit.fit(task(), datamodule=Images())
    kept = sorted(path.name for path in mine.parent.glob("epoch[0-9]*"))
    assert kept == ["epoch1000.ckpt", "epoch1001.ckpt"]
    assert mine.exists()


def test_keep_last_does_not_keep_epochs_that_are_saved_for_other_reasons(trainer, tmp_path):
    checkpoint = Checkpoint(monitor=None, keep_last=2, every_n_epochs=2, every_minutes=1e-9)
    fit = trainer(max_epochs=6, callbacks=[Saver(), checkpoint], enable_checkpointing=True)
    fit.fit(task(), datamodule=Images())
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("epoch*"))
    assert kept == ["epoch003.ckpt", "epoch005.ckpt"]


class Saved(Callback):
    """Appends the trainer attribute `counter` to `found` whenever a checkpoint is saved."""

    def __init__(self, found, counter):
        self.found, self.counter = found, counter

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.found.append(getattr(trainer, self.counter))


def test_the_last_epoch_is_saved_regardless_of_every_n_epochs(trainer, tmp_path):
    saved = []
    parts = [Saver(), Checkpoint(monitor=None, every_n_epochs=2), Saved(saved, "current_epoch")]
    trainer(max_epochs=5, callbacks=parts, enable_checkpointing=True).fit(task(), datamodule=Images())
    assert saved == [0, 2, 4, 5]  # completed epochs
    assert read(tmp_path / "checkpoints" / "last.ckpt")["epoch"] == 5


def test_a_resumed_callback_restores_the_last_validation_score(trainer):
    options = {"max_epochs": 2, "enable_checkpointing": True}
    first, resumed = Checkpoint("val/loss", "min"), Checkpoint("val/loss", "min")
    trainer(callbacks=[Saver(), first], **options).fit(task(), datamodule=Images())
    last = f"{first.dirpath}/last.ckpt"
    trainer(callbacks=[Saver(), resumed], **options).fit(task(), datamodule=Images(), ckpt_path=last, weights_only=True)
    assert resumed.current_score == first.current_score
    assert first.current_score is not None


def test_a_stop_that_waits_for_min_steps_loses_no_batch(trainer, tmp_path):
    """Each epoch has four steps, and the stop is requested after the second one."""
    options = {"max_epochs": 2, "enable_checkpointing": True}
    whole, resumed = task(), task()
    trainer(**options).fit(whole, datamodule=Images())
    stopped = trainer(callbacks=[Saver(), StopAfterBatch(2), Checkpoint(monitor=None)], min_steps=6, **options)
    stopped.fit(task(), datamodule=Images())
    assert stopped.global_step == 6
    last, run = tmp_path / "checkpoints" / "last.ckpt", trainer(**options)
    run.fit(resumed, datamodule=Images(), ckpt_path=last, weights_only=True)
    assert run.global_step == 8
    assert torch.equal(resumed.net[1].weight, whole.net[1].weight)


class Pair(LightningModule):
    """Steps two optimizers for each batch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.weights = nn.ParameterList([torch.zeros(()), torch.zeros(())])

    def training_step(self, batch, batch_idx):
        for weight, optimizer in zip(self.weights, self.optimizers(), strict=True):
            self.manual_backward((weight - 1) ** 2)
            optimizer.step()

    def configure_optimizers(self):
        return [torch.optim.SGD([weight], lr=0.1) for weight in self.weights]


def test_two_steps_per_batch_may_skip_every_n_steps_and_max_steps(trainer, tmp_path):
    saved, options = [], {"max_epochs": 2, "enable_checkpointing": True}
    parts = [Saver(), Checkpoint(monitor=None, every_n_steps=3), Saved(saved, "global_step")]
    trainer(callbacks=parts, max_steps=5, **options).fit(Pair(), datamodule=Images())
    assert saved == [0, 4, 6]
    run = trainer(callbacks=[Saver(), Checkpoint(monitor=None)], **options)
    run.fit(Pair(), datamodule=Images(), ckpt_path=tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert run.global_step == 16


@pytest.mark.parametrize(("options", "message"), [
    ({"monitor": "val/score"}, "monitor val/score needs a mode: set mode to"),
    ({"every_minutes": 0}, "every_minutes must be above 0, got 0; null disables it"),
    ({"every_n_steps": 0}, "every_n_steps must be at least 1, got 0"),
])  # fmt: skip
def test_rejects_invalid_options(options, message):
    with pytest.raises(UserError, match=message):
        Checkpoint(**options)


def test_the_monitored_metric_need_not_come_from_validation(trainer, tmp_path):
    trainer(max_epochs=2, callbacks=[Saver(), Checkpoint("lr", "min")], enable_checkpointing=True).fit(
        task(), datamodule=Images()
    )
    assert (tmp_path / "checkpoints" / "best-epoch000.ckpt").exists()


def test_several_best_checkpoints_from_one_epoch_do_not_overwrite_each_other(trainer, tmp_path):
    callback = Checkpoint("val/loss", "min", save_top_k=-1)
    kept = {"enable_checkpointing": True, "val_check_interval": 0.5}
    trainer(max_epochs=2, callbacks=[Saver(), callback], **kept).fit(task(), datamodule=Images())
    assert len(callback.best_k_models) == len(list((tmp_path / "checkpoints").glob("best-*"))) == 4


class Opposed(LightningModule):
    """Logs a loss that improves in each epoch, and a score that is best in the first epoch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_idx):
        return (self.weight - 1) ** 2

    def validation_step(self, batch, batch_idx):
        self.log_dict({"val/loss": 1 - self.current_epoch / 10, "val/score": -self.current_epoch / 10})

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_two_callbacks_keep_their_own_best_checkpoints(trainer, tmp_path):
    callbacks = [Checkpoint("val/score", "max"), Checkpoint("val/loss", "min")]
    run = trainer(callbacks=[Saver(), *callbacks], max_epochs=3, enable_checkpointing=True)
    run.fit(Opposed(), datamodule=Images())
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best-epoch000.ckpt", "best-val-loss-epoch002.ckpt", "last.ckpt"]
    assert choose_checkpoint(RunDir(tmp_path)).name == "best-epoch000.ckpt"


class Fails(Callback):
    """Raises an error before the first batch."""

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        raise ValueError("a broken file")


def test_after_a_failed_fit_only_the_next_trainer_saves_the_task(trainer, tmp_path):
    """The same task may be trained again, for example in a notebook."""
    mine, kept = task(), {"monitor": None, "every_minutes": 1e-9}
    first, second = (
        trainer(callbacks=[Saver(), Checkpoint(**kept), *others], max_epochs=1, enable_checkpointing=True,
                default_root_dir=tmp_path / folder)
        for folder, others in (("first", [Fails()]), ("second", []))
    )  # fmt: skip
    with pytest.raises(ValueError, match="a broken file"):
        first.fit(mine, datamodule=Images())
    before = (tmp_path / "first" / "checkpoints" / "last.ckpt").read_bytes()
    second.fit(mine, datamodule=Images())
    assert (tmp_path / "first" / "checkpoints" / "last.ckpt").read_bytes() == before
    assert read(tmp_path / "second" / "checkpoints" / "last.ckpt")["global_step"] == second.global_step


def test_zero_patience_stops_at_the_first_epoch_without_improvement(trainer, tmp_path):
    stopping = EarlyStopping("val/loss", min_delta=100, patience=0)
    run = trainer(max_epochs=5, callbacks=[RunRecord(RunDir(tmp_path)), Saver(), stopping, Checkpoint(monitor=None)],
                  enable_checkpointing=True)  # fmt: skip
    run.fit(task(), datamodule=Images())
    assert run.current_epoch == 2


def test_the_best_score_is_kept_if_every_n_epochs_changes(trainer, tmp_path):
    before = Checkpoint(monitor="val/loss", mode="min")
    trainer(max_epochs=1, enable_checkpointing=True, callbacks=[Saver(), before]).fit(task(), datamodule=Images())
    after, last = Checkpoint(monitor="val/loss", mode="min", every_n_epochs=2), tmp_path / "checkpoints" / "last.ckpt"
    run = trainer(max_epochs=1, enable_checkpointing=True, callbacks=[Saver(), after])
    run.fit(task(), datamodule=Images(), ckpt_path=last, weights_only=True)
    assert after.best_model_score == before.best_model_score
