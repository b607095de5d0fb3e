"""A resumed run sees exactly the batches that the interrupted run would have seen, including augmentation."""

from multiprocessing import active_children

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from helpers import SaveAt, Witness
from toy.data import Noise, PictureDataset, Pictures


@pytest.fixture(params=["memory", "workers"])
def make(request):
    """Return a function that creates data with 23 training images."""
    common = {"batch_size": 5, "seed": 1, "train_transforms": [Noise()]}
    if request.param == "memory":
        return lambda: Pictures(**common)
    return lambda: PictureDataset(num_workers=2, **common)


IN_MEMORY = pytest.mark.parametrize("make", ["memory"], indirect=True)  # these tests do not depend on workers


class AsksForTheLength(Witness):
    """Requests the run length, like a learning rate schedule that spans the whole run."""

    def configure_optimizers(self):
        assert self.trainer.estimated_stepping_batches == 15
        return super().configure_optimizers()


class RestoresLate(SingleDeviceStrategy):
    """Restores checkpoints after creating optimizers and schedules, like sharding strategies."""

    restore_checkpoint_after_setup = True


@pytest.mark.parametrize(("kind", "step", "late"), [
    (Witness, 7, False), (AsksForTheLength, 10, False), (AsksForTheLength, 8, True),
])  # fmt: skip
def test_resuming_mid_epoch_or_at_epoch_end_yields_the_same_batches(make, trainer, tmp_path, step, kind, late):
    whole, resumed = kind(), kind()
    trainer(max_epochs=3, callbacks=[SaveAt(step, tmp_path / "saved.ckpt")]).fit(whole, datamodule=make())
    torch.rand(5)
    runner = trainer(max_epochs=3, strategy=RestoresLate() if late else "auto")
    runner.fit(resumed, datamodule=make(), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    expected = whole.batches["train"]
    assert len(expected) == 15
    assert len(resumed.batches["train"]) == 15 - step
    for batch, after in zip(expected[step:], resumed.batches["train"], strict=True):
        assert torch.equal(batch.indices, after.indices)
        assert torch.equal(batch.images, after.images)


@IN_MEMORY
def test_training_after_evaluating_a_checkpoint_starts_at_the_first_batch(make, trainer, tmp_path):
    data = make()
    trainer(max_epochs=1, callbacks=[SaveAt(3, tmp_path / "saved.ckpt")]).fit(Witness(), datamodule=data)
    data = make()
    trainer().validate(Witness(), datamodule=data, ckpt_path=tmp_path / "saved.ckpt", weights_only=True, verbose=False)
    witness = Witness()
    trainer(max_epochs=1).fit(witness, datamodule=data)
    assert len(witness.batches["train"]) == 5


@pytest.mark.parametrize("make", ["workers"], indirect=True)
def test_workers_stop_after_training(make, trainer):
    before = set(active_children())  # other tests may have left workers
    trainer(max_epochs=1).fit(Witness(), datamodule=make())
    assert set(active_children()) <= before


class Interrupted(Exception):
    """Simulates an external interruption of a run."""


class StopAt(SaveAt):
    """Saves a checkpoint, then stops the run immediately."""

    def on_train_batch_end(self, trainer, *args):
        super().on_train_batch_end(trainer, *args)
        if trainer.global_step == self.step:
            raise Interrupted


@IN_MEMORY
def test_a_run_interrupted_twice_in_one_epoch_sees_the_same_batches(make, trainer, tmp_path):
    seen = []
    for step in (6, 8, 10):
        witness = Witness()
        checkpoint = tmp_path / "saved.ckpt" if seen else None
        runner = trainer(max_epochs=3, callbacks=[StopAt(step, tmp_path / "saved.ckpt")])
        with pytest.raises(Interrupted):
            runner.fit(witness, datamodule=make(), ckpt_path=checkpoint, weights_only=True)
        seen += witness.batches["train"]
    whole = Witness()
    trainer(max_epochs=2).fit(whole, datamodule=make())
    assert [batch.indices.tolist() for batch in seen] == [batch.indices.tolist() for batch in whole.batches["train"]]


@IN_MEMORY
def test_loaders_reloaded_after_a_resume_start_at_the_first_batch(make, trainer, tmp_path):
    trainer(max_epochs=1, callbacks=[SaveAt(3, tmp_path / "saved.ckpt")]).fit(Witness(), datamodule=make())
    resumed = Witness()
    runner = trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1)
    runner.fit(resumed, datamodule=make(), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert len(resumed.batches["train"]) == 2 + 5 + 5
