"""Detects whether validation changes any state that is saved in checkpoints."""

import pickle
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Timer
from torch import Tensor

from lit_engine.distributed.processes import Maximum
from lit_engine.distributed.sharding import local_shards, uses_copies
from lit_engine.training.task import overrides

Snapshot = tuple[list[Tensor], bytes]


def take_snapshot(trainer: Trainer, module: LightningModule) -> Snapshot:
    """Return a summary of the weights, the buffers, and the states of callbacks and the data module."""
    return _sums(module), _other_states(trainer)


def has_changed(before: Snapshot | None, trainer: Trainer, module: LightningModule) -> bool:
    """Return whether state may have changed in any process since the snapshot. All processes must call this."""
    # Assume that state from `on_save_checkpoint` has changed, because the hook cannot be called twice.
    changed = overrides(module, "on_save_checkpoint") or before != take_snapshot(trainer, module)
    if trainer.world_size > 1:
        changed = bool(Maximum(int(changed), trainer.strategy.root_device).read())
    return changed


def _sums(module: LightningModule) -> list[Tensor]:
    """Return the sum of each weight and buffer. A different sum shows that values have changed.

    In automatic optimization, the buffers of all ranks but 0 are omitted, because DDP overwrites them when validation
    starts. The weights of FSDP2 models are omitted, because FSDP2 uses copies of them in validation.
    """
    weights = () if uses_copies(module) else module.parameters()
    buffers = module.buffers() if module.global_rank == 0 or not module.automatic_optimization else ()
    tensors = local_shards([*weights, *buffers])
    # torch cannot sum float8 tensors
    tensors = [one.float() if one.is_floating_point() and one.itemsize == 1 else one for one in tensors]
    return [one.detach().sum(dtype=torch.promote_types(one.dtype, torch.float32)) for one in tensors]


def _other_states(trainer: Trainer) -> bytes:
    """Return the states of the callbacks and the data module as bytes, which can be compared."""
    owners: list[Any] = [*trainer.callbacks, trainer.datamodule]  # type: ignore[attr-defined]
    return pickle.dumps([one.state_dict() for one in owners if one is not None and not isinstance(one, Timer)])
