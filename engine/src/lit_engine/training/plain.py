"""Support for LightningModules that are not tasks: inputs of `forward`, dataloaders, and missing prediction hooks."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import Tensor

from lit_engine.data.module import SplitData
from lit_engine.data.resumable import seed_everywhere
from lit_engine.errors import UserError
from lit_engine.training.task import Task

OWN_DATA = "lit_engine.training.plain.OwnData"
LOADERS = ("train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader")


def inputs_of(module: LightningModule, batch: Any) -> dict[str, Tensor]:
    """Return a dict from the argument names of `forward` to tensors in the batch.

    In a dict or NamedTuple, inputs have the names of the arguments. In other tuples and lists, and in a NamedTuple with
    other names, the inputs are the first elements. If the batch is a tensor, this tensor is the only input.

    Raises:
        UserError: if there is no `forward`, or the batch does not contain a tensor for each argument.
    """
    needed = _arguments_of(module)
    if set(needed) <= set(getattr(batch, "_fields", ())):
        batch = batch._asdict()
    if isinstance(batch, Mapping):
        found = {name: batch[name] for name in needed if name in batch}
    else:
        elements = [batch] if isinstance(batch, Tensor) else batch if isinstance(batch, tuple | list) else []
        found = dict(zip(needed, elements, strict=False))
    if len(found) < len(needed) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(
            f"{type(module).__name__}.forward takes {', '.join(needed)}, but the batch has no tensors for them: "
            "implement predict_step to predict, and set example_input_array to export"
        )
    return found


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
    has_parts = name in batch if isinstance(batch, Mapping) else isinstance(batch, Tensor | tuple | list)
    return not more and (name == "batch" or not has_parts)


class OwnData(LightningDataModule):
    """Data module for a LightningModule that has its own dataloaders. It is the default of `--data`."""

    module: LightningModule

    @classmethod
    def of(cls, module: LightningModule) -> "OwnData":
        """Return a data module that returns the dataloaders of the module."""

        def load(name: str) -> Any:
            return lambda data: getattr(data.module, name)()

        names = [name for name in LOADERS if getattr(type(module), name) is not getattr(LightningModule, name)]
        data = type(cls.__name__, (cls,), {name: load(name) for name in names})()
        data.module = module
        return data


def seed_setup(owner: LightningModule | LightningDataModule, seed: int) -> None:
    """Seed each call of `setup`, so that random splits are the same in all stages and commands."""
    if isinstance(owner, Task | SplitData):  # their splits have their own generators
        return
    setup = owner.setup

    def seeded_setup(stage: Any = None) -> None:
        seed_everywhere(seed, "setup", type(owner).__name__)
        setup(stage)

    owner.setup = seeded_setup  # type: ignore[method-assign]


def adds_weights_later(module: LightningModule, callbacks: Iterable[Callback] = ()) -> bool:
    """Return whether hooks of the user's callbacks, or of a module that is not a task, may add weights.

    These hooks add layers to the module, or weights to the checkpoint that is being loaded.
    """
    hooks = ("configure_model", "setup", "on_load_checkpoint")
    overrides = any(getattr(type(module), name) is not getattr(LightningModule, name) for name in hooks)
    kinds = [type(one) for one in callbacks if not type(one).__module__.startswith(("lightning.", "lit_engine."))]
    return (overrides and not isinstance(module, Task)) or any(kind.setup is not Callback.setup for kind in kinds)


def complete_validation(data: Any) -> None:
    """Make validation call `setup("fit")` if `val_dataloader` needs it, as in Lightning's examples."""
    if type(data).val_dataloader is LightningDataModule.val_dataloader:  # there is no validation split
        return
    val_dataloader, owner = data.val_dataloader, data.module if isinstance(data, OwnData) else data

    def set_up_and_load() -> Any:
        try:
            return val_dataloader()
        except (AttributeError, TypeError):  # the validation split does not exist, or is None
            owner.setup("fit")
            return val_dataloader()

    data.val_dataloader = set_up_and_load


def complete_prediction(module: LightningModule, data: Any) -> None:
    """Add a `predict_step` that calls `forward`, and a `predict_dataloader` for the test split, if they are missing.

    Lightning's default `predict_step` passes the whole batch to `forward`, even if it is a tuple of images and targets.
    """
    kind = type(data)
    if type(module).predict_step is LightningModule.predict_step:

        def predict_step(batch: Any, batch_idx: int = 0, dataloader_idx: int = 0) -> Any:
            if _takes_batch(module, batch):
                return module(batch)
            inputs = inputs_of(module, batch).values()
            try:
                return module(*inputs)
            except (RuntimeError, TypeError) as error:
                kind, shapes = type(module).__name__, ", ".join(str(tuple(value.shape)) for value in inputs)
                reason = str(error).partition("\n")[0]
                raise UserError(f"{kind} has no predict_step, and its forward rejects {shapes}: {reason}") from error

        module.predict_step = predict_step  # type: ignore[method-assign]
    if (
        isinstance(data, LightningDataModule)
        and kind.predict_dataloader is LightningDataModule.predict_dataloader
        and kind.test_dataloader is not LightningDataModule.test_dataloader
    ):

        def predict_dataloader() -> Any:
            (module if isinstance(data, OwnData) else data).setup("test")
            return data.test_dataloader()

        data.predict_dataloader = predict_dataloader  # type: ignore[method-assign]
