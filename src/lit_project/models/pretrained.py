"""Models from torchvision, and functions that load pretrained weights."""

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lit_project.models.dropout import Dropout
from lit_project.models.resnet import BilinearPool

AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # GoogLeNet and Inception use these heads only in training.


def download(architecture: str, name: str) -> dict[str, Tensor]:
    """Return the state dict that torchvision publishes under a name such as `DEFAULT` or `IMAGENET1K_V1`.

    The file is read from torch's cache or downloaded. torchvision loads the file into its own model, because old files
    use different names and formats.

    Raises:
        ValueError: there are no such weights, or they cannot be downloaded or read.
    """
    from torchvision.models import get_model, get_model_weights

    known = list(get_model_weights(architecture).__members__)
    if name not in known:
        raise ValueError(
            f"{name!r} is neither a file nor one of torchvision's weights for {architecture}: "
            f"{', '.join(known)}{did_you_mean(name.upper(), known)}"
        )
    weights = get_model_weights(architecture)[name]
    try:
        with torch.random.fork_rng(devices=[]):  # torchvision's initialization must not affect later random numbers.
            return get_model(architecture, weights=weights, progress=False).state_dict()
    except Exception as error:  # A failed connection or a truncated file can raise errors of many types.
        file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
        reason = (str(error) or type(error).__name__).splitlines()[0]
        what = "is damaged: delete it" if file.exists() else f"does not exist: download it from {weights.url}"
        raise ValueError(f"{file} {what} ({reason})") from error


def from_file(path: Path) -> dict[str, Tensor]:
    """Return the state dict in a file written by `torch.save(net.state_dict(), path)`, or in a Lightning checkpoint.

    Tensors are loaded onto the CPU. Only tensors and plain data are unpickled. Raise ValueError for any other file.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return dict(content.get("state_dict", content))
    except Exception as error:  # The type of the error depends on the content of the file.
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"cannot read weights from {path}: {reason}") from error


def rename_prefixes(state: Mapping[str, Tensor], prefixes: Mapping[str, str | None]) -> dict[str, Tensor]:
    """Replace the prefixes of parameter names. The longest match is used. Parameters mapped to None are dropped.

    For example, if `encoder.` maps to `backbone.` and the empty prefix to `head.`, `encoder.x` becomes `backbone.x` and
    `y` becomes `head.y`.

    Raises:
        ValueError: a prefix matches no name, or two parameters would have the same name.
    """
    found: dict[str, Tensor] = {}
    unused = set(prefixes)
    for name, value in state.items():
        old = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)
        unused.discard(old or "")
        start = "" if old is None else prefixes[old]
        if start is None:
            continue
        new = start + name.removeprefix(old or "")
        if new in found:
            raise ValueError(f"the prefixes {dict(prefixes)} map two weights to the same name {new!r}")
        found[new] = value
    if unused:
        starts = ", ".join(sorted({name.partition(".")[0] for name in state}))
        raise ValueError(f"no weight name starts with {min(unused)!r}; all names start with one of {starts}")
    return found


def differences(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Compare a state dict with a network's own state dict. Return tensor names, grouped by kind of difference."""
    return {
        # Files from old versions lack `num_batches_tracked`, which torch does not require.
        "missing": [name for name in own if name not in state and not name.endswith("num_batches_tracked")],
        "unexpected": [name for name in state if name not in own],
        "of a different shape": [
            f"{name} {tuple(state[name].shape)} instead of {tuple(own[name].shape)}"
            for name in own
            if name in state and own[name].shape != state[name].shape
        ],
    }


def report(loaded: int, others: Mapping[str, list[str]]) -> list[str]:
    """Return one line with the number of loaded tensors, and one per kind of difference with up to five names."""
    lines = [f"loaded: {loaded}"]
    for kind, names in others.items():
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            lines.append(f"{kind}: {len(names)} ({', '.join(names[:5])}{more})")
    return lines


