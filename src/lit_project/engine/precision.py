"""Takes out of each training step what costs time and does nothing; says where half precision would cost time."""

import os
import platform
from contextlib import AbstractContextManager, nullcontext

import torch
from lightning.pytorch.profilers import PassThroughProfiler
from torch import nn

from .errors import UserError, did_you_mean

_NOTHING: AbstractContextManager[None] = nullcontext()


class NoProfiler(PassThroughProfiler):
    """Lightning's default without a new context manager at each of some fifty hooks a step."""

    def profile(self, action_name: str) -> AbstractContextManager[None]:  # type: ignore[override]
        """One empty context, again and again."""
        return _NOTHING


def remember_missing_cuda() -> None:
    """On a machine without a CUDA device, spares Adam's step a look for its driver's library on the disk.

    `torch.optim.Adam` asks at each step whether there is a CUDA device. Lightning has torch answer that through NVML,
    so that CUDA is not initialised before a fork; where there is no device, nothing could be initialised, and the
    ordinary way is 40 times faster (100 to 200 µs a step in a build of torch with CUDA).
    """
    if not torch.cuda.is_available():
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "0"


def compile_in_place(net: nn.Module, backend: str) -> None:
    """Runs the net through `torch.compile` from now on; the names of its parts stay as they are.

    Args:
        net: any.
        backend: a name that torch knows, such as `inductor` or `aot_eager`.

    Raises:
        UserError: torch knows no such backend.
    """
    known = torch.compiler.list_backends(exclude_tags=())  # with those for debugging, such as aot_eager
    if backend not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise UserError(f"torch.compile has no backend {backend!r}{did_you_mean(backend, known)}; usual ones: {usual}")
    net.compile(backend=backend)


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
        "(RNNs take 2.5 times as long)"
    )
