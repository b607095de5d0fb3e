"""Support for LightningModules that are not tasks: inputs of `forward`, dataloaders, and missing prediction hooks."""

import copyreg
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from lit_engine._lightning import trainer_of
from lit_engine.data.module import SplitData
from lit_engine.data.resumable import seed_everywhere
from lit_engine.errors import UserError
from lit_engine.training.task import Task, overrides

OWN_DATA = "lit_engine.training.plain.OwnData"
LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def inputs_of(module: LightningModule, batch: Any) -> dict[str, Tensor]:
    """Return a dict that maps the argument names of `forward` to tensors in the batch.

    In a dict or NamedTuple, inputs are matched to the arguments by name. Optional arguments are included if the batch
    contains them, except for `labels`. In other tuples and lists, and in a NamedTuple with other names, the inputs are
    the first elements. If the batch is a tensor, this tensor is the only input.

    Raises:
        UserError: if there is no `forward`, or the batch does not contain a tensor for each argument.
    """
    needed = _arguments_of(module)
    if set(needed) <= set(getattr(batch, "_fields", ())):
        batch = batch._asdict()
    if isinstance(batch, Mapping):
        parameters = inspect.signature(module.forward).parameters
        accepted = [*parameters, *(batch if _takes_any_name(module) else ())]
        wanted = [name for name in dict.fromkeys(accepted) if name in needed or name not in ("labels", "label")]
        found = {name: batch[name] for name in wanted if isinstance(batch.get(name), Tensor)}
        is_complete = bool(found) and (set(needed) <= found.keys() or _takes_any_name(module))
    else:
        elements = [batch] if isinstance(batch, Tensor) else batch if isinstance(batch, tuple | list) else []
        found = dict(zip(needed, elements, strict=False))
        is_complete = len(found) == len(needed) and all(isinstance(value, Tensor) for value in found.values())
    if not is_complete:
        raise UserError(
            f"{type(module).__name__}.forward takes {', '.join(needed)}, but the batch has no tensors for them: "
            "implement predict_step to predict, and set example_input_array to export"
        )
    return found


def call_forward(module: LightningModule, names: Iterable[str], inputs: Iterable[Tensor]) -> Any:
    """Call a module with the names and tensors from `inputs_of`."""
    named = dict(zip(names, inputs, strict=True))
    parameters = inspect.signature(module.forward).parameters
    kinds = {parameters[name].kind for name in named if name in parameters}
    is_known = named.keys() <= parameters.keys() or _takes_any_name(module)
    if is_known and not kinds & {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL}:
        return module(**named)
    return module(*named.values())


def forward_batch(module: LightningModule, batch: Any) -> Any:
    """Pass a batch, or the inputs in it, to `forward` (see `inputs_of`). A tuple may start with a dict of inputs."""
    if _takes_batch(module, batch):
        return module(batch)
    if isinstance(batch, tuple | list) and not isinstance(batch[0], Tensor):
        return module(batch[0])
    inputs = inputs_of(module, batch)
    return call_forward(module, inputs, inputs.values())


def _takes_any_name(module: LightningModule) -> bool:
    """Return whether `forward` accepts arbitrary keyword arguments, such as `**inputs`."""
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(module.forward).parameters.values())


def _arguments_of(module: LightningModule) -> list[str]:
    """Return the names of the required arguments of `forward`, or of the first argument if none is required."""
    if type(module).forward is LightningModule.forward:
        raise UserError(f"{type(module).__name__} has no forward: implement it, or implement predict_step")
    arguments = inspect.signature(module.forward).parameters.values()
    names = [a.name for a in arguments if a.kind in (a.POSITIONAL_ONLY, a.POSITIONAL_OR_KEYWORD)]
    return [a.name for a in arguments if a.name in names and a.default is a.empty] or names[:1] or ["inputs"]


def _takes_batch(module: LightningModule, batch: Any) -> bool:
    """Return whether `forward` takes the whole batch, such as a dict of inputs or a graph."""
    (name, *more) = _arguments_of(module)
    has_parts = isinstance(batch, Tensor | tuple | list)
    if isinstance(batch, Mapping):
        has_parts = name in batch or _takes_any_name(module)
    return not more and (name == "batch" or not has_parts)


def own_loaders(kind: type) -> list[str]:
    """Return the names of the dataloader methods that a module or data module class implements itself."""
    return [name for name in LOADERS if getattr(kind, name) is not getattr(LightningModule, name)]


class OwnData(LightningDataModule):
    """Data module for a LightningModule that has its own dataloaders. `--data` uses this class by default."""

    module: LightningModule

    @classmethod
    def of(cls, module: LightningModule) -> "OwnData":
        """Return a data module that provides the module's dataloaders."""

        def load(name: str) -> Any:
            return lambda data: getattr(data.module, name)()

        data = type(cls.__name__, (cls,), {name: load(name) for name in own_loaders(type(module))})()
        data.module = module
        return data


