"""How the tensors of a state dict fit a model: names, shapes, prefixes, a report."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from lit_engine.errors import CheckpointError, first_of


@dataclass(frozen=True)
class Match:
    """How the tensors of a checkpoint fit those of a model, by name."""

    loaded: list[str]
    missing: list[str]  # in the model, not in the checkpoint; counts of batches aside
    unexpected: list[str]  # in the checkpoint, not in the model
    other_shape: list[str]  # in both; with the shapes
    meaningless: list[str] = field(default_factory=list)  # not loaded, because they belong to other data

    @property
    def complete(self) -> bool:
        """Whether there was a tensor for each of the model's, and none more."""
        return not (self.missing or self.unexpected or self.other_shape or self.meaningless)

    def __str__(self) -> str:
        """A line per kind, with at most five names."""
        lines = [f"  loaded: {len(self.loaded)}"]
        others = {"missing": self.missing, "unexpected": self.unexpected, "of another shape": self.other_shape}
        others["not loaded, because they belong to other data"] = self.meaningless
        for kind, names in others.items():
            if names:
                lines.append(f"  {kind}: {len(names)} ({first_of(names)})")
        return "\n".join(lines)


def match(model: nn.Module, state: Mapping[str, Tensor]) -> Match:
    """Compares names and shapes.

    Norms of old files have no `num_batches_tracked`, which torch does not require either.
    """
    own = model.state_dict()
    common = [name for name in own if name in state]
    other_shape = [name for name in common if own[name].shape != state[name].shape]
    return Match(
        loaded=[name for name in common if name not in other_shape],
        missing=[name for name in own if name not in state and not name.endswith("num_batches_tracked")],
        unexpected=[name for name in state if name not in own],
        other_shape=[f"{n} {tuple(state[n].shape)} instead of {tuple(own[n].shape)}" for n in other_shape],
    )


def renamed(state: Mapping[str, Tensor], prefixes: Mapping[str, str | None]) -> dict[str, Tensor]:
    """The state with other prefixes of its names; the longest that applies counts, and None drops a weight.

    `{"encoder.": "net.backbone.", "": "net."}` makes `encoder.x` into `net.backbone.x` and `y` into `net.y`.

    Raises:
        CheckpointError: a prefix with which no name begins, or two names that become the same.
    """
    found: dict[str, Tensor] = {}
    used = set()
    for name, value in state.items():
        old = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)
        used.add(old)
        beginning = "" if old is None else prefixes[old]
        if beginning is None:
            continue
        new = beginning + name.removeprefix(old or "")
        if new in found:
            raise CheckpointError(f"the prefixes {dict(prefixes)} give two weights the name {new!r}")
        found[new] = value
    for prefix in prefixes:
        if prefix not in used:
            beginnings = sorted({name.partition(".")[0] for name in state})
            raise CheckpointError(f"no weight begins with {prefix!r}; they begin with {', '.join(beginnings)}")
    return found


def load_fitting(
    model: nn.Module,
    state: Mapping[str, Tensor],
    source: str,
    strict: bool = False,
    meaningless: Collection[str] = (),
) -> Match:
    """Loads the weights that fit by name and shape, onto the devices where the model is, and leaves the others.

    Args:
        model: takes them.
        state: from any device.
        source: what messages call it.
        strict: anything that does not fit is an error.
        meaningless: names of weights that are not loaded, because they belong to other data.

    Raises:
        CheckpointError: no parameter fits, or `strict` and not all do.
    """
    left_out = [name for name in state if name in meaningless]
    found = match(model, {name: value for name, value in state.items() if name not in left_out})
    missing = [name for name in found.missing if name not in left_out]
    found = replace(found, missing=missing, meaningless=left_out)
    parameters = {name for name, _ in model.named_parameters()}  # buffers alone are no start
    if not parameters.intersection(found.loaded):
        raise CheckpointError(f"no weight of {source} fits the model:\n{found}")
    if strict and not found.complete:
        raise CheckpointError(f"the weights of {source} are not those of the model:\n{found}")
    own = model.state_dict()  # which tells the version of its names: some torchvision nets rename those of others
    own.update((name, state[name]) for name in found.loaded)
    model.load_state_dict(own)
    return found
