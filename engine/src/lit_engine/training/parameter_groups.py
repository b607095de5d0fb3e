"""Parameter groups of the optimizer, each with its own learning rate and weight decay."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lit_engine.errors import UserError, did_you_mean


@dataclass
class Group:
    """Group of parameters with its own optimizer options.

    Args:
        name: name of the group in logs (`lr/NAME`).
        match: module paths (`net.head` matches all of its parameters) or patterns for parameter names (`*.bias`).
        lr_factor: factor by which the optimizer's learning rate is multiplied.
        options: other optimizer options, such as `weight_decay`.
    """

    name: str
    match: list[str]
    lr_factor: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


Shares = list[tuple[Group, list[nn.Parameter]]]


@dataclass
class ParameterGroups:
    """Partition of a task's trainable parameters into groups.

    Args:
        groups: groups selected by module path or pattern. All other parameters form the group `base`.
        layer_decay: ratio of each layer's learning rate to the next layer's rate, usually 0.65 to 0.9 ("discriminative
            fine-tuning", Howard & Ruder 2018). The last layer uses the full rate. This option replaces `groups`. The
            function `layers` finds the layers, such as residual blocks or the blocks of a vision Transformer. Norms and
            standalone parameters, such as a position embedding, belong to the layer before them.
        decay_norms_and_biases: whether to apply weight decay to parameters with fewer than two axes, such as biases and
            norm scales. Section 3.1 of "Bag of Tricks for Image Classification" (2019) disables this decay.

    Raises:
        UserError: if `layer_decay` is outside (0, 1] or combined with `groups`, or if group names are not unique.
    """

    groups: list[Group] = field(default_factory=list)
    layer_decay: float | None = None
    decay_norms_and_biases: bool = True

    def __post_init__(self) -> None:
        if self.layer_decay is not None and (self.groups or not 0 < self.layer_decay <= 1):
            raise UserError(f"parameter_groups: set either groups or a layer_decay in (0, 1], got {self.layer_decay}")
        names = ["base", *(group.name for group in self.groups)]
        if len({*names}) < len(names):
            raise UserError(f"parameter_groups: group names must be unique: {', '.join(names)}")

    def __call__(self, module: nn.Module) -> list[dict[str, Any]]:
        """Return a module's trainable parameters as optimizer groups, which contain `name` and `lr_factor`.

        Raises:
            UserError: if a pattern matches nothing, two groups match the same parameter, or `layer_decay` finds only
                one layer.
        """
        shares = self._by_layer(module) if self.layer_decay is not None else self._by_pattern(module)
        found = []
        for group, parameters in shares:
            trainable = [parameter for parameter in parameters if parameter.requires_grad]
            options = {"name": group.name, "lr_factor": group.lr_factor, **group.options}
            if self.decay_norms_and_biases:
                found.append({"params": trainable, **options})
            else:
                undecayed = {"name": f"{group.name}/no_decay", "weight_decay": 0.0}
                found.append({"params": [p for p in trainable if p.ndim > 1], **options})
                found.append({"params": [p for p in trainable if p.ndim <= 1], **options, **undecayed})
        return [group for group in found if group["params"]]

    def _by_pattern(self, module: nn.Module) -> Shares:
        every: dict[nn.Parameter, list[str]] = {}  # a tied parameter has several names
        for name, parameter in module.named_parameters(remove_duplicate=False):
            every.setdefault(parameter, []).append(name)
        for group in self.groups:
            for pattern in group.match:
                if not any(_matches(name, pattern) for names in every.values() for name in names):
                    raise UserError(f"parameter_groups: {pattern!r} of group {group.name} matches no parameter")
        groups = [Group("base", []), *self.groups]
        members: dict[str, list[nn.Parameter]] = {group.name: [] for group in groups}
        for parameter, names in every.items():
            owners = [g.name for g in self.groups if any(_matches(n, pattern) for n in names for pattern in g.match)]
            if len(owners) > 1:
                found = " = ".join(names)
                raise UserError(f"parameter_groups: {found} is matched by {' and by '.join(owners)}")
            members[owners[0] if owners else "base"].append(parameter)
        return [(group, members[group.name]) for group in groups]

    def _by_layer(self, module: nn.Module) -> Shares:
        assert self.layer_decay is not None
        every = dict(module.named_parameters())
        paths = layers(module)
        members: dict[str, list[nn.Parameter]] = {path: [] for path in paths}
        for name, parameter in every.items():
            members[max((path for path in paths if _matches(name, path)), key=len)].append(parameter)
        # Norms, `downsample` modules and standalone parameters are not counted as layers. They use the learning rate of
        # the layer before them, or of the first layer if no layer precedes them.
        counted = [
            path not in every and not path.endswith(".downsample") and any(p.ndim > 1 for p in members[path])
            for path in paths
        ]
        if sum(counted) < 2:
            raise UserError(f"parameter_groups: layer_decay found only one layer, {', '.join(paths)}: set groups")
        shares = []
        for number, path in enumerate(paths):
            after = min(sum(counted[number + 1 :]), sum(counted) - 1)
            shares.append((Group(path, [path], self.layer_decay**after), members[path]))
        return shares


def _matches(name: str, pattern: str) -> bool:
    """Return whether a pattern matches a parameter's name, or is the path of a module that contains the parameter."""
    return name == pattern or name.startswith(pattern + ".") or fnmatchcase(name, pattern)


def layers(module: nn.Module, path: str = "") -> list[str]:
    """Return the paths of all layers, from input to output. Containers are replaced by their children.

    Containers are `nn.Sequential`, `nn.ModuleList`, children named `net`, `backbone` or `model`, and modules with a
    list called `layers`, `layer` or `blocks`. Examples are the encoders of vision Transformers and BERT, and the
    stages of ConvNeXt and Swin in timm. An element of a list is a single layer even if it has `layers`. A container's
    own parameters precede its children's. A stage's `downsample` follows the first block, to which it belongs.
    """
    found, lists = list[str](), (nn.Sequential, nn.ModuleList)
    is_stage = isinstance(getattr(module, "blocks", None), lists)
    for name, child in module.named_children():
        inner = f"{path}.{name}" if path else name
        if next(child.parameters(), None) is None:
            continue
        names = ("blocks",) if isinstance(module, lists) else ("blocks", "layers", "layer")
        has_list = any(isinstance(part, lists) for part in (child, *(getattr(child, one, None) for one in names)))
        is_part = is_stage and name == "downsample"
        found += layers(child, inner) if name in ("net", "backbone", "model") or (has_list and not is_part) else [inner]
    if is_stage and found[:1] == [f"{path}.downsample"]:
        found[:2] = reversed(found[:2])
    own = [f"{path}.{name}" if path else name for name, _ in module.named_parameters(recurse=False)]
    return own + found


def check_options(groups: Iterable[Any], optimizer: Optimizer) -> None:
    """Raise UserError if a group has an invalid rate or weight decay, or an option that its optimizer would ignore."""
    for group in groups:
        for name in group if isinstance(group, dict) else ():
            if name not in (*optimizer.defaults, "params", "name", "lr_factor"):
                kind, hint = type(optimizer).__name__, did_you_mean(name, optimizer.defaults)
                raise UserError(f"parameter_groups: {kind} has no option {name!r}{hint}")
            if name in ("lr", "lr_factor", "weight_decay") and not 0 <= group[name] < math.inf:
                raise UserError(f"parameter_groups: {name} must be at least 0 and finite, got {group[name]}")
