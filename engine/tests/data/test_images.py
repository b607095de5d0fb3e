"""Images are floats in [0, 1]. Augmentation runs only in training, and depends only on the seed and position."""

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from PIL import Image
from torchvision.transforms import v2

from helpers import Witness
from lit_engine.data.images import to_targets
from lit_engine.errors import DataError
from toy.data import Noise, PictureDataset, Pictures


def test_training_transforms_apply_only_during_training(trainer):
    witness = Witness()
    data = Pictures(train_transforms=[v2.RandomHorizontalFlip(1.0)], eval_transforms=[v2.Pad(1)])
    runner = trainer(max_epochs=1)
    runner.fit(witness, datamodule=data)
    runner.test(witness, datamodule=data, verbose=False)
    runner.predict(witness, datamodule=data)
    for split, batches in witness.batches.items():
        (batch,) = batches
        stored = data.splits["test" if split == "predict" else split][0][batch.indices]
        expected = stored.flip(-1) if split == "train" else v2.Pad(1)(stored)
        assert batch.images.dtype == torch.float32
        assert torch.equal(batch.images, expected.float() / 255), split
        assert sorted(batch.indices.tolist()) == list(range(len(stored)))


def augmented(trainer, seed, **kwargs):
    witness = Witness()
    data = Pictures(batch_size=1, size=4, seed=seed, train_transforms=[Noise()])
    trainer(max_epochs=12, **kwargs).fit(witness, datamodule=data)
    return witness.batches["train"]


def test_augmentation_depends_only_on_seed_epoch_and_sample(trainer):
    class Noise(Callback):
        def on_train_batch_end(self, *args):
            torch.rand(3)

    one = augmented(trainer, seed=1)
    again = augmented(trainer, seed=1, callbacks=[Noise()])
    other = augmented(trainer, seed=2)
    assert all(torch.equal(a.images, b.images) for a, b in zip(one, again, strict=True))
    assert not all(torch.equal(a.images, b.images) for a, b in zip(one, other, strict=True))
    seen = [tuple(batch.images.flatten().tolist()) for batch in one if batch.indices == 0]
    assert len(seen) == 12
    assert len(set(seen)) > 6  # different noise in each epoch


def test_targets_must_be_whole_numbers():
    """`ToTensor` divides masks by 255, and rounding them would make every pixel class 0."""
    mask = np.array([[0, 2], [1, 0]], dtype=np.uint8)
    assert torch.equal(to_targets(Image.fromarray(mask)), torch.tensor([[0, 2], [1, 0]]))
    assert torch.equal(to_targets(torch.tensor([0.0, 2.0])), torch.tensor([0, 2]))
    with pytest.raises(DataError, match=r"must be whole numbers, got 0\.00784314"):
        to_targets(v2.functional.to_dtype(v2.functional.to_image(mask), scale=True))

    class Scaled(Pictures):
        def load(self, split):
            images, targets = super().load(split)
            return images, (targets + 1) / 255

    with pytest.raises(DataError, match="must be whole numbers"):
        Scaled().setup("fit")


@pytest.mark.parametrize("kind", [Pictures, PictureDataset])
def test_overfit_batches_repeats_the_same_batches(trainer, kind):
    data, witness = kind(batch_size=5), Witness()
    trainer(max_epochs=3, overfit_batches=2).fit(witness, datamodule=data)
    batches = [batch.indices.tolist() for batch in witness.batches["train"]]
    assert batches == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]] * 3
