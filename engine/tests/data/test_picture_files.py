"""User image files: every pixel format is converted to uint8 of one shape, and unreadable files are skipped."""

import numpy as np
import pytest
import torch
from PIL import Image

from lit_engine.data.images import PictureFiles, to_tensor
from lit_engine.errors import DataError


def test_to_tensor_preserves_rgb_values():
    values = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    assert torch.equal(to_tensor(Image.fromarray(values), (3, 6, 9)), torch.from_numpy(values).movedim(-1, 0))


RED = Image.new("RGB", (4, 4), (255, 0, 0))
DEEP = Image.fromarray(np.full((4, 4), 51 * 257, dtype=np.uint16))


@pytest.mark.parametrize(
    ("image", "suffix", "mode", "colour"),
    [
        (RED.convert("P", palette=Image.Palette.ADAPTIVE), "png", "P", [255, 0, 0]),
        (RED.convert("CMYK"), "tif", "CMYK", [255, 0, 0]),
        (RED.convert("CMYK"), "jpg", "CMYK", [255, 0, 0]),
        (Image.new("1", (4, 4), 1), "png", "1", [255] * 3),
        (DEEP, "png", "I;16", [51] * 3),
        (DEEP, "tif", "I;16", [51] * 3),
        (DEEP, "pgm", "I", [51] * 3),
        (Image.fromarray(np.full((4, 4), 65535, dtype=np.uint16)), "png", "I;16", [255] * 3),
        (Image.new("RGBA", (4, 4), (200, 0, 100, 128)), "png", "RGBA", [227, 127, 177]),  # blended with white
        (Image.new("LA", (4, 4), (60, 0)), "png", "LA", [255] * 3),
    ],
)
def test_pixel_formats_convert_to_the_expected_rgb_values(tmp_path, image, suffix, mode, colour):
    image.save(tmp_path / f"a.{suffix}")
    with Image.open(tmp_path / f"a.{suffix}") as saved:
        assert saved.mode == mode
        pixels = to_tensor(saved, (3, 4, 4))
    assert pixels.dtype == torch.uint8
    assert (pixels.int() - torch.tensor(colour).view(3, 1, 1)).abs().max() <= (3 if suffix == "jpg" else 1)


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_transparent_grey_becomes_white(tmp_path, depth):
    values = np.array([[0, 51]], depth) * (257 if depth == np.uint16 else 1)
    Image.fromarray(values.astype(depth)).save(tmp_path / "a.png", transparency=0)
    with Image.open(tmp_path / "a.png") as image:
        assert to_tensor(image, (1, 1, 2)).tolist() == [[[255, 51]]]


def test_twelve_bit_pgm_files_are_rescaled_to_8_bits(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 4095\n" + np.array([4095, 51 * 4095 // 255], dtype=">u2").tobytes())
    with Image.open(tmp_path / "a.pgm") as image:
        assert to_tensor(image, (1, 1, 2)).tolist() == [[[255, 51]]]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_rejects_pixel_values_of_unknown_range(mode):
    with pytest.raises(ValueError, match="range of the pixel values is unknown"):
        to_tensor(Image.new(mode, (4, 4)), (1, 4, 4))


@pytest.mark.parametrize(
    ("orientation", "turn"), [(3, "ROTATE_180"), (5, "TRANSPOSE"), (6, "ROTATE_90"), (8, "ROTATE_270")]
)
def test_exif_orientation_is_applied(tmp_path, orientation, turn):
    upright = np.arange(0, 240, 40, dtype=np.uint8).reshape(2, 3)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(upright).transpose(Image.Transpose[turn]).save(tmp_path / "photo.png", exif=exif)
    with Image.open(tmp_path / "photo.png") as image:
        assert to_tensor(image, (1, 2, 3))[0].tolist() == upright.tolist()


@pytest.mark.parametrize("crop", [False, True])
@pytest.mark.parametrize("size", [(1600, 1200), (300, 900)])
def test_large_jpegs_are_decoded_at_reduced_size_with_similar_pixels(tmp_path, size, crop):
    noise = np.random.default_rng(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    photo = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    photo.save(tmp_path / "a.jpg", quality=95)
    with Image.open(tmp_path / "a.jpg") as image:
        pixels = to_tensor(image, (3, 100, 100), crop)
        assert image.size == (size[0] // 4, size[1] // 4) if size[0] > 400 else image.size == size
    expected = to_tensor(photo, (3, 100, 100), crop)
    assert (pixels.float() - expected.float()).abs().mean() < 2


def test_cropping_keeps_the_proportions():
    values = np.zeros((4, 12), dtype=np.uint8)
    values[:, 4:8] = 200  # the middle third
    image = Image.fromarray(values)
    assert (to_tensor(image, (1, 4, 4), crop=True) == 200).all()
    assert (to_tensor(image, (1, 4, 4)) == 0).any()
    assert (to_tensor(image.transpose(Image.Transpose.ROTATE_90), (1, 4, 4), crop=True) == 200).all()
    to_tensor(Image.new("L", (237, 232)), (1, 210, 124), crop=True)  # here, rounding could make the offset negative


def test_files_are_sorted_by_name_and_unreadable_ones_are_skipped(tmp_path):
    for name, value in (("b.png", 1), ("a.PNG", 0), ("sub/d.jpeg", 3), ("c.bmp", 2), ("sub/e.gif", 4), (".f/f.png", 5)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (6, 6), value * 20).save(tmp_path / name)
    (tmp_path / "cc.jpg").write_text("this is no image")
    (tmp_path / "cd.png").write_bytes((tmp_path / "b.png").read_bytes()[:50])
    (tmp_path / "notes.txt").write_text("nor is this")
    files = PictureFiles(tmp_path, (1, 6, 6))
    names = [str(file.relative_to(tmp_path)) for file in files.files]
    assert names == ["a.PNG", "b.png", "c.bmp", "cc.jpg", "cd.png", "sub/d.jpeg", "sub/e.gif"]
    batch = files[torch.arange(len(files))]
    assert batch.indices.tolist() == [0, 1, 2, 5, 6]
    assert batch.targets.tolist() == [-1] * 5  # unknown
    assert batch.images.dtype == torch.uint8
    assert (batch.images.flatten(1).float().mean(1) / 20).round().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("error", [EOFError, TypeError])
def test_damaged_files_are_skipped_whatever_error_pillow_raises(tmp_path, monkeypatch, error):
    RED.save(tmp_path / "a.tif")
    monkeypatch.setattr(Image.Image, "load", lambda image: (_ for _ in ()).throw(error))
    assert len(PictureFiles(tmp_path, (3, 4, 4))[torch.tensor([0])].images) == 0


def test_missing_and_empty_folders_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"no such folder of images: .*missing"):
        PictureFiles(tmp_path / "missing", (1, 2, 2))
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"no image file in .* \(looked for .*\.png"):
        PictureFiles(tmp_path, (1, 2, 2))
