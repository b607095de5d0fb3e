"""What a task gets from any image data: floats in [0, 1], augmented in training alone, the same after a resume."""

import pytest
import torch
from lightning.pytorch import Callback
from torchvision.transforms import v2

from lit_project.data.augmentation import RandomCrop, RandomHorizontalFlip
from picture_data import Pictures, Witness


def test_a_task_gets_floats_in_0_1(trainer):
    witness = Witness()
    data = Pictures(batch_size=8)
    trainer(max_epochs=1).fit(witness, datamodule=data)
    stored = {split: data.splits[split] for split in ("train", "val")}
    for split in ("train", "val"):
        images, targets = stored[split]
        seen = 0
        for batch in witness.batches[split]:
            assert batch.images.dtype == torch.float32
            assert torch.equal(batch.images, images[batch.indices].float() / 255)
            assert torch.equal(batch.targets, targets[batch.indices])
            seen += len(batch.indices)
        assert seen == data.size_of(split)


def test_training_transforms_apply_in_training_alone(trainer):
    witness = Witness()
    data = Pictures(train_transforms=[RandomHorizontalFlip(1.0)], eval_transforms=[v2.Pad(1)])
    runner = trainer(max_epochs=1)
    runner.fit(witness, datamodule=data)
    runner.test(witness, datamodule=data, verbose=False)
    runner.predict(witness, datamodule=data)
    for split, batches in witness.batches.items():
        (batch,) = batches
        stored = data.splits["test" if split == "predict" else split][0][batch.indices]
        expected = stored.flip(-1) if split == "train" else v2.Pad(1)(stored)
        assert torch.equal(batch.images, expected.float() / 255), split


def augmented(witness, trainer, seed, **kwargs):
    data = Pictures(batch_size=6, seed=seed, train_transforms=[RandomCrop(2)])
    trainer(max_epochs=2, **kwargs).fit(witness, datamodule=data)
    return [batch.images for batch in witness.batches["train"]]


def test_augmentation_depends_on_seed_and_place_alone(trainer):
    witness = Witness()

    class Noise(Callback):
        def on_train_batch_end(self, *args):
            torch.rand(3)

    images = augmented(witness, trainer, seed=1)
    again = augmented(Witness(), trainer, seed=1, callbacks=[Noise()])
    other = augmented(Witness(), trainer, seed=2)
    assert len(images) == 8
    assert all(torch.equal(a, b) for a, b in zip(images, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(images, other, strict=True))


def test_one_sample_is_augmented_anew_in_every_epoch(trainer):
    witness = Witness()
    data = Pictures(batch_size=1, size=2, train_transforms=[RandomCrop(2)])
    trainer(max_epochs=12).fit(witness, datamodule=data)
    crops = [tuple(batch.images.flatten().tolist()) for batch in witness.batches["train"] if batch.indices == 0]
    assert len(crops) == 12
    assert len(set(crops)) > 6


@pytest.mark.parametrize("drop_last", [False, True])
def test_drop_last(trainer, drop_last):
    witness = Witness()
    trainer(max_epochs=1).fit(witness, datamodule=Pictures(batch_size=5, eval_batch_size=5, drop_last=drop_last))
    assert [len(b.targets) for b in witness.batches["train"]] == ([5] * 4 if drop_last else [5] * 4 + [3])
    assert [len(b.targets) for b in witness.batches["val"]] == [5, 5, 1]  # evaluation leaves nothing out
