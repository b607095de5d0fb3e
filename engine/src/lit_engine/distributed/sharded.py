"""Sharding of weights, gradients and optimizer state for networks that are too large for one device.

The overlays `fsdp2` and `tensor_parallel` use the strategy `Sharded`. A network can define two plain PyTorch methods:

- `blocks()` returns modules that `forward` calls once each. In training, only one of them is gathered at a time.
  `blocks` may also be an `nn.Sequential` or `nn.ModuleList` with these modules, as in timm. Without blocks, the whole
  network is gathered for each step, and only gradients and optimizer state stay sharded.
- `tensor_parallel_plan()` maps layer names to the `ParallelStyle` with which tensor parallelism splits the layer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy, ParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.optim import LBFGS, SGD, Adafactor, Adagrad, Rprop

from lit_engine._lightning import broadcast_all, has_layer_sync, scales_loss
from lit_engine.distributed.sharding import as_sharded, gather_full_tensors
from lit_engine.errors import UserError

UNSUPPORTED = {SGD: "fused", Adagrad: "fused", Rprop: "foreach"}  # options that torch rejects for sharded weights


class Sharded(ModelParallelStrategy):
    """Variant of Lightning's `ModelParallelStrategy` that saves each checkpoint as one file with unsharded tensors.

    Checkpoints can be loaded with any number of processes and any strategy. For evaluation, each process gathers the
    weights, except for layers split by tensor parallelism. A single process can then run the network any number of
    times, for example in beam search. Buffers, such as batch-norm statistics, are copied from the first process.

    Args:
        tensor_parallel_size: number of processes that split the layers of one network and receive the same batches
            (Shoeybi et al. 2019). Different groups of such processes receive different batches. Weights, gradients and
            optimizer state are sharded across the groups, as in FSDP2 (Zhao et al. 2023).
        process_group_backend: backend of torch.distributed. Default: the device's usual backend.
        timeout: timeout of a collective operation.

    Raises:
        UserError: if the number of processes is not a multiple of `tensor_parallel_size`.
    """

    def __init__(
        self,
        tensor_parallel_size: int = 1,
        process_group_backend: str | None = None,
        timeout: timedelta = timedelta(minutes=30),
    ) -> None:
        super().__init__("auto", tensor_parallel_size, False, process_group_backend, timeout)
        self._whole = False  # whether the weights are gathered

    def setup_environment(self) -> None:
        """Raise UserError if the module has no `configure_model`, before processes wait for each other."""
        kind: Any = type(self.lightning_module)
        if kind.configure_model is LightningModule.configure_model:
            raise UserError(f"Sharded needs configure_model, which {kind.__name__} lacks: extend Task or implement it")
        super().setup_environment()

    def set_world_ranks(self) -> None:
        super().set_world_ranks()
        size = self._tensor_parallel_size
        if not isinstance(size, int) or size < 1 or self.world_size % size:
            raise UserError(f"the world size {self.world_size} is not divisible by tensor_parallel_size {size}")
        self._data_parallel_size = self.world_size // size

    def setup_optimizers(self, trainer: Trainer) -> None:
        """Create the optimizers. Raise UserError if an optimizer does not support sharded weights."""
        super().setup_optimizers(trainer)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group.update(self._kernels(group))
            if not any(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"]):
                continue  # a single process does not shard the weights
            name = type(optimizer).__name__
            if isinstance(optimizer, LBFGS | Adafactor):  # with LBFGS, each process would do its own line search
                raise UserError(f"{name} does not support sharding")
            for kind, option in UNSUPPORTED.items():
                if isinstance(optimizer, kind) and optimizer.param_groups[0][option]:
                    raise UserError(f"{option} {name} does not support sharding: set {option}: false")

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self._share_buffers()
        return super().training_step(*args, **kwargs)

    def _share_buffers(self) -> None:
        broadcast_all([*self.lightning_module.buffers()])  # type: ignore[union-attr]

    def on_validation_start(self) -> None:
        self._share_buffers()
        self._gather(True)

    def on_validation_end(self) -> None:
        self._gather(False)

    on_test_start = on_predict_start = on_validation_start
    on_test_end = on_predict_end = on_validation_end

    def _gather(self, whole: bool) -> None:
        self._whole = whole
        task: Any = self.lightning_module
        # The outer modules stay gathered, because the backward pass needs their weights first.
        outer = {part for _, part in _iterate_parts(task)}
        for module in task.modules():
            if isinstance(module, FSDPModule):
                module.set_reshard_after_forward(not whole and module not in outer, recurse=False)
                module.unshard() if whole else module.reshard()

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return unsharded CPU tensors by name. On ranks above 0, the values are None. All processes must call this."""
        own = self.lightning_module.state_dict(keep_vars=True)  # type: ignore[union-attr]
        # Gather tied weights only once.
        once = {id(value): value.detach() if isinstance(value, Tensor) else value for value in own.values()}
        found = dict(zip(once, gather_full_tensors([*once.values()], self.is_global_zero), strict=True))
        self._gather(self._whole)  # torch has resharded the weights
        return {name: found[id(value)] for name, value in own.items()}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the unsharded optimizer state on rank 0. Parameters are numbered as in torch."""
        optimizer = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        return gather_full_tensors(optimizer.state_dict(), self.is_global_zero)

    lightning_restore_optimizer = True  # tells Lightning to call `load_optimizer_state_dict`
    load_checkpoint = ParallelStrategy.load_checkpoint

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Load the weights. Each process keeps only its shards."""
        module = self.lightning_module
        assert module is not None
        own = module.state_dict()
        state = {name: as_sharded(value, own.get(name)) for name, value in checkpoint["state_dict"].items()}
        module.load_state_dict(state, strict=strict)

    def load_optimizer_state_dict(self, checkpoint: Any) -> None:
        for optimizer, saved in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            states = {
                number: {name: as_sharded(value, parameters[number]) for name, value in state.items()}
                for number, state in saved["state"].items()
            }
            groups = [{**group, **self._kernels(group)} for group in saved["param_groups"]]
            optimizer.load_state_dict({**saved, "state": states, "param_groups": groups})

    def _kernels(self, group: Mapping[str, Any]) -> dict[str, bool]:
        """Return options that turn off optimizer kernels that cannot combine shards and full tensors in a step."""
        names = ("fused", "foreach") if self._tensor_parallel_size != 1 else ()
        return {name: False for name in names if name in group}


