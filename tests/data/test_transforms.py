"""Tests that batch augmentation produces valid results and transforms each sample independently."""

import pytest
import torch
from torchvision.transforms import v2

from lit_project.data.augmentation import (
    RandomAffine,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from pixels import images, windows


@pytest.mark.parametrize(("padding", "fill"), [(1, 0), (2, 7)])
def test_crop_returns_one_window_of_each_padded_image(padding, fill):
    torch.manual_seed(0)
    batch = images(batch=200)
    cropped = RandomCrop(padding, fill)(batch)
    assert cropped.shape == batch.shape
    offsets = []
    for image, crop in zip(batch, cropped, strict=True):
        found = [offset for offset, window in windows(image, padding, fill).items() if torch.equal(window, crop)]
        assert len(found) == 1
        offsets += found
    count = (2 * padding + 1) ** 2
    assert len(set(offsets)) > min(count, 200) / 2  # samples draw independently
    if padding == 1:
        assert len(set(offsets)) == count  # and all offsets occur


def test_flip_mirrors_whole_samples_with_probability_p():
    torch.manual_seed(0)
    p = 0.2
    batch = images(batch=1).expand(10_000, -1, -1, -1)
    flipped = RandomHorizontalFlip(p)(batch)
    mirrored = (flipped == batch.flip(-1)).flatten(1).all(1)
    kept = (flipped == batch).flatten(1).all(1)
    assert (mirrored ^ kept).all()
    assert abs(mirrored.sum().item() - 10_000 * p) < 5 * (10_000 * p * (1 - p)) ** 0.5


def test_resized_crop_matches_torchvision_for_the_same_box(monkeypatch):
    torch.manual_seed(0)
    images = torch.rand(4, 3, 20, 30)
    boxes = torch.tensor([[0, 0, 20, 30], [3, 5, 10, 7], [19, 29, 1, 1], [2, 0, 5, 30]])
    crop = RandomResizedCrop(12)
    monkeypatch.setattr(crop, "boxes", lambda *_: boxes)
    for image, part, box in zip(images, crop(images), boxes.tolist(), strict=True):
        expected = v2.functional.resized_crop(image, *box, [12, 12], antialias=False)
        assert torch.allclose(part, expected, atol=1e-5)


def test_resized_crop_draws_area_and_aspect_ratio_from_their_ranges():
    torch.manual_seed(0)
    _, _, h, w = RandomResizedCrop(8, scale=(0.2, 0.4), ratio=(0.5, 2.0)).boxes(4000, 100, 100).unbind(1)
    areas, ratios = h * w / 10000, w / h
    assert (areas.min(), areas.max()) == (pytest.approx(0.2, abs=0.01), pytest.approx(0.4, abs=0.01))
    assert areas.mean().item() == pytest.approx(0.3, abs=0.005)
    assert ratios.log().mean().item() == pytest.approx(0, abs=0.03)
    assert (ratios.min(), ratios.max()) == (pytest.approx(0.5, abs=0.02), pytest.approx(2.0, abs=0.07))


def erased_boxes(erased):
    """Return top, left, height and width of the zeros in each image `(B, 1, H, W)`, or four zeros if it has none."""
    boxes = []
    for image in erased[:, 0]:
        y, x = (image == 0).nonzero().unbind(1)
        box = (
            [int(y.min()), int(x.min()), int(y.max() - y.min()) + 1, int(x.max() - x.min()) + 1] if len(y) else [0] * 4
        )
        assert len(y) == box[2] * box[3]
        boxes.append(box)
    return torch.tensor(boxes)


def test_erased_boxes_match_the_statistics_of_torchvision():
    torch.manual_seed(0)
    batch = torch.ones(3000, 1, 28, 28)
    boxes = erased_boxes(RandomErasing(p=0.4, ratio=(0.8, 3.0))(batch))
    theirs = erased_boxes(torch.stack([v2.RandomErasing(p=0.4, ratio=(0.8, 3.0))(image) for image in batch]))
    assert boxes[:, 2].count_nonzero().item() == pytest.approx(3000 * 0.4, abs=5 * (3000 * 0.24) ** 0.5)
    for statistic in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 0], lambda b: b[:, 1], lambda b: b[:, 2]):
        ours, expected = (statistic(part[part[:, 2] > 0]).double() for part in (boxes, theirs))
        assert ours.mean().item() == pytest.approx(expected.mean().item(), rel=0.06)
        assert ours.std().item() == pytest.approx(expected.std().item(), rel=0.06)


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match="scale must be positive and ascending"):
        RandomAffine(0, scale=(0, 0))
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\], got 2"):
        RandomErasing(p=2)


