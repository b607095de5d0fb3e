"""TrivialAugment and RandAugment on batches: what each sample may become, and how likely that is."""

import math
from collections import defaultdict

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from lit_project.engine.images import BatchTransforms

SIZE = 16
BINS = 31


def shear(image, x, y):
    degrees = [math.degrees(math.atan(value)) for value in (x, y)]
    return F.affine(image, angle=0.0, translate=[0, 0], scale=1.0, shear=degrees, center=[0, 0])


def move(image, x, y):
    return F.affine(image, angle=0.0, translate=[int(x), int(y)], scale=1.0, shear=[0.0, 0.0])


SIGNED = {  # operations by a value and its opposite: the largest of TrivialAugment (wide), and of RandAugment
    "shear x": (lambda image, m: shear(image, m, 0), 0.99, 0.3),
    "shear y": (lambda image, m: shear(image, 0, m), 0.99, 0.3),
    "translate x": (lambda image, m: move(image, m, 0), 32, 150 / 331 * SIZE),
    "translate y": (lambda image, m: move(image, 0, m), 32, 150 / 331 * SIZE),
    "rotate": (lambda image, m: F.rotate(image, m), 135, 30),
    "brightness": (lambda image, m: F.adjust_brightness(image, 1 + m), 0.99, 0.9),
    "colour": (lambda image, m: F.adjust_saturation(image, 1 + m), 0.99, 0.9),
    "contrast": (lambda image, m: F.adjust_contrast(image, 1 + m), 0.99, 0.9),
    "sharpness": (lambda image, m: F.adjust_sharpness(image, 1 + m), 0.99, 0.9),
}
PLAIN = {"identity": lambda image: image, "autocontrast": F.autocontrast, "equalize": F.equalize}


def outcomes(image, kind, bins):
    """Per operation, what it makes of an image with the magnitudes `bins`; signs and magnitudes are equally likely."""
    found = {name: [operation(image)] for name, operation in PLAIN.items()}
    for name, (operation, wide, usual) in SIGNED.items():
        top = wide if kind == "trivial" else usual
        values = torch.linspace(0, top, BINS)[list(bins)].tolist()
        found[name] = [operation(image, sign * value) for value in values for sign in (1, -1)]
    bits = 6 if kind == "trivial" else 4  # at most so many are dropped
    found["posterize"] = [F.posterize(image, 8 - round(b / ((BINS - 1) / bits))) for b in bins]
    found["solarize"] = [F.solarize(image, 255 * t) for t in torch.linspace(1, 0, BINS)[list(bins)].tolist()]
    return found


def key(image):
    return image.numpy().tobytes()


def compare(samples, likely):
    """Every sample is possible, and each result as frequent as it is likely."""
    counts = defaultdict(int)
    for sample in samples:
        assert key(sample) in likely
        counts[key(sample)] += 1
    total = len(samples)
    for result, p in likely.items():
        assert abs(counts[result] - total * p) < 6 * (total * p * (1 - p)) ** 0.5 + 1


@pytest.fixture
def image():
    torch.manual_seed(0)
    return torch.randint(20, 230, (3, SIZE, SIZE), dtype=torch.uint8)


def test_trivial_augment_is_one_operation_of_any_magnitude(image):
    """Müller & Hutter 2021: both uniformly."""
    likely = defaultdict(float)
    found = outcomes(image, "trivial", range(BINS))
    for results in found.values():
        for result in results:
            likely[key(result)] += 1 / len(found) / len(results)
    compare(BatchTransforms([v2.TrivialAugmentWide()])(image.expand(3000, -1, -1, -1)), likely)


@pytest.mark.parametrize("magnitude", [9, 20])
def test_rand_augment_is_two_operations_of_one_magnitude(image, magnitude):
    """Cubuk et al. 2020: each uniformly, one after the other."""
    likely = defaultdict(float)
    first = outcomes(image, "rand", [magnitude])
    for results in first.values():
        for one in results:
            second = outcomes(one, "rand", [magnitude])
            for last in second.values():
                for result in last:
                    likely[key(result)] += 1 / len(first) / len(results) / len(second) / len(last)
    compare(BatchTransforms([v2.RandAugment(2, magnitude)])(image.expand(2000, -1, -1, -1)), likely)
