"""How a net lies in memory and is compiled, and a warning about emulated bfloat16."""

import platform

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_engine._lightning import has_bfloat16_units
from lit_engine._lightning import scales_loss as scales_loss
from lit_engine.errors import UserError, did_you_mean


def compile_in_place(net: nn.Module, backend: str) -> None:
    """Runs the net through `torch.compile` from now on; the names of its parts stay as they are.

    Raises:
        UserError: torch knows no such backend.
    """
    known = torch.compiler.list_backends(exclude_tags=())  # with those for debugging, such as aot_eager
    if backend not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise UserError(f"torch.compile has no backend {backend!r}{did_you_mean(backend, known)}; usual ones: {usual}")
    net.compile(backend=backend)


def wrong_in_channels_last(layer: nn.Module) -> bool:
    """Whether oneDNN 3.13 writes beyond its memory in this convolution's gradient (uxlfoundation/oneDNN, issue 6035).

    1×1 with a stride, on fewer channels than a vector of AVX-512 holds: wrong weights, or the end of the process.
    """
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.kernel_size == (1, 1) and layer.stride != (1, 1) and layer.in_channels // layer.groups < 16


def order_as_weights(optimizer: Optimizer) -> None:
    """Orders an optimizer's state in memory as its weights, such as channels last, which fused steps take for granted.

    From a run on another device, or in another precision, it may come in another order: torch's fused optimizers then
    fail on a GPU, and pair the wrong numbers on a CPU.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if type(value) is Tensor and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def emulated(precision: str, device: str) -> str | None:
    """A warning where bfloat16 would be emulated, which makes training slower than in float32; else None.

    Args:
        precision: of the trainer, such as `bf16-mixed`.
        device: type of the root device, such as `cpu`.
    """
    if device != "cpu" or not precision.startswith("bf16") or platform.machine() not in ("x86_64", "AMD64"):
        return None
    if has_bfloat16_units():
        return None
    return (
        f"warning: this CPU has no bfloat16 units: precision {precision} is emulated and slower than 32-true "
        "(RNNs take 2.5 times as long; without AVX-512 LSTMs may fail)"
    )
