"""Measure the memory and time of `model.checkpoint_blocks` for three networks on one CPU thread.

    python benchmarks/checkpointing.py          a few minutes; writes results/checkpointing.json

Memory is the size of all tensors that the backward pass needs, excluding parameters. Time covers the forward and
backward pass. Variants alternate, and the first round is not counted.
"""

import copy

import torch
from common import Times, as_the_program, interleave, ratio, save, show_ratio, table
from torch import Tensor, nn

from lit_engine.training.layout import checkpoint_in_place
from lit_project.models.pretrained import TorchvisionNet
from lit_project.models.resnet import SmallResNet
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq

ROUNDS, STEPS = 6, 2


def networks() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return the networks and their inputs by name."""
    torch.manual_seed(0)
    tokens = torch.randint(4, 4000, (64, 40))
    return {
        "ResNet-20, width 32, 256 images of 28 × 28": (
            SmallResNet((1, 28, 28), 10, width=32).to(memory_format=torch.channels_last),
            (torch.randn(256, 1, 28, 28),),
        ),
        "ResNet-18, 64 images of 64 × 64": (
            TorchvisionNet((3, 64, 64), 10, "resnet18").to(memory_format=torch.channels_last),
            (torch.randn(64, 3, 64, 64),),
        ),
        "Transformer, 6 + 6 layers of 256, 64 × 40 tokens": (
            TransformerSeq2Seq(4000, 4000, 256, 4, 6, 6, dropout=0.1),
            (tokens, torch.full((64,), 40), tokens),
        ),
    }


def stored(net: nn.Module, inputs: tuple[Tensor, ...]) -> float:
    """Return the size in MB of the tensors that a backward pass needs, excluding parameters."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = net(*inputs)  # kept until the sum is known, so that no address is reused
    own = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
    total = sum(size for place, size in sizes.items() if place not in own)
    del output
    return total / 1e6


def timed(net: nn.Module, inputs: tuple[Tensor, ...]) -> Times:
    """Return the duration of several forward and backward passes."""
    before = Times.now()
    for _ in range(STEPS):
        net(*inputs).square().mean().backward()
    return Times.now() - before


def main() -> None:
    """Measure all networks."""
    as_the_program(1)
    rows, found = [], {}
    for name, (plain, inputs) in networks().items():
        checkpointed = copy.deepcopy(plain)
        checkpoint_in_place(checkpointed)
        sizes = [stored(net, inputs) for net in (plain, checkpointed)]
        times = interleave(
            {"stored": lambda: timed(plain, inputs), "recomputed": lambda: timed(checkpointed, inputs)},  # noqa: B023
            ROUNDS,
        )
        slower = ratio(times["recomputed"][1:], times["stored"][1:])
        rows.append([name, f"{sizes[0]:.0f}", f"{sizes[1]:.0f}", show_ratio(slower)])
        found[name] = {"stored_MB": sizes, "time_ratio": slower}
    table("Checkpointed blocks", ["network", "stored MB", "with checkpoints", "time ratio"], rows)
    save("checkpointing", {"networks": found})


if __name__ == "__main__":
    main()
