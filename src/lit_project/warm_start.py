"""Weights from a checkpoint into a model: all of them, or those that fit, with a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from lit_project.checkpoints import read
from lit_project.errors import CheckpointError


@dataclass(frozen=True)
class Match:
    """How the tensors of a checkpoint fit those of a model, by name."""

    loaded: list[str]
    missing: list[str]  # in the model, not in the checkpoint
    unexpected: list[str]  # in the checkpoint, not in the model
    other_shape: list[str]  # in both; with the shapes

    def __str__(self) -> str:
        """One line a kind; at most five names."""
        lines = []
        for kind in ("loaded", "missing", "unexpected", "other_shape"):
            names = getattr(self, kind)
            if names or kind == "loaded":
                shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
                lines.append(f"  {kind.replace('_', ' of ') if kind == 'other_shape' else kind}: {len(names)}"
                             + (f" ({shown})" if names and kind != "loaded" else ""))  # fmt: skip
        return "\n".join(lines).replace("other of shape", "of another shape")


def match(model: nn.Module, state: Mapping[str, Tensor]) -> Match:
    """Compares names and shapes."""
    own = model.state_dict()
    common = [name for name in own if name in state]
    other_shape = [name for name in common if own[name].shape != state[name].shape]
    return Match(
        loaded=[name for name in common if name not in other_shape],
        missing=[name for name in own if name not in state],
        unexpected=[name for name in state if name not in own],
        other_shape=[f"{n} {tuple(state[n].shape)} instead of {tuple(own[n].shape)}" for n in other_shape],
    )


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
    if found.missing or found.unexpected or found.other_shape:
        raise CheckpointError(f"{checkpoint} is of another model than the config describes:\n{found}")


def warm_start(model: nn.Module, checkpoint: Path) -> Match:
    """Loads the weights that fit by name and shape, and leaves the others as they are.

    Raises:
        CheckpointError: nothing fits, or the file cannot be read.
    """
    state = state_of(checkpoint)
    found = match(model, state)
    parameters = {name for name, _ in model.named_parameters()}  # buffers alone are no start
    if not parameters.intersection(found.loaded):
        raise CheckpointError(f"no weight of {checkpoint} fits the model:\n{found}")
    model.load_state_dict({name: state[name] for name in found.loaded}, strict=False)
    return found
