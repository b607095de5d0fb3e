"""Transforms of torchvision, new and classic, draw for every sample of a batch; all are applied in their order."""

import pytest
import torch
from torch import nn
from torchvision import transforms
from torchvision.transforms import v2

from lit_project.data.augmentation import RandomCrop
from lit_project.engine.images import BatchTransforms
from pixels import images, windows


class Own(nn.Module):
    """A user's module that uses a transform of torchvision."""

    def __init__(self, transform):
        super().__init__()
        self.inner = transform

    def forward(self, images):
        return self.inner(images)


RANDOM = {
    "flip": v2.RandomHorizontalFlip(),
    "crop": v2.RandomCrop((12, 12), padding=3),
    "resized crop": v2.RandomResizedCrop(12, antialias=True),
    "rotation": v2.RandomRotation(90),
    "blur": v2.GaussianBlur(3, sigma=(0.1, 5.0)),
    "erasing": v2.RandomErasing(p=1.0),
    "apply": v2.RandomApply([v2.Pad(1), v2.CenterCrop(12), v2.RandomInvert(p=1.0)]),
    "trivial augment": v2.TrivialAugmentWide(),
    "compose": v2.Compose([v2.Pad(1), v2.RandomCrop((12, 12))]),
    "sequential": nn.Sequential(v2.Pad(1), v2.RandomCrop((12, 12))),
    "nested": v2.Compose([nn.Sequential(v2.Compose([v2.RandomRotation(90)]))]),
    "classic": transforms.RandomRotation(90),
    "classic compose": transforms.Compose([transforms.Pad(1), transforms.RandomCrop((12, 12))]),
    "classic choice": transforms.RandomChoice([transforms.RandomInvert(1.0), transforms.RandomInvert(0.0)]),
    "of a module": Own(v2.RandomRotation(90)),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_torchvision_transforms_draw_for_every_sample(name):
    torch.manual_seed(0)
    same = images(batch=1, channels=3, height=12, width=12).expand(32, -1, -1, -1)
    changed = BatchTransforms([RANDOM[name]])(same)
    assert changed.shape == same.shape
    assert changed.dtype == torch.uint8
    assert len({tuple(image.flatten().tolist()) for image in changed}) >= 2


class Witness(v2.Transform):
    """Notes the shapes that it is given."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def transform(self, inpt, params):
        self.shapes.append(tuple(inpt.shape))
        return inpt


class OwnWitness(nn.Module):
    """The same, not torchvision's."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def forward(self, images):
        self.shapes.append(tuple(images.shape))
        return images


def test_own_modules_get_the_whole_batch_and_those_of_torchvision_each_image():
    batch = images(batch=3)
    for wrap in (list, lambda steps: [v2.Compose(steps)], lambda steps: [nn.Sequential(*steps)]):
        theirs, own = Witness(), OwnWitness()
        assert torch.equal(BatchTransforms(wrap([own, theirs]))(batch), batch)
        assert own.shapes == [(3, 2, 5, 6)]
        assert theirs.shapes == [(2, 5, 6)] * 3


def test_own_and_torchvision_transforms_mix_in_a_container():
    torch.manual_seed(0)
    same = images(batch=1, channels=1).expand(64, -1, -1, -1)
    changed = BatchTransforms([v2.Compose([RandomCrop(1), v2.RandomHorizontalFlip()])])(same)
    outcomes = {tuple(image.flatten().tolist()) for image in changed}
    possible = [w for image in (same[0], same[0].flip(-1)) for w in windows(image, 1).values()]
    assert outcomes <= {tuple(image.flatten().tolist()) for image in possible}
    assert len(outcomes) > 9  # more than crops or flips alone give
