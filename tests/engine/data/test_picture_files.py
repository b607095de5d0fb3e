"""A user's image files: every kind of pixel becomes uint8 of one shape; unreadable files are left out."""

import numpy as np
import pytest
import torch
from PIL import Image

from lit_project.engine.errors import DataError
from lit_project.engine.images import PictureFiles, to_tensor


def test_colour_stays_as_it_is_and_becomes_its_luminance():
    values = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    colour = to_tensor(Image.fromarray(values), (3, 6, 9))
    assert torch.equal(colour, torch.from_numpy(values).movedim(-1, 0))
    luminance = values @ np.array([0.299, 0.587, 0.114])  # ITU-R 601-2
    grey = to_tensor(Image.fromarray(values), (1, 6, 9))[0].numpy()
    assert np.abs(grey - luminance).max() <= 1


def test_palette_cmyk_and_bilevel_become_their_colours():
    red = Image.new("RGB", (4, 4), (255, 0, 0))
    expected = torch.tensor([255, 0, 0], dtype=torch.uint8).view(3, 1, 1).expand(3, 4, 4)
    assert torch.equal(to_tensor(red.convert("P", palette=Image.Palette.ADAPTIVE), (3, 4, 4)), expected)
    assert torch.equal(to_tensor(red.convert("CMYK"), (3, 4, 4)), expected)
    assert torch.equal(to_tensor(Image.new("1", (4, 4), 1), (1, 4, 4)), torch.full((1, 4, 4), 255, dtype=torch.uint8))


@pytest.mark.parametrize("alpha", [0, 128])
def test_transparency_is_on_white(alpha):
    rgba = Image.new("RGBA", (4, 4), (200, 0, 100, alpha))
    expected = [round((alpha * value + (255 - alpha) * 255) / 255) for value in (200, 0, 100)]
    assert (to_tensor(rgba, (3, 4, 4)).int() - torch.tensor(expected).view(3, 1, 1)).abs().max() <= 1
    grey = Image.new("LA", (4, 4), (60, alpha))
    expected_grey = round((alpha * 60 + (255 - alpha) * 255) / 255)
    assert (to_tensor(grey, (1, 4, 4)).int() - expected_grey).abs().max() <= 1


@pytest.mark.parametrize("orientation", [1, 3, 5, 6])
def test_images_are_the_right_way_up_as_their_exif_orientation_says(tmp_path, orientation):
    upright = np.arange(0, 240, 40, dtype=np.uint8).reshape(2, 3)
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270,
            5: Image.Transpose.TRANSPOSE}  # fmt: skip
    stored = Image.fromarray(upright)
    if orientation in turn:
        stored = stored.transpose(turn[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "photo.png", exif=exif)
    with Image.open(tmp_path / "photo.png") as image:
        assert to_tensor(image, (1, 2, 3))[0].tolist() == upright.tolist()


@pytest.fixture
def folder(tmp_path):
    """Five readable images, one a brightness, and three files that are none; named out of order."""
    for name, value in (("b.png", 1), ("a.PNG", 0), ("sub/d.jpeg", 3), ("c.bmp", 2), ("sub/e.gif", 4)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (6, 6), value * 20).save(tmp_path / name)
    (tmp_path / "bb.png").write_bytes((tmp_path / "b.png").read_bytes()[:40])
    (tmp_path / "cc.jpg").write_text("this is no image")
    (tmp_path / "notes.txt").write_text("nor is this")
    return tmp_path


def test_files_are_in_the_order_of_their_names(folder):
    files = PictureFiles(folder, (1, 6, 6))
    names = [str(file.relative_to(folder)) for file in files.files]
    assert names == ["a.PNG", "b.png", "bb.png", "c.bmp", "cc.jpg", "sub/d.jpeg", "sub/e.gif"]
    assert len(files) == 7


def test_unreadable_files_are_left_out_and_the_others_keep_their_indices(folder):
    batch = PictureFiles(folder, (1, 6, 6))[torch.arange(7)]
    assert batch.indices.tolist() == [0, 1, 3, 5, 6]
    assert batch.targets.tolist() == [-1] * 5  # unknown
    assert batch.images.dtype == torch.uint8
    assert (batch.images.flatten(1).float().mean(1) / 20).round().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow comments on some
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_a_file_cut_anywhere_is_left_out_or_read_but_never_stops_the_others(tmp_path, suffix):
    noise = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    whole = tmp_path / f"z.{suffix}"
    Image.fromarray(noise).save(whole)
    content = whole.read_bytes()
    ends = range(0, len(content) - 1, max(len(content) // 40, 1))
    for number, end in enumerate(ends):
        (tmp_path / f"{number:03d}.{suffix}").write_bytes(content[:end])
    batch = PictureFiles(tmp_path, (3, 12, 12))[torch.arange(len(ends) + 1)]
    assert batch.indices.tolist()[-1] == len(ends)  # the whole one
    assert len(batch.indices) < len(ends) / 2


def test_missing_and_empty_folders_are_errors(tmp_path):
    with pytest.raises(DataError, match=r"no such folder of images: .*missing"):
        PictureFiles(tmp_path / "missing", (1, 2, 2))
    (tmp_path / "notes.txt").write_text("no image")
    with pytest.raises(DataError, match=r"no image file in .* \(looked for .*\.png"):
        PictureFiles(tmp_path, (1, 2, 2))


def test_cropping_keeps_the_proportions():
    values = np.zeros((4, 12), dtype=np.uint8)
    values[:, 4:8] = 200  # the middle third
    image = Image.fromarray(values)
    assert (to_tensor(image, (1, 4, 4), crop=True) == 200).all()
    assert (to_tensor(image, (1, 4, 4)) == 0).any()
    assert (to_tensor(image.transpose(Image.Transpose.ROTATE_90), (1, 4, 4), crop=True) == 200).all()
