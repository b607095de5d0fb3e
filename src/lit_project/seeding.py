"""Random streams that are pure functions of (seed, where we are), so that a resumed run repeats them exactly."""

import hashlib
import os

import torch


def derive(*parts: int | str) -> int:
    """A 32-bit seed from any numbers and names (torch's CPU generator uses only the low 32 bits of a seed).

    >>> derive(1, "epoch", 0) == derive(1, "epoch", 0)
    True
    """
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "little")


def global_seed() -> int:
    """The seed that `seed_everything` set in this process (and in those that it launched); 0 before any."""
    return int(os.environ.get("PL_GLOBAL_SEED", 0))


def seed_step(*parts: int | str, device: torch.device) -> None:
    """Seeds torch's generators (CPU and that of `device`) for one step; costs microseconds.

    `torch.manual_seed` does the same for every device and takes 60 µs.
    """
    seed = derive(*parts)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)
