"""New and classic torchvision transforms draw separately for each sample; other transforms receive the whole batch."""

import pytest
import torch
from torch import nn
from torchvision import transforms
from torchvision.transforms import v2

from helpers import classifier
from lit_engine.data.images import BatchTransforms, ImageBatch, transform_with_masks
from lit_engine.errors import DataError
from toy.data import Images


def images(batch=8, channels=2, height=5, width=6):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (batch, channels, height, width), generator=generator, dtype=torch.uint8)


class Own(nn.Module):
    """A user's module that records its input shapes and may contain another transform."""

    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner or nn.Identity()
        self.shapes = []

    def forward(self, images):
        self.shapes.append(tuple(images.shape))
        return self.inner(images)


RANDOM = {
    "crop": v2.RandomCrop((12, 12), padding=3),
    "trivial augment": v2.TrivialAugmentWide(),
    "compose": v2.Compose([v2.Pad(1), v2.RandomCrop((12, 12))]),
    "sequential": nn.Sequential(v2.Pad(1), v2.RandomCrop((12, 12))),
    "classic": transforms.RandomRotation(90),
    "classic compose": transforms.Compose([transforms.Pad(1), transforms.RandomCrop((12, 12))]),
    "nested in a module": Own(v2.RandomRotation(90)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_torchvision_transforms_draw_separately_for_every_sample(name):
    torch.manual_seed(0)
    same = images(batch=1, channels=3, height=12, width=12).expand(32, -1, -1, -1)
    changed = BatchTransforms([RANDOM[name]])(same)
    assert changed.shape == same.shape
    assert changed.dtype == torch.uint8
    assert len({tuple(image.flatten().tolist()) for image in changed}) >= 2


def test_only_modules_with_torchvision_transforms_are_applied_per_image():
    own, user, last = Own(), Own(v2.Pad(1)), Own()
    batch = images(batch=3)
    assert torch.equal(BatchTransforms([own, user, last])(batch), v2.functional.pad(batch, [1]))
    assert own.shapes == [(3, 2, 5, 6)]
    assert user.shapes == [(2, 5, 6)] * 3
    assert last.shapes == [(3, 2, 7, 8)]


def test_masks_move_with_their_images():
    """Each mask follows its image, even for random transforms. Transforms that only change images are rejected."""
    torch.manual_seed(0)
    batch = images(batch=16, channels=1)
    flips = BatchTransforms([v2.RandomHorizontalFlip(), v2.RandomCrop(4)])
    moved = transform_with_masks(flips, batch, batch[:, 0].long())
    assert torch.equal(moved[0][:, 0].long(), moved[1])
    assert moved[1].shape == (16, 4, 4)
    for fill in (0, 1, 2, 3, 114):
        turn = BatchTransforms([v2.RandomRotation((45, 45), fill=fill)])
        _, turned = transform_with_masks(turn, batch, torch.full((16, 5, 6), 2))
        assert turned.unique().tolist() == [-1, 2]  # the corners lie outside the image
    with pytest.raises(DataError, match="Own cannot transform masks: use torchvision"):
        transform_with_masks(BatchTransforms([v2.RandomHorizontalFlip(), Own()]), batch, batch[:, 0].long())


def test_masks_are_also_transformed_during_evaluation():
    data = Images(eval_transforms=[v2.CenterCrop(2)])
    batch = ImageBatch(images(batch=3, channels=1), images(batch=3, channels=1)[:, 0].long(), torch.arange(3))
    moved = data.on_after_batch_transfer(batch, 0)
    assert torch.equal((moved.images[:, 0] * 255).round().long(), moved.targets)
    assert moved.targets.shape == (3, 2, 2)


class Noise(nn.Module):
    """Replaces all images of a batch with the same random number."""

    def forward(self, images):
        return torch.zeros_like(images) + torch.rand(())


def test_augmentation_differs_in_every_batch_of_every_epoch(trainer):
    seen = []
    task = classifier()
    task.net.register_forward_pre_hook(lambda net, inputs: seen.append(round(inputs[0].mean().item(), 5)))
    data = Images(batch_size=4, train_transforms=[Noise()])
    runner = trainer(max_epochs=2, limit_val_batches=0)
    runner.fit(task, datamodule=data)
    assert len(seen) == len(set(seen)) == 2 * runner.num_training_batches > 8
