"""Dropout whose mask needs less random data on a CPU."""

import torch
from torch import Tensor, nn

LEVELS = 2**16  # number of possible int16 values


class Dropout(nn.Dropout):
    """A faster `nn.Dropout` for CPUs, which uses only 16 random bits per element. Other devices use torch's dropout.

    The probability is rounded to a multiple of 1 / 65536, and the scaling factor is computed from the rounded value.
    Random numbers come from the default generator.
    """

    def forward(self, x: Tensor) -> Tensor:
        """In training, set elements to 0 with probability `p`, and divide the others by 1 - `p`. Accepts any shape."""
        dropped = round(self.p * LEVELS)
        plain = type(x) is Tensor and x.device.type == "cpu"
        if not (self.training and plain and 0 < dropped < LEVELS):
            return super().forward(x)
        words = torch.randint(-(2**63), 2**63 - 1, (-(-x.numel() // 4),))
        kept = words.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
        return x * kept.to(x.dtype).mul_(LEVELS / (LEVELS - dropped))
