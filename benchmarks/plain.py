"""Hand-written training loop that needs only torch.

python benchmarks/plain.py    train a 784-512-512-10 MLP on Fashion-MNIST for two epochs; startup.py measures its memory
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from common import Times

MEAN, STD = 0.2860, 0.3530
EVAL_BATCH = 1000


class Plain:
    """Hand-written loop over uint8 tensors in memory, which shows the minimum cost of such a training run.

    It accumulates the loss and correct predictions of both splits and reads them once per epoch. There are no
    checkpoints, files or progress bars.

    Args:
        net: Network that maps images to logits.
        train: Training images, uint8 `(N, C, H, W)`, and targets, int64 `(N,)`.
        val: Validation images and targets.
        batch_size: Training batch size.
        steps: Steps per epoch, or None for all.
        fused: Whether to use fused Adam.
    """

    def __init__(
        self,
        net: nn.Module,
        train: tuple[Tensor, Tensor],
        val: tuple[Tensor, Tensor],
        batch_size: int,
        steps: int | None,
        fused: bool = False,
    ) -> None:
        self.net, self.train, self.val, self.batch_size, self.steps = net, train, val, batch_size, steps
        self.optimizer = torch.optim.Adam(net.parameters(), lr=0.001, fused=fused)

    def epoch(self) -> dict[str, float]:
        """Train for an epoch and validate."""
        images, targets = self.train
        self.net.train()
        loss_sum, correct = targets.new_zeros((), dtype=torch.float32), targets.new_zeros(())
        batches = torch.randperm(len(targets), device=targets.device).split(self.batch_size)[: self.steps]
        for indices in batches:
            x, y = self._prepare(images.index_select(0, indices)), targets.index_select(0, indices)
            logits = self.net(x)
            loss = F.cross_entropy(logits, y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            loss_sum += loss.detach() * len(y)
            correct += (logits.detach().argmax(dim=1) == y).sum()
        seen = sum(len(indices) for indices in batches)
        return {"loss": loss_sum.item() / seen, "accuracy": correct.item() / seen, **self._validate()}

    @torch.inference_mode()
    def _validate(self) -> dict[str, float]:
        self.net.eval()
        loss_sum, correct = self.val[1].new_zeros((), dtype=torch.float32), self.val[1].new_zeros(())
        for images, targets in zip(self.val[0].split(EVAL_BATCH), self.val[1].split(EVAL_BATCH), strict=True):
            logits = self.net(self._prepare(images))
            loss_sum += F.cross_entropy(logits, targets, reduction="sum")
            correct += (logits.argmax(dim=1) == targets).sum()
        return {"val loss": loss_sum.item() / len(self.val[1]), "val accuracy": correct.item() / len(self.val[1])}

    @staticmethod
    def _prepare(images: Tensor) -> Tensor:
        return images.float().div_(255).sub_(MEAN).div_(STD)

    def times(self, epochs: int) -> "Times":
        """Return the mean time of `epochs` epochs, after a warm-up epoch."""
        from common import Times

        times = []
        for _ in range(epochs + 1):
            start = Times.now()
            self.epoch()
            times.append(Times.now() - start)
        return Times.mean(times[1:])


def main() -> None:
    """Train for two epochs."""
    from torchvision.datasets import FashionMNIST

    data = FashionMNIST(str(Path(__file__).parents[1] / "data"))
    images, targets = data.data[:, None], data.targets
    hidden = [nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(512, 10))
    plain = Plain(net, (images[:55_000], targets[:55_000]), (images[55_000:], targets[55_000:]), 64, None)
    for _ in range(2):
        plain.epoch()


if __name__ == "__main__":
    main()
