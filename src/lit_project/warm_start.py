"""Weights from a run or a checkpoint into a model: all of them, or those that fit, with a report."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from lit_project.checkpoints import read
from lit_project.errors import CheckpointError
from lit_project.weights import Match, load_fitting, match, renamed


def state_of(checkpoint: Path) -> dict[str, Tensor]:
    """The weights in a checkpoint.

    Raises:
        CheckpointError: it has none, or cannot be read.
    """
    state = read(checkpoint).get("state_dict")
    if not isinstance(state, dict):
        raise CheckpointError(f"{checkpoint} has no state_dict: it is not a checkpoint of a run")
    return state


def check_fits(model: nn.Module, checkpoint: Path) -> None:
    """Raises CheckpointError, with what differs, unless the checkpoint holds exactly this model's weights."""
    found = match(model, state_of(checkpoint))
    if not found.complete:
        raise CheckpointError(f"{checkpoint} is of another model than the config describes:\n{found}")


def warm_start(
    model: nn.Module, checkpoint: Path, prefixes: Mapping[str, str | None] | None = None, strict: bool = False
) -> Match:
    """Loads the weights of a checkpoint that fit; see `load_fitting`.

    Raises:
        CheckpointError: nothing fits, `strict` and not all do, or the file cannot be read.
    """
    state = state_of(checkpoint)
    return load_fitting(model, renamed(state, prefixes) if prefixes else state, str(checkpoint), strict)
