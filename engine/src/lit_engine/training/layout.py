"""Sets a network's memory format, compiles it, adds activation checkpointing, and warns about emulated bfloat16."""

import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

from lit_engine._lightning import has_bfloat16_units
from lit_engine._lightning import scales_loss as scales_loss
from lit_engine.distributed.processes import warn_once
from lit_engine.errors import UserError, did_you_mean


class CompileOptions(TypedDict, total=False):
    """Arguments of `torch.compile`."""

    backend: str
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
    fullgraph: bool
    dynamic: bool


def compile_in_place(net: nn.Module, options: CompileOptions) -> None:
    """Compile a network in place with `torch.compile`, which keeps the names of its submodules.

    Raises:
        UserError: if the backend does not exist or the network cannot be compiled as one graph.
    """
    backend = options.get("backend", "inductor")
    known = torch.compiler.list_backends(exclude_tags=())  # includes debugging backends such as aot_eager
    if backend not in known:
        usual = ", ".join(torch.compiler.list_backends())
        raise UserError(f"torch.compile has no backend {backend!r}{did_you_mean(backend, known)}; available: {usual}")
    if any(isinstance(module, nn.RNNBase) for module in net.modules()):
        why = "torch.compile does not support nn.RNN, nn.GRU or nn.LSTM"
        if options.get("fullgraph"):
            raise UserError(f"compile: {why}: set fullgraph to false")
        warn_once(f"note: {why}, so only the rest of {type(net).__name__} is compiled, and may not become faster")
    net.compile(**options)


def checkpoint_in_place(net: nn.Module) -> None:
    """Make each block recompute its activations in the backward pass to save memory (Chen, Xu, Zhang & Guestrin 2016).

    Dropout uses the same random numbers again, and batch norm statistics are updated only once. The blocks must not
    have other side effects.

    Raises:
        UserError: if the network has no blocks.
    """
    own: Any = getattr(net, "blocks", None)  # the network's own method, which `Sharded` also calls
    blocks = own() if callable(own) and not isinstance(own, nn.Module) else list(blocks_of(net))
    if not blocks:
        raise UserError(
            f"checkpoint_blocks: {type(net).__name__} has no blocks (composite modules in an nn.Sequential or "
            "nn.ModuleList): remove the option, or add a method blocks() that returns a list of modules"
        )
    for block in blocks:
        # In a deep copy of the network, a bound method refers to the copy. A closure would refer to the original.
        block.forward = MethodType(_checkpoint_block, block)


def blocks_of(module: nn.Module) -> Iterable[nn.Module]:
    """Yield the outermost elements of `nn.Sequential` and `nn.ModuleList`. Skip elements with fewer than two layers."""
    lists = (nn.Sequential, nn.ModuleList)
    for child in module.children():
        layers = [part for part in child.modules() if part._parameters]
        if isinstance(module, lists) and not isinstance(child, lists) and len(layers) > 1:
            yield child
        else:
            yield from blocks_of(child)


def _checkpoint_block(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = partial(type(block).forward, block)
    if not (block.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)
    if not torch.compiler.is_compiling():  # compiled networks update their buffers only once anyway
        contexts = nullcontext(), _CopiedBuffers(block)
        kwargs["context_fn"] = lambda: contexts
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


class _CopiedBuffers:
    """Reusable context manager that protects the buffers of a module, such as batch norm statistics, from updates."""

    def __init__(self, block: nn.Module) -> None:
        self.modules = list(block.modules())

    def __enter__(self) -> None:
        self.kept = [dict(module._buffers) for module in self.modules]
        for module, buffers in zip(self.modules, self.kept, strict=True):
            module._buffers.update({name: None if own is None else own.clone() for name, own in buffers.items()})

    def __exit__(self, *_: Any) -> None:
        for module, buffers in zip(self.modules, self.kept, strict=True):
            module._buffers.update(buffers)


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Put all modules in evaluation mode within a `with` block, and then restore the mode of each module."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def is_wrong_in_channels_last(layer: nn.Module) -> bool:
    """Return whether oneDNN 3.13 writes out of bounds in the layer's backward pass (uxlfoundation/oneDNN, issue 6035).

    Strided 1×1 convolutions whose channels do not fill an AVX-512 vector learn wrong weights or crash.
    """
    if not isinstance(layer, nn.Conv2d):
        return False
    return layer.kernel_size == (1, 1) and layer.stride != (1, 1) and layer.in_channels // layer.groups < 16


def order_as_weights(optimizer: Optimizer) -> None:
    """Convert an optimizer's state to the memory format of the weights. Fused optimizers require this.

    State saved on a different device or in a different precision may have a different format. With such state, torch's
    fused optimizers fail on a GPU, and combine the wrong elements on a CPU.
    """
    for weight, state in optimizer.state.items():
        if not isinstance(weight, Tensor):  # the state may have keys that are not tensors
            continue
        for name, value in state.items():
            if type(value) is Tensor and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight, dtype=value.dtype).copy_(value)


def warn_of_emulation(trainer: Any) -> None:
    """Print a warning if bfloat16 is emulated, because emulation is slower than float32."""
    precision, is_cpu = str(trainer.precision), trainer.strategy.root_device.type == "cpu"
    on_x86 = is_cpu and platform.machine() in ("x86_64", "AMD64")
    if on_x86 and precision.startswith("bf16") and not has_bfloat16_units():
        warn_once(
            f"warning: this CPU has no bfloat16 units, so precision {precision} is emulated and slower than 32-true "
            "(RNNs take 2.5 times as long, and LSTMs may fail without AVX-512)"
        )
