"""Loads weights from a checkpoint into a model, and checks whether checkpoints and resumed runs fit their configs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from lit_engine.checkpoints.io import read
from lit_engine.checkpoints.weights import COMPILED, Match, match, rename_compiled, rename_prefix, rename_prefixes
from lit_engine.classes.names import resolve_class_paths
from lit_engine.errors import CheckpointError, UserError, first_of
from lit_engine.run.directory import RunDir
from lit_engine.run.options import iterate_changes

# Parts of a task whose state a resumed run restores from its checkpoint, not from the config.
FROM_CHECKPOINT = ("optimizer", "schedulers", "parameter_groups", "parts")
# Options of data modules that usually do not change which samples are evaluated.
OTHER_OPTIONS = (
    "batch_size", "global_batch_size", "eval_batch_size", "drop_last", "sampling", "corrections",
    "train_transforms", "num_workers", "pin_memory", "on_device",
)  # fmt: skip


class WarmStart(LambdaCallback):
    """A callback that loads the weights of another run after the module's hooks have created its layers."""


def state_of(content: dict[str, Any], checkpoint: Path) -> dict[str, Tensor]:
    """Return the weights in a checkpoint, without the `_orig_mod.` that torch.compile adds to their names.

    Raises:
        CheckpointError: if the checkpoint has no weights.
    """
    state = content.get("state_dict")
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint} has no state_dict, so it is not a checkpoint of a run")
    return {name.replace(COMPILED, ""): value for name, value in state.items()}


def check_fits(
    model: nn.Module,
    content: dict[str, Any],
    checkpoint: Path,
    hyper_parameters: Mapping[str, Any],
    is_partial: bool = False,
) -> list[str]:
    """Raise CheckpointError with a list of differences unless a checkpoint contains exactly this model's weights.

    Class or target names in a different order are also an error. Replaced names are only reported.

    In two cases, only the shapes are compared. If `is_partial` is true, hooks may still add weights to the model or to
    the checkpoint, and Lightning checks the names later. If a LightningModule sets `strict_loading = False`, its
    checkpoints may omit frozen weights. With `is_partial`, the shapes are not compared either if the model overrides
    `on_load_checkpoint`, which may resize weights.

    Returns:
        Descriptions of hyperparameters whose values have changed since training, such as the image mean or class names.
    """
    state = state_of(content, checkpoint)
    rename_compiled(model, state)
    found = match(model, state)
    if is_partial or not getattr(model, "strict_loading", True):
        found = replace(found, missing=[], unexpected=[])
    adds_layers = getattr(model, "adds_layers", False)  # if so, Lightning checks the names later
    if adds_layers and not (found.missing or found.other_shape):
        found = replace(found, unexpected=[])
    if is_partial and is_overridden("on_load_checkpoint", model, LightningModule):  # the hook may resize weights
        found = replace(found, other_shape=[])
    if not found.complete:
        raise CheckpointError(f"{checkpoint} belongs to a different model than the one in the config:\n{found}")
    before, now = (
        {name: value for name, value in values.items() if name not in FROM_CHECKPOINT}
        for values in (content.get("hyper_parameters", {}), hyper_parameters)
    )
    for option in ("class_names", "target_names"):
        old, new = (values[option] if isinstance(values.get(option), list) else [] for values in (before, now))
        if any(name in old and old.index(name) != place for place, name in enumerate(new)):
            raise CheckpointError(
                f"{checkpoint} was trained with {option} {first_of(old)}, but the data now have {first_of(new)}, "
                "so predictions would be mislabelled: restore the original data or names"
            )
    return _describe_changes(before, now)


def changed_evaluation(run: Path, config: Mapping[str, Any]) -> list[str]:
    """Describe the options that make an evaluation use different samples or a different precision than the run."""
    both = []
    for one in (resolve_class_paths(RunDir(run).config()), config):
        data, trainer = one.get("data") or {}, one.get("trainer") or {}
        options = {name: value for name, value in data.get("init_args", {}).items() if name not in OTHER_OPTIONS}
        limits = {name: trainer.get(name) for name in ("limit_val_batches", "limit_test_batches", "precision")}
        both.append({"data": {**data, "init_args": options}, "trainer": limits})
    return _describe_changes(*both)


def _describe_changes(before: Any, now: Any) -> list[str]:
    return [
        f"{key} was {shorten(str(old), 80)} in training and is {shorten(str(new), 80)}"
        for key, old, new in iterate_changes(*apply_to_collection((before, now), Tensor, Tensor.tolist))
    ]


def check_kept(run: Path, config: Mapping[str, Any]) -> None:
    """Raise UserError if the config of a resumed run has a different optimizer or different schedules.

    The checkpoint would silently restore the old optimizer and schedules. Resuming without schedules is allowed.
    """
    both = resolve_class_paths(RunDir(run).config()), config
    before, now = (one["model"].get("init_args", {}) for one in both)
    for part in FROM_CHECKPOINT:
        if part == "schedulers" and not now.get(part):
            continue
        for key, old, new in iterate_changes({part: before.get(part)}, {part: now.get(part)}, "model"):
            change = f"{key} was {shorten(str(old), 80)} and would be {shorten(str(new), 80)}"
            raise UserError(
                f"a resumed run cannot change its optimizer or schedules: {change}; continue as a new run: "
                f"fit --fork {run}"
            )


def warm_start(
    model: nn.Module,
    checkpoint: Path,
    prefixes: Mapping[str, str | None] | None = None,
    strict: bool = False,
    content: dict[str, Any] | None = None,
) -> Match:
    """Copy weights with matching names and shapes into the model, and leave all other weights unchanged.

    `content` is the content of the checkpoint, if it has already been read.

    A task may have a `meaningless_weights` method, which receives the hyperparameters of the checkpoint and returns the
    names of weights that are only useful with the checkpoint's data, such as embeddings of a different vocabulary.

    Raises:
        CheckpointError: if the file cannot be read, no parameter fits, or `strict` is set and weights that `prefixes`
            does not drop do not fit.
    """
    content = read(checkpoint) if content is None else content
    prefixes = {prefix.replace(COMPILED, ""): new for prefix, new in (prefixes or {}).items()}
    state = rename_prefixes(state_of(content, checkpoint), prefixes)
    rename_compiled(model, state)
    find: Any = getattr(model, "meaningless_weights", lambda hyper_parameters: [])
    found = match(model, state, find(content.get("hyper_parameters", {})))
    # Reject the checkpoint if only buffers match the model.
    if not {name for name, _ in model.named_parameters()}.intersection(found.loaded):
        raise CheckpointError(f"no weight of {checkpoint} fits the model:\n{found}")
    renamed = {prefix: new for prefix, new in prefixes.items() if new is not None}
    # the names that the dropped weights would have in the model
    dropped = tuple(str(rename_prefix(prefix, renamed)) for prefix in prefixes if prefix not in renamed)
    kept = replace(found, missing=[name for name in found.missing if not name.startswith(dropped)])
    if strict and not kept.complete:
        raise CheckpointError(f"the weights of {checkpoint} do not match the model:\n{kept}")
    # Load the model's own state dict, whose version metadata keeps torchvision models from renaming weights.
    own = model.state_dict()
    own.update((name, state[name]) for name in found.loaded)
    model.load_state_dict(own, strict=getattr(model, "strict_loading", True))
    return found
