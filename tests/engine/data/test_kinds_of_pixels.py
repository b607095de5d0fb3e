"""CMYK, palettes and 16 bits in a user's image folder, from the files to the batch."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from lit_project.data.image_folder import ImageFolder


@pytest.fixture
def folder(tmp_path):
    """Two classes of the same five files, whose pixels are all (250, 5, 100) or a fifth of white in 16 bits."""
    colour, deep = Image.new("RGB", (6, 6), (250, 5, 100)), np.full((6, 6), 51 * 257, dtype=np.uint16)
    files = {
        "cmyk.jpg": (colour.convert("CMYK"), "CMYK"),
        "cmyk.tif": (colour.convert("CMYK"), "CMYK"),
        "palette.png": (colour.convert("P", palette=Image.Palette.ADAPTIVE), "P"),
        "sixteen.png": (Image.fromarray(deep), "I;16"),
        "sixteen.tif": (Image.fromarray(deep), "I;16"),
    }
    first = tmp_path / "val" / "ant"
    first.mkdir(parents=True)
    for name, (image, mode) in files.items():
        image.save(first / name)
        with Image.open(first / name) as saved:
            assert saved.mode == mode
    shutil.copytree(first, tmp_path / "val" / "bee")
    shutil.copytree(tmp_path / "val", tmp_path / "train")
    return tmp_path


@pytest.mark.parametrize(("channels", "pixel"), [(3, [250, 5, 100]), (1, [89])], ids=["colour", "grey"])
def test_all_of_them_become_their_colours(folder, channels, pixel):
    data = ImageFolder(folder, image_size=4, channels=channels, num_workers=0, batch_size=10)
    data.setup("fit")
    (batch,) = data.loader("val")
    expected = torch.tensor(([pixel] * 3 + [[51] * channels] * 2) * 2)
    assert batch.images.dtype == torch.uint8
    assert batch.images.shape == (10, channels, 4, 4)
    assert (batch.images.int() - expected[:, :, None, None]).abs().max() <= 3  # JPEG rounds
    assert batch.targets.tolist() == [0] * 5 + [1] * 5
