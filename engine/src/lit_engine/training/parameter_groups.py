"""Which parameters share learning rate and weight decay: the groups of the optimizer."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lit_engine.errors import UserError, did_you_mean


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


Shares = list[tuple[Group, list[nn.Parameter]]]


@dataclass
class ParameterGroups:
    """Shares out the trainable parameters of a task; each is in exactly one group.

    Args:
        groups: by path or pattern; what they do not match is the group `base`.
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
        if self.layer_decay is not None and (self.groups or not 0 < self.layer_decay <= 1):
            raise GroupError(f"parameter_groups: layer_decay must be in (0, 1] and without groups: {self.layer_decay}")
        names = ["base", *(group.name for group in self.groups)]
        if len({*names}) < len(names):
            raise GroupError(f"parameter_groups: names must differ: {', '.join(names)}")

    def __call__(self, module: nn.Module) -> list[dict[str, Any]]:
        """The groups of `module`'s trainable parameters, as an optimizer takes them, with `name` and `lr_factor`.

        Raises:
            GroupError: a pattern matches nothing, or two groups match the same parameter.
        """
        shares = self._by_layer(module) if self.layer_decay is not None else self._by_pattern(module)
        found = []
        for group, parameters in shares:
            parameters = [parameter for parameter in parameters if parameter.requires_grad]
            parts = {"": parameters}
            if not self.decay_norms_and_biases:
                parts = {"": [p for p in parameters if p.ndim > 1], "no_decay": [p for p in parameters if p.ndim <= 1]}
            for part, members in parts.items():
                if members:
                    options = {**group.options, **({"weight_decay": 0.0} if part else {})}
                    name = "/".join(filter(None, (group.name, part)))
                    found.append({"params": members, "name": name, "lr_factor": group.lr_factor, **options})
        return found

    def _by_pattern(self, module: nn.Module) -> Shares:
        members: dict[str, list[nn.Parameter]] = {name: [] for name in ("base", *(group.name for group in self.groups))}
        used = set()
        for name, parameter in module.named_parameters():
            owners = {(g.name, pattern) for g in self.groups for pattern in g.match if _matches(name, pattern)}
            used |= owners
            names = sorted({owner for owner, _ in owners}) or ["base"]
            if len(names) > 1:
                raise GroupError(f"parameter_groups: {name} is matched by {' and by '.join(names)}")
            members[names[0]].append(parameter)
        for group in self.groups:
            for pattern in group.match:
                if (group.name, pattern) not in used:
                    raise GroupError(f"parameter_groups: {pattern!r} of {group.name} matches no parameter")
        return [(group, members[group.name]) for group in (Group("base", []), *self.groups)]

    def _by_layer(self, module: nn.Module) -> Shares:
        assert self.layer_decay is not None
        every = dict(module.named_parameters())
        paths = layers(module)
        members: dict[str, list[nn.Parameter]] = {path: [] for path in paths}
        for name, parameter in every.items():
            members[max((path for path in paths if _matches(name, path)), key=len)].append(parameter)
        # norms and single parameters do not count: they learn at the rate of the layer before them, or of the first
        counted = [path not in every and any(p.ndim > 1 for p in members[path]) for path in paths]
        if sum(counted) < 2:
            raise GroupError(f"parameter_groups: layer_decay finds one layer alone, {', '.join(paths)}: name groups")
        shares = []
        for number, path in enumerate(paths):
            after = min(sum(counted[number + 1 :]), max(sum(counted) - 1, 0))
            shares.append((Group(path, [path], self.layer_decay**after), members[path]))
        return shares


def _matches(name: str, pattern: str) -> bool:
    """Whether a parameter's name lies under a module path or fits a pattern."""
    return name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


def layers(module: nn.Module, path: str = "") -> list[str]:
    """Paths of the layers from input to output: children with parameters, looked into where they only hold others.

    Containers are `nn.Sequential`, `nn.ModuleList`, what is called `net`, `backbone` or `model`, and what has a list as
    its `layers` or `layer`, such as the encoder of a vision Transformer or of BERT; what a list holds is a block,
    whatever is in it. A parameter that a container holds itself comes before its parts.
    """
    found, lists = [], (nn.Sequential, nn.ModuleList)
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if next(child.parameters(), None) is None:
            continue
        holds = () if isinstance(module, lists) else (getattr(child, "layers", None), getattr(child, "layer", None))
        container = name in ("net", "backbone", "model") or any(isinstance(part, lists) for part in (child, *holds))
        found += layers(child, inner) if container else [inner]
    own = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
    return own + found


def check_options(groups: Iterable[Any], optimizer: Optimizer) -> None:
    """Raises GroupError for an option of a group that its optimizer does not know and would ignore."""
    for group in groups:
        for name in group if isinstance(group, dict) else ():
            if name not in (*optimizer.defaults, "params", "name", "lr_factor"):
                kind, hint = type(optimizer).__name__, did_you_mean(name, optimizer.defaults)
                raise GroupError(f"parameter_groups: {kind} has no option {name!r}{hint}")