def did_you_mean(name: str, known: list[str], otherwise: str = "") -> str:
    """Return a hint ("did you mean X?") with the most similar known name, or `otherwise` if no name is similar."""
    near = get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else otherwise


class TorchvisionNet(nn.Module):
    """A model of `torchvision.models` whose last linear layer is replaced by a head for the task.

    It consists of `head` and `backbone`, whose modules have torchvision's names (`backbone.conv1`…). For greyscale
    images, the weights of the first convolution are summed over its input channels. The output is then the same as for
    an RGB image with three equal channels, but this layer needs only a third of the computation. GoogLeNet's and
    Inception v3's weights expect values in [-1, 1]. For greyscale images, set the mean and std to 0.5. For colour
    images, keep `ImageFolder`'s defaults, because torchvision's `transform_input` expects ImageNet's normalization.

    Args:
        input_shape: shape `(C, H, W)` of one image; set from the data.
        num_classes: number of outputs; set from the data.
        architecture: name in `torchvision.models.list_models()`, such as `resnet18`, `resnet50`, `efficientnet_b0`,
            `convnext_tiny` or `vit_b_16`.
        weights: name of torchvision weights to download, such as `DEFAULT` or `IMAGENET1K_V1`, or path to a file.
            The file must contain a state dict of this class or of torchvision's model. Default: random weights.
        prefixes: maps name prefixes in a weights file to prefixes in this model, such as `encoder.` to `backbone.`.
            By default, the file must use the parameter names of torchvision or this class.
        strict: raise an error if tensors in a weights file are missing, unexpected or have a different shape. If
            false, differences are only reported. A new head, or a new stem for small images, is always allowed.
        grey: how to process greyscale images, `sum` (sum the weights of the first convolution) or `repeat` (repeat
            the image in three channels).
        small_images: start a residual network with a 3×3 convolution of stride 1 and no max-pooling, so that images
            of 28×28 or 32×32 pixels are not downsampled too early.
        pooling: `average`, or `bilinear` for residual networks (see `BilinearPool`).
        bilinear_channels: number of channels to which features are reduced before bilinear pooling.
        dropout: probability of zeroing a feature before the head.
        options: further arguments of torchvision's model, such as `stochastic_depth_prob`.

    Raises:
        ValueError: the architecture does not exist, an option does not apply to it, or the weights cannot be loaded
            or belong to a different architecture.
    """

    checkpoint_arguments: ClassVar[dict[str, Any]] = {"weights": None}  # used if a checkpoint contains the weights

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        num_classes: int,
        architecture: str = "resnet18",
        weights: str | None = None,
        prefixes: dict[str, str | None] | None = None,
        strict: bool = True,
        grey: Literal["sum", "repeat"] = "sum",
        small_images: bool = False,
        pooling: Literal["average", "bilinear"] = "average",
        bilinear_channels: int | None = None,
        dropout: float = 0.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        channels = input_shape[0]
        self.backbone = _make(architecture, options or {}, channels)
        self.original_head, old_head = _remove_head(self.backbone, architecture)
        size = old_head.in_features
        self.repeat = 3 if channels == 1 and grey == "repeat" else 1
        first, old = _first_convolution(self.backbone)
        if old.in_channels != channels * self.repeat:
            self.backbone.set_submodule(first, _create_like(old, channels * self.repeat))
        residual = all(hasattr(self.backbone, name) for name in ("conv1", "maxpool", "layer4", "avgpool"))
        if (small_images or pooling == "bilinear") and not residual:
            raise ValueError(f"small_images and bilinear pooling need a residual network, not {architecture}")
        if small_images:
            old = _first_convolution(self.backbone)[1]
            self.backbone.conv1 = _create_like(old, old.in_channels, kernel_size=3, stride=1, padding=1)
            self.backbone.maxpool = nn.Identity()
        if pooling == "bilinear":
            pool = BilinearPool(size, bilinear_channels)
            self.backbone.avgpool, size = pool, pool.size  # torchvision flattens the pooled features.
        elif bilinear_channels is not None:
            raise ValueError("bilinear_channels requires pooling: bilinear")
        self.head = nn.Sequential(Dropout(dropout), nn.Linear(size, num_classes, bias=old_head.bias is not None))
        self.pretrained: str | None = None  # human-readable report of the loaded weights
        if weights is not None:
            self.pretrained = f"weights {weights}:\n{self._load(architecture, weights, prefixes, strict)}"

    def _load(self, architecture: str, source: str, prefixes: Mapping[str, str | None] | None, strict: bool) -> str:
        path = Path(source)
        official = not path.suffix and not path.exists()
        state = download(architecture, source) if official else from_file(path)
        state = {name: value for name, value in state.items() if not name.startswith(AUXILIARY)}
        if prefixes and not official:
            state = rename_prefixes(state, prefixes)
        elif official or not any(name.startswith("backbone.") for name in state):
            state = {self._own_name(name): value for name, value in state.items()}
        first = "backbone." + _first_convolution(self.backbone)[0] + ".weight"
        own = self.state_dict()  # The state dict includes version metadata, which some models use to convert old names.
        if first in state and own[first].shape[1] == 1 < state[first].shape[1]:
            state[first] = state[first].sum(dim=1, keepdim=True)
        others = differences(own, state)
        fitting = {name: state[name] for name in own if name in state and own[name].shape == state[name].shape}
        lines = report(len(fitting), others)
        # The head, the stem and the weights of the pooling layer may differ from the pretrained model.
        new = ("head.", first, "backbone.avgpool.")
        if (strict or official) and not all(n.startswith(new) for names in others.values() for n in names):
            raise ValueError(f"the weights of {source} do not match {architecture} ({'; '.join(lines)})")
        if fitting.keys().isdisjoint(name for name, _ in self.named_parameters()):
            raise ValueError(f"no weight of {source} matches the model ({'; '.join(lines)})")
        own.update(fitting)
        self.load_state_dict(own)
        return "\n".join(f"  {line}" for line in lines)

    def _own_name(self, name: str) -> str:
        """Convert a torchvision weight name to the corresponding name in this class."""
        if name.startswith(self.original_head + "."):
            return "head.1" + name.removeprefix(self.original_head)
        return "backbone." + name

    def forward(self, images: Tensor) -> Tensor:
        """Return logits `(B, num_classes)` for images `(B, C, H, W)`."""
        if self.repeat > 1:
            images = images.expand(-1, self.repeat, -1, -1)
        return self.head(self.backbone(images))