class Replacement:
    """Replacement for an object's method. It is pickled and copied as the original method.

    A module or data module is pickled, for example, if one of its methods is the `collate_fn` of a loader whose workers
    are spawned. Nested functions cannot be pickled.
    """

    def __init__(self, owner: Any, name: str, function: Callable[..., Any]) -> None:
        self.owner, self.name = owner, name
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        return getattr, (self.owner, self.name)


def replace(owner: Any, name: str, function: Callable[..., Any]) -> None:
    """Replace a method of a module or data module. `vars(owner).pop(name)` restores it."""
    setattr(owner, name, Replacement(owner, name, function))


def call_after_setup(module: LightningModule, function: Callable[[], None]) -> None:
    """Call a function once, after the next call to the module's `setup`, which may create layers."""
    before, setup = vars(module).get("setup"), module.setup

    def setup_and_call(stage: Any = None) -> None:
        if before is None:
            vars(module).pop("setup")
        else:
            vars(module)["setup"] = before
        setup(stage)
        function()

    vars(module)["setup"] = setup_and_call


def seed_data_hooks(owner: LightningModule | LightningDataModule, seed: int) -> None:
    """Seed each call to `setup` and the dataloader methods, so that all commands create the same random splits.

    A loader that is reloaded every n epochs gets a new seed each time, which is the same in a resumed run.

    As in Lightning's examples, `setup` may create the validation split only for `fit`, so it is always created as in
    `fit`. Without a `predict_dataloader`, `predict` uses the test split.
    """
    loaders = own_loaders(type(owner))
    if isinstance(owner, SplitData) or (isinstance(owner, Task) and not loaders):
        return  # their splits have their own generators
    setup = owner.setup
    stages = {"validate": "fit"} if "val_dataloader" in loaders else {}
    if "test_dataloader" in loaders and "predict_dataloader" not in loaders:
        stages["predict"] = "test"

    def seeded_setup(stage: Any = None) -> None:
        seed_everywhere(seed, "setup", type(owner).__name__)
        setup(stages.get(stage, stage))

    replace(owner, "setup", seeded_setup)
    for name in loaders:
        _seed_loader(owner, name, seed)
    if isinstance(owner, LightningDataModule):
        copyreg.pickle(type(owner), reduce_without_trainer)


def _seed_loader(owner: LightningModule | LightningDataModule, name: str, seed: int) -> None:
    load = getattr(owner, name)

    def seeded_load() -> Any:
        trainer: Any = trainer_of(owner) if isinstance(owner, LightningModule) else owner.trainer
        every = getattr(trainer, "reload_dataloaders_every_n_epochs", 0)
        epoch = trainer.current_epoch // every * every if every else 0
        seed_everywhere(seed, name, type(owner).__name__, epoch)
        return load()

    replace(owner, name, seeded_load)


def reduce_without_trainer(data: LightningDataModule) -> Any:
    """Pickle a data module for a spawned worker without its trainer, which this library has made unpicklable."""
    reduced: Any = object.__reduce_ex__(data, 2)
    create, args, state, *rest = reduced
    return create, args, {**state, "trainer": None} if isinstance(state, dict) else state, *rest


def adds_weights_later(module: LightningModule, callbacks: Iterable[Callback] = ()) -> bool:
    """Return whether hooks of the user's callbacks, or of a module that is not a task, may add weights.

    These hooks add layers to the module, or weights to the checkpoint that is being loaded.
    """
    if not isinstance(module, Task) and overrides(module, "configure_model", "setup", "on_load_checkpoint"):
        return True
    kinds = [type(one) for one in callbacks if not type(one).__module__.startswith(("lightning.", "lit_engine."))]
    return any(kind.setup is not Callback.setup for kind in kinds)


def complete_prediction(module: LightningModule, data: LightningDataModule | None) -> None:
    """Add a `predict_step` that calls `forward`, and a `predict_dataloader` for the test split, if they are missing.

    Lightning's default `predict_step` passes the whole batch to `forward`, even if it is a tuple of images and targets.
    If `data` is None, the module provides the dataloaders.
    """
    if type(module).predict_step is LightningModule.predict_step:

        def predict_step(batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
            try:
                return forward_batch(module, batch)
            except (RuntimeError, TypeError) as error:
                if _takes_batch(module, batch):
                    raise
                inputs = inputs_of(module, batch).values()
                kind, shapes = type(module).__name__, ", ".join(str(tuple(value.shape)) for value in inputs)
                reason = str(error).partition("\n")[0]
                raise UserError(f"{kind} has no predict_step, and its forward rejects {shapes}: {reason}") from error

        replace(module, "predict_step", predict_step)
    owner = module if data is None else data
    if is_overridden("test_dataloader", owner) and not is_overridden("predict_dataloader", owner):
        replace(owner, "predict_dataloader", lambda: owner.test_dataloader())
