"""Which parameters share learning rate and weight decay: the groups of the optimizer."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .errors import UserError, did_you_mean

Named = list[tuple[str, nn.Parameter]]


class GroupError(UserError):
    """Groups that overlap, are empty or contradict themselves."""


@dataclass
class Group:
    """Parameters with options of their own.

    Args:
        name: in logs, as `lr/NAME`.
        match: module paths (`net.head`: everything in it) or patterns of parameter names (`*.bias`).
        lr_factor: their learning rate, as a multiple of the optimizer's.
        options: other options of the optimizer, such as `{weight_decay: 0.0}`.
    """

    name: str
    match: list[str]
    lr_factor: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class ParameterGroups:
    """Shares out the trainable parameters of a task; each is in exactly one group.

    Args:
        groups: by path or pattern; what none of them matches is the group `base`.
        layer_decay: instead of `groups`: every layer learns this many times as fast as the one after it, the last one
            at the full rate (Howard & Ruder 2018, "discriminative fine-tuning"; 0.65 to 0.9 are usual). Layers are the
            parts that `layers` finds: residual blocks, blocks of a vision Transformer… Norms and single parameters,
            such as the embedding of positions, go with the layer before them.
        decay_norms_and_biases: false takes weight decay from all parameters with fewer than two axes: biases and the
            scales of norms (He et al. 2019, "Bag of tricks", 3.1).

    Raises:
        GroupError: `layer_decay` next to `groups` or outside (0, 1].
    """

    groups: list[Group] = field(default_factory=list)
    layer_decay: float | None = None
    decay_norms_and_biases: bool = True

    def __post_init__(self) -> None:
        """Checks what can be checked without a model."""
        if self.layer_decay is not None:
            if self.groups:
                raise GroupError("parameter_groups: give groups or layer_decay, not both")
            if not 0 < self.layer_decay <= 1:
                raise GroupError(f"parameter_groups: layer_decay must be in (0, 1], got {self.layer_decay}")
        names = [group.name for group in self.groups]
        if len({*names, "base"}) <= len(names):
            raise GroupError(f"parameter_groups: names must differ, and none be 'base': {', '.join(names)}")

    def __call__(self, module: nn.Module) -> list[dict[str, Any]]:
        """The groups of `module`'s trainable parameters, as an optimizer takes them, with `name` and `lr_factor`.

        Raises:
            GroupError: a pattern matches nothing, or two groups match the same parameter.
        """
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        shares = self._by_layer(module, named) if self.layer_decay is not None else self._by_pattern(module, named)
        found = []
        for group, parameters in shares:
            parts = {"": parameters}
            if not self.decay_norms_and_biases:
                parts = {"": [p for p in parameters if p.ndim > 1], "no_decay": [p for p in parameters if p.ndim <= 1]}
            for part, members in parts.items():
                if members:
                    options = {**group.options, **({"weight_decay": 0.0} if part else {})}
                    name = "/".join(filter(None, (group.name, part)))
                    found.append({"params": members, "name": name, "lr_factor": group.lr_factor, **options})
        return found

    def _by_pattern(self, module: nn.Module, named: Named) -> list[tuple[Group, list[nn.Parameter]]]:
        every = [name for name, _ in module.named_parameters()]
        for group in self.groups:
            for pattern in group.match:
                if not any(_matches(name, pattern) for name in every):
                    raise GroupError(f"parameter_groups: {pattern!r} of {group.name} matches no parameter")
        shares: dict[str, tuple[Group, list[nn.Parameter]]] = {
            group.name: (group, []) for group in [Group("base", []), *self.groups]
        }
        for name, parameter in named:
            owners = [g.name for g in self.groups if any(_matches(name, pattern) for pattern in g.match)]
            if len(owners) > 1:
                raise GroupError(f"parameter_groups: {name} is matched by {' and by '.join(owners)}")
            shares[owners[0] if owners else "base"][1].append(parameter)
        return list(shares.values())

    def _by_layer(self, module: nn.Module, named: Named) -> list[tuple[Group, list[nn.Parameter]]]:
        assert self.layer_decay is not None
        paths = layers(module)
        members: dict[str, list[nn.Parameter]] = {path: [] for path in paths}
        for name, parameter in named:
            members[max((path for path in paths if _matches(name, path)), key=len)].append(parameter)
        shares = []
        every = dict(module.named_parameters())
        counted = [p not in every and any(w.ndim > 1 for name, w in every.items() if _matches(name, p)) for p in paths]
        rank = 0  # a norm learns at the rate of the layer before it; what is before all layers, at that of the first
        for path, layer in zip(reversed(paths), reversed(counted), strict=True):
            factor = self.layer_decay ** min(rank, max(sum(counted) - 1, 0))
            shares.append((Group(path, [path], factor), members[path]))
            rank += layer
        return shares[::-1]


def _matches(name: str, pattern: str) -> bool:
    """Whether a parameter's name lies under a module path or fits a pattern."""
    return name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


def layers(module: nn.Module, path: str = "") -> list[str]:
    """Paths of the layers from input to output: children with parameters, looked into where they only hold others.

    Containers are `nn.Sequential`, `nn.ModuleList`, what is called `net` or `backbone`, and what has one of the former
    as its `layers`, such as the encoder of a vision Transformer. A parameter that a container holds itself comes before
    its parts.
    """
    found = []
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if next(child.parameters(), None) is None:
            continue
        container = name in ("net", "backbone") or any(
            isinstance(part, nn.Sequential | nn.ModuleList) for part in (child, getattr(child, "layers", None))
        )
        found += layers(child, inner) if container else [inner]
    own = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
    return own + found


def apply_factors(groups: Iterable[dict[str, Any]], lr: float | None = None) -> None:
    """Multiplies the rate of each group of a new optimizer by its `lr_factor`; `lr` replaces the rate before."""
    for group in groups:
        factor = group.pop("lr_factor", 1.0)
        if not (math.isfinite(factor) and factor >= 0):
            raise GroupError(f"parameter_groups: lr_factor must be at least 0, got {factor}")
        group["lr"] = (group["lr"] if lr is None else lr) * factor


def check_options(groups: Iterable[Any], optimizer: Optimizer) -> None:
    """Raises GroupError where a group has an option that its optimizer does not know, and would pass over."""
    for group in groups:
        for name in group if isinstance(group, dict) else ():
            if name not in (*optimizer.defaults, "params", "name", "lr_factor"):
                kind, hint = type(optimizer).__name__, did_you_mean(name, optimizer.defaults)
                raise GroupError(f"parameter_groups: {kind} has no option {name!r}{hint}")


def check_trained(states: Sequence[dict[str, Any]], groups: Iterable[Any]) -> None:
    """Raises GroupError if the parameters to be optimised are more or fewer than those of a checkpoint's optimizers.

    Args:
        states: of the optimizers, as a checkpoint holds them.
        groups: parameters, or groups of them.
    """
    before = sum(len(group["params"]) for state in states for group in state["param_groups"])
    now = sum(len(list(group["params"])) if isinstance(group, dict) else 1 for group in groups)
    if before and before != now:
        raise GroupError(
            f"the run has trained {before} parameter tensors and would resume with {now}: what never trains (null in "
            "Unfreezing) cannot change within a run; start a new one from its weights with --init_from"
        )
