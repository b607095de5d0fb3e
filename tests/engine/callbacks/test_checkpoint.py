"""Which checkpoints of a run are kept."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from small_images import Images
from torch import nn

from lit_project.engine.checkpoints import Checkpoint, read
from lit_project.engine.errors import UserError
from lit_project.tasks.classification import ImageClassifier


def test_the_last_epochs_are_the_last_by_number(trainer, tmp_path):
    """In the order of text epoch1000 would be the first."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    task = ImageClassifier(net, partial(torch.optim.SGD, lr=0.1), ["a", "b", "c"], [0.4], [0.3])
    (tmp_path / "checkpoints").mkdir()
    mine = tmp_path / "checkpoints" / "epoch-of-mine.ckpt"
    mine.touch()
    fit = trainer(max_epochs=1002, callbacks=[Checkpoint(monitor=None, keep_last=2)], enable_checkpointing=True)
    fit.fit_loop.epoch_progress.current.processed = 997
    fit.fit(task, datamodule=Images())
    kept = sorted(path.name for path in mine.parent.glob("epoch[0-9]*"))
    assert kept == ["epoch1000.ckpt", "epoch1001.ckpt"]
    assert mine.exists()


@pytest.mark.parametrize(("epochs", "every"), [(5, 2), (3, 5)])
def test_the_last_epoch_is_saved_however_rarely_others_are(trainer, tmp_path, epochs, every):
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    task = ImageClassifier(net, partial(torch.optim.SGD, lr=0.1), ["a", "b", "c"], [0.4], [0.3])
    callback = Checkpoint(monitor=None, every_n_epochs=every)
    saved = []

    class Saved(Callback):
        def on_save_checkpoint(self, trainer, module, checkpoint):
            saved.append(trainer.current_epoch + 1)

    trainer(max_epochs=epochs, callbacks=[callback, Saved()], enable_checkpointing=True).fit(task, datamodule=Images())
    assert sorted({*saved}) == sorted({*range(every, epochs + 1, every), epochs})
    assert read(tmp_path / "checkpoints" / "last.ckpt")["epoch"] == epochs - 1


def test_a_metric_needs_a_mode():
    with pytest.raises(UserError, match="watches val/score: give its mode"):
        Checkpoint("val/score")


def test_several_of_one_epoch_are_kept_apart(trainer, tmp_path):
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    task = ImageClassifier(net, partial(torch.optim.SGD, lr=0.1), ["a", "b", "c"], [0.4], [0.3])
    callback = Checkpoint("val/loss", "min", save_top_k=-1)
    kept = {"enable_checkpointing": True, "val_check_interval": 0.5}
    trainer(max_epochs=2, callbacks=[callback], **kept).fit(task, datamodule=Images())
    assert len(callback.best_k_models) == len(list((tmp_path / "checkpoints").glob("best-*"))) == 4
