"""A folder of image files that a user wants classified."""

import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset

from lit_project.data.batch import ImageBatch
from lit_project.errors import DataError

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


# what Pillow raises on files that are no images, truncated or hostile
UNREADABLE = (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError)


def plain(image: Image.Image) -> Image.Image:
    """An image of 8 bits a channel without transparency, the right way up as its EXIF orientation says.

    16-bit images are scaled to 8 bits; palettes, CMYK and transparency (on white) become plain colours. Images of
    floats or 32-bit integers do not tell their range: it is taken for [0, 1] (floats), [0, 255] or [0, 65535], the
    least that holds all values.

    Raises:
        ValueError: a value that is not finite.
    """
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        if not np.isfinite(values).all():
            raise ValueError("it has values that are not finite")
        tops = [65535] if image.mode.startswith("I;16") else [255, 65535] if image.mode == "I" else [1, 255, 65535]
        top = next((top for top in tops if values.max() <= top), 65535)
        image = Image.fromarray((values / top * 255).round().clip(0, 255).astype(np.uint8))
    if "A" in image.mode or "transparency" in image.info:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image


def is_picture(path: Path) -> bool:
    """Whether it is an image file by its name; hidden ones (of a Mac, of a notebook) are none."""
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".")


def to_tensor(image: Image.Image, input_shape: tuple[int, int, int], crop: bool = False) -> Tensor:
    """uint8 of `input_shape` = (C, H, W): grey (C = 1) or RGB (C = 3), resized.

    With `crop` the proportions stay: what is too long after resizing is cut off on both sides.

    Raises:
        ValueError: see `plain`.
    """
    image = plain(image)
    channels, height, width = input_shape
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        box = None
        if crop:
            scale = min(image.width / width, image.height / height)
            rest = (image.width - width * scale) / 2, (image.height - height * scale) / 2
            box = (rest[0], rest[1], image.width - rest[0], image.height - rest[1])
        image = image.resize((width, height), Image.Resampling.BILINEAR, box=box)
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())


class PictureFiles(Dataset):
    """The image files below a folder, in the order of their names.

    It is indexed by the index tensor of a whole batch.

    Args:
        folder: searched with its subfolders, hidden ones left out; or one image file.
        input_shape: `(C, H, W)` that the images are converted to.
        crop: keeps their proportions, see `to_tensor`.

    Raises:
        DataError: no such folder, or no image file in it.
    """

    def __init__(self, folder: str | Path, input_shape: tuple[int, int, int], crop: bool = False) -> None:
        self.folder = Path(folder)
        self.crop = crop
        self.input_shape = input_shape
        if not self.folder.exists():
            raise DataError(f"no such folder of images: {folder}")
        if self.folder.is_file():
            self.files = [self.folder]
            return
        found = (p for p in self.folder.rglob("*") if is_picture(p) and p.is_file())
        self.files = sorted(p for p in found if not any(part[0] == "." for part in p.relative_to(folder).parts))
        if not self.files:
            raise DataError(f"no image file in {folder} (looked for {', '.join(sorted(SUFFIXES))})")

    def __len__(self) -> int:
        """Number of files, readable or not."""
        return len(self.files)

    def __getitem__(self, indices: Tensor) -> ImageBatch:
        """The files `indices` `(b,)` as a batch without those that cannot be read; it may be empty."""
        images = [torch.empty(0, *self.input_shape, dtype=torch.uint8)]
        readable: list[int] = []
        for index in indices.tolist():
            try:
                with Image.open(self.files[index]) as image:
                    images.append(to_tensor(image, self.input_shape, self.crop)[None])
            except UNREADABLE:
                continue
            readable.append(index)
        found = torch.tensor(readable, dtype=torch.int64)
        return ImageBatch(torch.cat(images), torch.full_like(found, -1), found)
