"""Dropout with cheap random numbers on a CPU."""

import torch
from torch import Tensor, nn

LEVELS = 2**16  # of a random int16


class Dropout(nn.Dropout):
    """`nn.Dropout`, whose mask takes 16 random bits a number on a CPU; elsewhere it is torch's own.

    The probability is rounded to a multiple of 1 / 65536, by which what is kept is scaled, too. Draws come from the
    default generator.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; zeroes numbers with probability `p` in training and divides the others by 1 - `p`."""
        dropped = round(self.p * LEVELS)
        plain = type(x) is Tensor and x.device.type == "cpu"
        if not (self.training and plain and 0 < dropped < LEVELS):
            return super().forward(x)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),))
        kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
        return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
