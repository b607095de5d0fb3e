"""Functions for weights and gradients that may be sharded. `sharded.py` shards them."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, TypeGuard

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from lit_engine._lightning import multiply_all


def gradients(optimizer: Any) -> list[Tensor]:
    """Return the gradients of an optimizer's parameters, skipping parameters without a gradient."""
    return [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]


def uses_copies(module: nn.Module) -> bool:
    """Return whether FSDP2 shards any part of the module. In this case, validation uses copies of the weights."""
    return any(hasattr(part, "reshard") for part in module.modules())


def _is_sharded(tensor: Any) -> TypeGuard[Any]:
    """Return whether a tensor is a DTensor, without importing the class. The import takes half a second."""
    return hasattr(tensor, "full_tensor")


def local_shards(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this process's shard of each tensor. In-place changes to a shard also change the tensor."""
    return [one.to_local() if _is_sharded(one) else one for one in tensors]


def total_norm(tensors: Iterable[Tensor]) -> Tensor:
    """Return the Euclidean norm of all tensors (scalar, 0 if none). If any is sharded, all processes must call this."""
    alike = defaultdict(list)
    for one in tensors:
        alike[(one.device_mesh, one.placements) if _is_sharded(one) else None].append(one)
    norms = [torch.nn.utils.get_total_norm(some) for some in alike.values()]
    norms = [norm.full_tensor() if _is_sharded(norm) else norm for norm in norms] or [torch.zeros(())]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def clip_norm(gradients: list[Tensor], largest: float) -> None:
    """Clip gradients like `torch.nn.utils.clip_grad_norm_`, but support a mix of sharded and unsharded tensors.

    If the norm is NaN, gradients stay unchanged. If it is infinite, finite gradients become 0 and infinite ones NaN. In
    both cases, `NaNGuard` can still find the gradients that are not finite.
    """
    if gradients:
        factor = (largest / (total_norm(gradients) + 1e-6)).clamp(max=1.0)
        multiply_all(local_shards(gradients), torch.where(factor.isnan(), 1.0, factor))


def gather_full_tensors(value: Any, keep: bool) -> Any:
    """Return a copy of nested data with full tensors on the CPU, or with None instead of tensors if not `keep`."""

    def gather(tensor: Tensor) -> Tensor | None:
        full = tensor.full_tensor() if _is_sharded(tensor) else tensor  # collective operation
        return full.cpu() if keep else None

    return apply_to_collection(value, Tensor, gather)


def as_sharded(value: Any, like: Any) -> Any:
    """Shard `value` in the same way as `like`. If `like` is not sharded or has a different shape, return `value`."""
    if not (_is_sharded(like) and isinstance(value, Tensor) and value.shape == like.shape):
        return value
    from torch.distributed.tensor import distribute_tensor  # takes half a second

    # No process needs to send data, because each process has read the full tensor.
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