def _make(architecture: str, options: dict[str, Any], channels: int) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)  # only image classifiers
    if architecture not in known:
        hint = did_you_mean(architecture.lower(), known, f"; available: {', '.join(known)}")
        raise ValueError(f"torchvision has no classifier {architecture!r}{hint}")
    if architecture in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True, "transform_input": channels == 3, **options}
    return models.get_model(architecture, weights=None, **options)


def _remove_head(backbone: nn.Module, architecture: str) -> tuple[str, nn.Linear]:
    """Replace the last linear layer with an identity, and return the layer's name and the layer itself."""
    linear = [(name, module) for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"{architecture} has no final linear layer to replace")
    name, head = linear[-1]
    backbone.set_submodule(name, nn.Identity())
    return name, head


def _first_convolution(backbone: nn.Module) -> tuple[str, nn.Conv2d]:
    return next((name, module) for name, module in backbone.named_modules() if isinstance(module, nn.Conv2d))


def _create_like(old: nn.Conv2d, channels: int, **changes: Any) -> nn.Conv2d:
    """Create a convolution with a different kernel size or different input channels, but the same output variance."""
    shape = {name: getattr(old, name) for name in ("kernel_size", "stride", "padding")}
    new = nn.Conv2d(channels, old.out_channels, **{**shape, **changes}, bias=old.bias is not None)
    inputs = new.weight[0].numel() / old.weight[0].numel()
    nn.init.normal_(new.weight, std=old.weight.std().item() * inputs**-0.5)
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    return new