def shard(task: LightningModule, mesh: DeviceMesh) -> None:
    """Shard a task's submodules over a mesh of `data_parallel` × `tensor_parallel` processes, unless already sharded.

    Raises:
        UserError: if the run uses a feature that requires unsharded weights, or a layer cannot be split evenly.
    """
    strategy, precision = task.trainer.strategy, task.trainer.precision_plugin
    if not isinstance(strategy, Sharded):
        raise UserError(
            f"the strategy {type(strategy).__name__} is not supported: "
            "use the strategy Sharded, as in the overlays `fsdp2` and `tensor_parallel`"
        )
    if scales_loss(task.trainer):
        raise UserError(f"sharding does not support the loss scaling of {precision.precision}: use bf16-mixed")
    if has_layer_sync(strategy):
        raise UserError("sync_batchnorm is not supported with sharding: use layer norm or the overlay `ddp`")
    data, tensor = mesh["data_parallel"], mesh["tensor_parallel"]
    if own := [name for name, _ in task.named_parameters(recurse=False)]:
        raise UserError(f"{own[0]} belongs to the task itself: move it into a submodule, so that it can be sharded")
    _check_ties(task)
    for name, part in _iterate_parts(task):
        parameters = list(part.parameters())
        if not parameters or any(isinstance(one, DTensor) for one in parameters) or isinstance(part, FSDPModule):
            continue
        if tensor.size() > 1:
            plan = getattr(part, "tensor_parallel_plan", None)
            if plan is None:
                raise UserError(f"{type(part).__name__} has no tensor_parallel_plan: use the overlay `fsdp2`")
            parallelize_module(part, tensor, plan())
            _check_even(part, name)
        if data.size() > 1:
            for block in _own_blocks(part):
                fully_shard(block, mesh=data)
            fully_shard(part, mesh=data)


def _iterate_parts(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and the submodules of a task. Unpack lists and dicts of modules, which have no `forward`."""
    for name, part in module.named_children():
        if isinstance(part, nn.ModuleList | nn.ModuleDict):
            yield from _iterate_parts(part, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def _check_ties(task: LightningModule) -> None:
    """Raise UserError if submodules share a parameter. FSDP2 would give each of them its own copy."""
    owners: dict[int, str] = {}
    for name, part in _iterate_parts(task):
        for parameter in part.parameters():
            if (owner := owners.setdefault(id(parameter), name)) != name:
                raise UserError(f"{owner} and {name} share a parameter: move both into one submodule to shard them")


def _own_blocks(net: nn.Module) -> list[nn.Module]:
    """Return the modules in `blocks`, a container or method of a network or its backbone. Return [] without `blocks`.

    Blocks that share parameters with each other or with the rest of the network are omitted.
    """
    own: Any = getattr(net, "blocks", getattr(getattr(net, "backbone", None), "blocks", None))
    if isinstance(own, nn.Sequential | nn.ModuleList):
        blocks = list(own)
    else:
        blocks = own() if callable(own) and not isinstance(own, nn.Module) else []
    uses = _count_uses(net)
    return [block for block in blocks if all(uses[one] == count for one, count in _count_uses(block).items())]


def _count_uses(module: nn.Module) -> Counter[nn.Parameter]:
    return Counter(parameter for _, parameter in module.named_parameters(remove_duplicate=False))


def _check_even(part: nn.Module, path: str) -> None:
    for name, parameter in part.named_parameters():
        if isinstance(parameter, DTensor):
            for placement, count in zip(parameter.placements, parameter.device_mesh.shape, strict=True):
                axis = getattr(placement, "dim", None)
                if axis is not None and parameter.shape[axis] % count:
                    sizes = " × ".join(map(str, parameter.shape))
                    raise UserError(f"{path}.{name} ({sizes}) cannot be split evenly between {count} processes")
