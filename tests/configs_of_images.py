"""What `small_data` and test_configs.py know of the configs of images."""

import pytest
import torch

SCORE, FIGURE, AS_WHILE_FITTING = "accuracy", "test_confusion_matrix.png", True
# beginning of a config's name → options of its test: few images for convolutions; no workers, which take seconds to
# start; a schedule of three epochs that debug.yaml would cut
FEW = "--data.batch_size=8 --data.eval_batch_size=8"
OPTIONS = {
    "fashion_mnist_cnn": FEW,
    "fashion_mnist_resnet": FEW,
    "finetune_imagefolder": f"{FEW} --data.num_workers=0",
    "image_folder": "--data.num_workers=0",
    "mnist_resnet18_from_fashion": f"{FEW} --trainer.max_epochs=3",
}


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST and Fashion-MNIST become 300 + 100 + 100 random images, ResNet-18 a thin one."""
    from lit_project.data.mnist import FashionMNIST
    from published import thin_resnet18

    thin_resnet18(monkeypatch)

    def load(self: FashionMNIST, split: str) -> tuple[torch.Tensor, torch.Tensor]:
        size = {"train": 300, "val": 100, "test": 100}[split]
        generator = torch.Generator().manual_seed(len(split))
        targets = torch.randint(0, 10, (size,), generator=generator)
        images = torch.randint(0, 100, (size, 1, 28, 28), generator=generator, dtype=torch.uint8)
        images += 15 * targets[:, None, None, None].to(torch.uint8)  # brightness tells the class
        return images, targets

    monkeypatch.setattr(FashionMNIST, "load", load)
    monkeypatch.setattr(FashionMNIST, "prepare_data", lambda self: None)


def check(rows: list[dict[str, str]], metrics: dict[str, float]) -> None:
    """Predictions are as good as the test says."""
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    accuracy = sum(row["prediction"] == row["target"] for row in rows) / len(rows)
    assert float(f"{accuracy:.6g}") == metrics["test/accuracy"]
