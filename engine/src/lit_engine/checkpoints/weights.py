"""Compares a state dict with a model by name and shape, and renames weights."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from lit_engine._lightning import BatchNorm, replaces_loading
from lit_engine.errors import CheckpointError, first_of

COMPILED = "_orig_mod."  # torch.compile inserts it into the names of a module's weights


@dataclass(frozen=True)
class Match:
    """Comparison of a checkpoint and a model by the names and shapes of their tensors."""

    loaded: list[str]
    missing: list[str]  # only in the model, ignoring batch counts
    unexpected: list[str]  # only in the checkpoint
    other_shape: list[str]  # names and both shapes of mismatched tensors
    meaningless: list[str]  # not loaded, because they belong to different data

    @property
    def complete(self) -> bool:
        """Whether the checkpoint contains exactly the tensors of the model."""
        return not (self.missing or self.unexpected or self.other_shape or self.meaningless)

    def __str__(self) -> str:
        """Return one line per group of weights, with at most five names."""
        lines = [f"  loaded: {len(self.loaded)}"]
        others = {"missing": self.missing, "unexpected": self.unexpected, "of a different shape": self.other_shape}
        others["not loaded, because they belong to different data"] = self.meaningless
        for kind, names in others.items():
            if names:
                lines.append(f"  {kind}: {len(names)} ({first_of(names)})")
        return "\n".join(lines)


def match(model: nn.Module, state: Mapping[str, Tensor], meaningless: Collection[str] = ()) -> Match:
    """Compare a state dict with a model by name and shape. Weights in `meaningless` are not loaded.

    A missing `num_batches_tracked` is ignored, because torch does not require this tensor and old files lack it. The
    weights of a lazy layer have no shape yet, so they match any shape. The buffers of modules with custom loading code,
    such as torch's quantization observers, also match any shape.
    """
    own, resized = model.state_dict(), set(_resizable_buffers(model))
    common = [name for name in own if name in state and name not in meaningless]
    shaped = [name for name in common if isinstance(own[name], Tensor) and not is_lazy(own[name])]
    other_shape = [name for name in shaped if own[name].shape != state[name].shape and name not in resized]
    return Match(
        loaded=[name for name in common if name not in other_shape],
        missing=[name for name in own if name not in state and not name.endswith("num_batches_tracked")],
        unexpected=[name for name in state if name not in own and name not in meaningless],
        other_shape=[f"{n} {tuple(state[n].shape)} instead of {tuple(own[n].shape)}" for n in other_shape],
        meaningless=[name for name in state if name in meaningless],
    )


def _resizable_buffers(model: nn.Module) -> Iterator[str]:
    """Yield the names of the buffers whose shapes may change when a state dict is loaded."""
    for path, module in model.named_modules():
        if replaces_loading(module) and not isinstance(module, BatchNorm):
            yield from (name for name, _ in module.named_buffers(path, recurse=False))


def with_versions(state: Mapping[str, Tensor], module: nn.Module) -> dict[str, Tensor]:
    """Add the versions of the module's layers to a state dict. Some networks cannot load their weights without them."""
    own = module.state_dict()
    own.clear()
    own.update(state)
    return own


def rename_prefix(name: str, prefixes: Mapping[str, str | None]) -> str | None:
    """Replace the longest matching prefix of a weight's name. Return None if the weight is dropped."""
    old = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
    new = prefixes.get(old, "")
    return None if new is None else new + name.removeprefix(old)


def rename_prefixes(state: Mapping[str, Tensor], prefixes: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Replace the prefixes of weight names. The longest matching prefix applies, and None drops the weight.

    Mapping `encoder.` to `net.backbone.` and `""` to `net.` renames `encoder.x` to `net.backbone.x` and `y` to `net.y`.

    Raises:
        CheckpointError: if a prefix matches no name, or two weights get the same name.
    """
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        new = rename_prefix(name, prefixes)
        if new is None:
            continue
        if new in found:
            raise CheckpointError(f"the prefixes {dict(prefixes)} map two weights to the same name {new!r}")
        found[new] = value
    for prefix in prefixes:
        if not any(name.startswith(prefix) for name in state):
            beginnings = sorted({name.partition(".")[0] for name in state})
            raise CheckpointError(f"no weight name starts with {prefix!r}; names start with {', '.join(beginnings)}")
    return found


def rename_compiled(model: nn.Module, state: dict[str, Any], prefix: str = "", *_: Any) -> None:
    """Rename weights to match the model if a module is compiled in only one of model and checkpoint.

    For example, `net._orig_mod.weight` becomes `net.weight` if the model does not compile `net`. The function can be
    registered as a hook that runs before `load_state_dict`.
    """
    own = {(prefix + name).replace(COMPILED, ""): prefix + name for name in model.state_dict()}
    renamed = {own.get(name.replace(COMPILED, ""), name): value for name, value in state.items()}
    state.clear()
    state.update(renamed)
