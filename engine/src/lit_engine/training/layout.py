"""Memory format and compilation of a network, and a warning about emulated bfloat16."""

import platform

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_engine._lightning import has_bfloat16_units
from lit_engine._lightning import scales_loss as scales_loss
from lit_engine.errors import UserError, did_you_mean


def compile_in_place(net: nn.Module, backend: str) -> None:
    """Compile a network in place with `torch.compile`, which keeps the names of its submodules.

    Raises:
        UserError: if torch has no such backend.
    """
    known = torch.compiler.list_backends(exclude_tags=())  # includes debugging backends such as aot_eager
    if backend not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise UserError(f"torch.compile has no backend {backend!r}{did_you_mean(backend, known)}; available: {usual}")
    net.compile(backend=backend)


def wrong_in_channels_last(layer: nn.Module) -> bool:
    """Return whether oneDNN 3.13 writes out of bounds in this layer's gradient (uxlfoundation/oneDNN, issue 6035).

    Strided 1×1 convolutions with fewer channels than an AVX-512 vector holds get wrong weights or crash.
    """
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.kernel_size == (1, 1) and layer.stride != (1, 1) and layer.in_channels // layer.groups < 16


def order_as_weights(optimizer: Optimizer) -> None:
    """Convert an optimizer's state to the memory format of its weights, which fused optimizers rely on.

    State saved on a different device or in a different precision may have a different format. torch's fused optimizers
    then fail on a GPU, and combine the wrong elements on a CPU.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if type(value) is Tensor and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def emulated(precision: str, device: str) -> str | None:
    """Return a warning if bfloat16 would be emulated, which makes training slower than in float32, or None.

    Args:
        precision: precision of the trainer, such as `bf16-mixed`.
        device: type of the root device, such as `cpu`.
    """
    if device != "cpu" or not precision.startswith("bf16") or platform.machine() not in ("x86_64", "AMD64"):
        return None
    if has_bfloat16_units():
        return None
    return (
        f"warning: this CPU has no bfloat16 units, so precision {precision} is emulated and slower than 32-true "
        "(RNNs take 2.5 times as long, and LSTMs may fail without AVX-512)"
    )
