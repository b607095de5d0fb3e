"""Nets of torchvision, and their weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lit_engine.checkpoints.weights import Match, load_fitting, match, renamed
from lit_engine.errors import CheckpointError, did_you_mean
from lit_engine.training.dropout import Dropout
from lit_project.models.resnet import BilinearPool

AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")  # further heads of GoogLeNet and Inception, for training only


def download(architecture: str, name: str) -> dict[str, Tensor]:
    """The state dict that torchvision publishes under a name such as `DEFAULT` or `IMAGENET1K_V1`.

    It comes from torch's cache or its public address. Torchvision loads it into its own model: names and formats of old
    files are its business.

    Raises:
        CheckpointError: no such weights, or they cannot be downloaded or read.
    """
    from torchvision.models import get_model, get_model_weights

    known = [*get_model_weights(architecture).__members__, "DEFAULT"]
    if name not in known:
        raise CheckpointError(
            f"torchvision has no weights {name!r} of {architecture}: there are {', '.join(known)}, and a file of that "
            f"name does not exist{did_you_mean(name, known)}"
        )
    weights = get_model_weights(architecture)[name]
    try:
        with torch.random.fork_rng(devices=[]):  # its initial values are not to change ours
            return get_model(architecture, weights=weights, progress=False).state_dict()
    except Exception as error:  # no network; a truncated file: pickle, zip and hash errors, of many kinds
        file = Path(torch.hub.get_dir()) / "checkpoints" / Path(weights.url).name
        reason = (str(error) or type(error).__name__).splitlines()[0]
        what = "is damaged: delete it" if file.exists() else f"is not there: put the file of {weights.url} there"
        raise CheckpointError(f"{file} {what} ({reason})") from error


def from_file(path: Path) -> dict[str, Tensor]:
    """The state dict in a file: one saved by `torch.save(net.state_dict(), path)`, or a checkpoint's `state_dict`.

    Tensors land on the CPU, whichever device saved them; only plain data are unpickled.

    Raises:
        CheckpointError: it cannot be read, or holds something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return dict(content.get("state_dict", content))
    except Exception as error:  # any error, depending on what the file holds
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"cannot read weights from {path}: {reason}") from error


