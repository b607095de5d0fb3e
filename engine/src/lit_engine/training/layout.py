"""What makes steps faster: three shortcuts through Lightning, compiled nets; emulated bfloat16.

A shortcut is here if it saves at least 2 % of a step of a small perceptron (784-64-128-64-10, batch 128, 2.6
ms of CPU time). The figures are medians over 240 paired turns in one process.
"""

import os
import platform
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch.profilers import PassThroughProfiler
from torch import Tensor, nn
from torch.optim import Optimizer

from lit_engine.errors import UserError, did_you_mean


def remember_missing_cuda() -> None:
    """On a machine without a CUDA device, spares Adam's step a look for its driver's library: 283 µs, 11 % of a step.

    `torch.optim.Adam` asks at each step whether there is a CUDA device. Lightning sets PYTORCH_NVML_BASED_CUDA_CHECK at
    import (its pull request 15110), so that torch answers without initialising CUDA before a fork; if there is no
    device, nothing could be initialised. Goes once torch keeps the answer, or Lightning resets the variable.
    """
    if not torch.cuda.is_available():
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def set_quickly(module: nn.Module, name: str, value: Any) -> None:
    """`nn.Module.__setattr__` without its checks for the name of the running hook: 71 µs, 2.7 % of a step.

    Lightning sets `_current_fx_name` forty times a step (`trainer/call.py`). Goes once the name is kept elsewhere.
    """
    if name == "_current_fx_name":
        object.__setattr__(module, name, value)
    else:
        nn.Module.__setattr__(module, name, value)


class NoProfiler(PassThroughProfiler):
    """Lightning's default without a generator for each of the 56 actions of a step."""

    nothing = nullcontext()

    def profile(self, action_name: str) -> AbstractContextManager[Any]:  # type: ignore[override]
        """A context that measures nothing."""
        return self.nothing


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
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():
        return None
    return (
        f"warning: this CPU has no bfloat16 units: precision {precision} is emulated and slower than 32-true "
        "(RNNs take 2.5 times as long; without AVX-512 LSTMs may fail)"
    )
