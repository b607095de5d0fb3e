"""Print how long one toolkit's loader takes to turn 1,000 JPEG files into normalized float images of 224×224.

peers.py runs this script: `peers_files.py TOOLKIT WORKERS FOLDER`. Images keep their aspect ratio and are cropped
to the centre. Only the second epoch is timed, when workers are running and the files are in memory.
"""

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

SIZE, BATCH = 224, 32
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def lit_project(folder: str, workers: int) -> Iterable[Tensor]:
    """Return the training batches of `ImageFolder`, normalized as in `ImageClassifier`."""
    from lit_project.data.image_folder import ImageFolder

    data = ImageFolder(folder, SIZE, crop=True, test_size=0, val_size=1, num_workers=workers, batch_size=BATCH)
    data.setup("fit")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    loader = data.train_dataloader()
    return _Repeatable(lambda: ((data.on_after_batch_transfer(b, 0).images - mean).div_(std) for b in loader))


def torchvision(folder: str, workers: int) -> Iterable[Tensor]:
    """Return the batches of torchvision's `ImageFolder` and a DataLoader."""
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [v2.Resize(SIZE), v2.CenterCrop(SIZE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    dataset = ImageFolder(folder, v2.Compose([*steps, v2.Normalize(MEAN, STD)]))
    loader = DataLoader(dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    return _Repeatable(lambda: (images for images, _ in loader))


def timm(folder: str, workers: int) -> Iterable[Tensor]:
    """Return the batches of timm's loader, with its default settings but without augmentation."""
    from timm.data import create_dataset, create_loader

    dataset = create_dataset("", root=folder, is_training=True)
    loader = create_loader(
        dataset, (3, SIZE, SIZE), BATCH, is_training=True, no_aug=True, interpolation="bilinear", mean=MEAN, std=STD,
        num_workers=workers, persistent_workers=workers > 0, device=torch.device("cpu"),
    )  # fmt: skip
    return _Repeatable(lambda: (images for images, _ in loader))


class _Repeatable:
    """Iterable that creates a new iterator for each epoch."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self.create = create

    def __iter__(self) -> Any:
        return self.create()


def main() -> None:
    """Load two epochs and print the time of the second."""
    torch.set_num_threads(1)
    toolkit, workers, folder = sys.argv[1:]
    batches = {"lit_project": lit_project, "torchvision": torchvision, "timm": timm}[toolkit](folder, int(workers))
    for _ in range(2):
        start, count = time.perf_counter(), 0
        for images in batches:
            assert (images.dtype, images.shape[1:]) == (torch.float32, (3, SIZE, SIZE))
            count += len(images)
    print(1000 * (time.perf_counter() - start) / count)


if __name__ == "__main__":
    main()