class TorchvisionNet(nn.Module):
    """A model of `torchvision.models` whose last linear layer is replaced by a head for the task.

    The parts are `backbone` (torchvision's names inside: `backbone.conv1`, `backbone.layer4`…) and `head`. Grey images
    go into a first convolution whose weights are summed over the colours, which gives exactly what the image repeated
    in all colours would, at a third of its cost. The weights of GoogLeNet and Inception v3 expect values in [-1, 1]:
    give colour images by ImageNet's mean and standard deviation, which these nets convert (torchvision's option
    `transform_input`), and grey ones by 0.5 and 0.5; both are what `ImageFolder` does.

    Args:
        input_shape: `(C, H, W)` of one image; comes from the data.
        num_classes: number of outputs; comes from the data.
        architecture: name in `torchvision.models.list_models()`: `resnet18`, `resnet50`, `efficientnet_b0`,
            `convnext_tiny`, `vit_b_16`…
        weights: where to start: the name of torchvision's weights (`DEFAULT`, `IMAGENET1K_V1`…, downloaded to its
            cache), a file with a state dict of this net or of torchvision's, or null for random ones. They are not
            asked for if a checkpoint gives the weights.
        prefixes: for a file: how names there begin → how they begin here, such as `{"encoder.": "backbone."}`. Default:
            the names of torchvision, or those of this net.
        strict: for a file: anything missing, unexpected or of another shape is an error; otherwise it is reported.
            A head for other classes and the stem of small images are never expected to fit.
        grey: how a net for colours takes grey images: `sum` of the first convolution's weights, or `repeat` the image.
        small_images: for residual nets: 3×3 convolution of stride 1 and no max-pooling at the beginning, so that 28×28
            or 32×32 pixels are not shrunk to nothing.
        pooling: `average`, or `bilinear` (see `BilinearPool`); the latter for residual nets.
        bilinear_channels: to which bilinear pooling first reduces the features.
        dropout: probability of zeroing a feature before the head.
        options: further arguments of torchvision's model, such as `{stochastic_depth_prob: 0.1}`.

    Raises:
        ValueError: no such architecture, or an option that it cannot follow.
        CheckpointError: the weights cannot be had, or are of another architecture.
    """

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
            _replace(self.backbone, first, _like(old, channels * self.repeat))
        residual = all(hasattr(self.backbone, name) for name in ("conv1", "maxpool", "layer4", "avgpool"))
        if (small_images or pooling == "bilinear") and not residual:
            raise ValueError(f"small_images and bilinear pooling are for residual nets, not for {architecture}")
        if small_images:
            old = _first_convolution(self.backbone)[1]
            self.backbone.conv1 = _like(old, old.in_channels, kernel_size=3, stride=1, padding=1)
            self.backbone.maxpool = nn.Identity()
        if pooling == "bilinear":
            pool = BilinearPool(size, bilinear_channels)
            self.backbone.avgpool, size = pool, pool.size  # torchvision flattens what it gives
        elif bilinear_channels is not None:
            raise ValueError("bilinear_channels belongs to pooling: bilinear")
        self.head = nn.Sequential(Dropout(dropout), nn.Linear(size, num_classes, bias=old_head.bias is not None))
        self.pretrained: str | None = None  # what was loaded, for people to read
        if weights is not None:
            self.pretrained = f"weights {weights}:\n{self._load(architecture, weights, prefixes, strict)}"

    def _load(self, architecture: str, source: str, prefixes: Mapping[str, str | None] | None, strict: bool) -> Match:
        path = Path(source)
        official = not path.suffix and not path.exists()
        state = download(architecture, source) if official else from_file(path)
        state = {name: value for name, value in state.items() if not name.startswith(AUXILIARY)}
        if prefixes and not official:
            state = renamed(state, prefixes)
        elif official or not any(name.startswith("backbone.") for name in state):
            state = {self._own_name(name): value for name, value in state.items()}
        first = "backbone." + _first_convolution(self.backbone)[0] + ".weight"
        own = self.state_dict()
        if first in state and own[first].shape[1] == 1 < state[first].shape[1]:
            state[first] = state[first].sum(dim=1, keepdim=True)
        found = match(self, state)
        # new on purpose: a head of other classes, the stem of small images, a pooling with weights
        new = ("head.", first, "backbone.avgpool.")
        wrong = [n for n in (*found.missing, *found.unexpected, *found.other_shape) if not n.startswith(new)]
        if wrong and (strict or official):
            raise CheckpointError(f"the weights of {source} are not those of {architecture}:\n{found}")
        return load_fitting(self, state, source)

    def _own_name(self, name: str) -> str:
        """Torchvision's name of a weight → ours."""
        if name.startswith(self.original_head + "."):
            return "head.1" + name.removeprefix(self.original_head)
        return "backbone." + name

    def forward(self, images: Tensor) -> Tensor:
        """`(B, C, H, W)` → logits `(B, num_classes)`."""
        if self.repeat > 1:
            images = images.expand(-1, self.repeat, -1, -1)
        return self.head(self.backbone(images))


def _make(architecture: str, options: dict[str, Any], channels: int) -> nn.Module:
    from torchvision import models

    known = models.list_models(module=models)  # those that classify images
    if architecture not in known:
        hint = did_you_mean(architecture, known, f"; there are {', '.join(known)}")
        raise ValueError(f"torchvision has no classifier {architecture!r}{hint}")
    if architecture in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True, "transform_input": channels == 3, **options}
    return models.get_model(architecture, weights=None, **options)


def _replace(module: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, new)


def _remove_head(backbone: nn.Module, architecture: str) -> tuple[str, nn.Linear]:
    """Replaces the last linear layer by an identity; gives its name and itself."""
    linear = [(name, module) for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise ValueError(f"{architecture} has no linear layer at its end that could be replaced")
    name, head = linear[-1]
    _replace(backbone, name, nn.Identity())
    return name, head


def _first_convolution(backbone: nn.Module) -> tuple[str, nn.Conv2d]:
    return next((name, module) for name, module in backbone.named_modules() if isinstance(module, nn.Conv2d))


def _like(old: nn.Conv2d, channels: int, **changes: Any) -> nn.Conv2d:
    """A convolution of other inputs or another size, whose outputs begin with the variance of the old one's."""
    shape = {name: getattr(old, name) for name in ("kernel_size", "stride", "padding")}
    new = nn.Conv2d(channels, old.out_channels, **{**shape, **changes}, bias=old.bias is not None)
    inputs = new.weight[0].numel() / old.weight[0].numel()
    nn.init.normal_(new.weight, std=old.weight.std().item() * inputs**-0.5)
    if new.bias is not None:
        nn.init.zeros_(new.bias)
    return new
