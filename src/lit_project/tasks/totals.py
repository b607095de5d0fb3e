"""Exact means over samples, whatever the batches and processes."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor


class Totals:
    """Sums over samples and their count, from which means are exact: ragged batches and processes weigh right."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count: int | Tensor = 0
        self.mark()

    def add(self, count: int | Tensor, **sums: Tensor) -> None:
        """Adds sums over `count` samples (or tokens); each is a scalar tensor. The device is not waited for."""
        self.count += count
        for name, value in sums.items():
            value = value.detach()
            if name in self.sums:
                self.sums[name] = self.sums[name].to(value.device) + value  # those of a checkpoint are on the CPU
            else:  # double: a million float32 additions lose digits
                dtype = torch.double if value.device.type != "mps" else torch.float
                self.sums[name] = value.to(dtype)

    def state_dict(self) -> dict[str, Any]:
        """The sums and the count, as plain tensors and a number."""
        return {"sums": dict(self.sums), "count": int(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.sums, self.count = {name: value.clone() for name, value in state["sums"].items()}, state["count"]

    def mark(self) -> None:
        """Remembers what there is."""
        self._marked, self._marked_count = dict(self.sums), self.count

    def since_mark(self, name: str) -> float | None:
        """The mean over what was added since the mark, in this process; None if nothing was."""
        count = self.count - self._marked_count
        if name not in self.sums or not count:
            return None
        return float((self.sums[name] - self._marked.get(name, 0.0)).item() / count)

    def means(self) -> dict[str, float]:
        """Sum / count of each name in this process."""
        count = int(self.count)
        return {name: value.item() / count for name, value in self.sums.items()} if count else {}

    def reduce(self, task: LightningModule) -> "Totals":
        """The totals over all processes."""
        total = Totals()
        total.count = int(self.count)
        total.sums = dict(self.sums)
        if task.trainer.world_size > 1 and self.sums:
            names = sorted(self.sums)
            packed = torch.stack(
                [*(self.sums[name] for name in names), torch.tensor(total.count).to(self.sums[names[0]])]
            )
            packed = task.trainer.strategy.reduce(packed, reduce_op="sum")
            total.sums = dict(zip(names, packed[:-1], strict=True))
            total.count = int(packed[-1].item())
        return total