def test_erasing_keeps_the_dtype_and_all_channels_get_the_same_value():
    torch.manual_seed(0)
    batch = torch.full((50, 3, 9, 12), 5, dtype=torch.uint8)
    erased = RandomErasing(p=1, scale=(0.25, 0.25), ratio=(1.0, 1.0), fill=7)(batch)
    assert erased.dtype == torch.uint8
    assert (erased == erased[:, :1]).all()
    assert (erased == 7).sum(dim=(1, 2, 3)).unique().tolist() == [3 * 5 * 5]  # the side is √(0.25 · 9 · 12) ≈ 5.2
    assert torch.equal(RandomErasing(p=1, scale=(2.0, 2.0))(batch), batch)  # too large to fit


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float64])
def test_resampling_preserves_the_dtype(dtype):
    batch = torch.ones(2, 3, 8, 8, dtype=dtype)
    assert RandomAffine(5)(batch).dtype == RandomResizedCrop(6)(batch).dtype == dtype


def test_affine_matches_torchvision_for_the_same_parameters(monkeypatch):
    torch.manual_seed(0)
    images = torch.rand(4, 3, 20, 30)
    draws = [[0, 0, 0, 1, 0], [30, 2, -3, 1.3, 0], [-70, 0, 5.5, 0.6, 20], [5, -4, 0, 1, -35]]
    affine = RandomAffine(90)
    monkeypatch.setattr(affine, "draw", lambda *_: torch.tensor(draws).T)
    for image, moved, (degrees, right, down, scale, shear) in zip(images, affine(images), draws, strict=True):
        expected = v2.functional.affine(
            image, degrees, [right, down], scale, [shear, 0], interpolation=v2.InterpolationMode.BILINEAR
        )
        assert torch.allclose(moved, expected, atol=1e-4)


def test_affine_draws_parameters_per_image_within_their_ranges():
    torch.manual_seed(0)
    limits = torch.tensor([[-10, 10], [-6, 6], [-4, 4], [0.8, 1.1], [-5, 5]])
    drawn = RandomAffine(10, translate=0.2, scale=(0.8, 1.1), shear=5).draw(4000, height=20, width=30)
    assert torch.allclose(torch.stack(drawn.aminmax(dim=1), dim=1), limits, atol=0.02)
    assert torch.allclose(drawn.mean(dim=1), limits.mean(dim=1), atol=0.3)


def test_affine_with_zero_degrees_is_the_identity():
    batch = images(batch=3)
    assert torch.equal(RandomAffine(0)(batch), batch)


def test_resized_crop_boxes_can_be_full_size_and_are_placed_uniformly():
    torch.manual_seed(0)
    boxes = RandomResizedCrop(4, scale=(0.8, 1.0), ratio=(1.0, 1.0)).boxes(2000, 10, 10)
    # The side is 10 · √scale pixels, rounded, so it is ten pixels if the scale is at least 0.9025.
    assert (boxes[:, 3] == 10).float().mean().item() == pytest.approx((1 - 0.9025) / 0.2, abs=0.05)
    small = RandomResizedCrop(4, scale=(0.25, 0.25), ratio=(1.0, 1.0)).boxes(2000, 10, 10)
    for axis in (0, 1):
        assert small[:, axis].bincount().div(2000).tolist() == pytest.approx([1 / 6] * 6, abs=0.04)
