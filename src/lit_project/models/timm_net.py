"""Models from timm (https://github.com/huggingface/pytorch-image-models)."""

from difflib import get_close_matches
from typing import Any, ClassVar

from torch import Tensor, nn


class TimmNet(nn.Module):
    """A timm model that maps images `(B, C, H, W)` to logits `(B, K)`, created by `timm.create_model`.

    The last linear layer becomes `head`. All other layers form `backbone` and keep timm's names (`backbone.stages.3`…).
    Any other type of classifier, such as a pair of heads, stays in `backbone`, and `head` is then an identity.

    Args:
        model_name: a name in `timm.list_models()`, such as `resnet10t`, `convnext_atto` or `vit_tiny_patch16_224`.
        input_shape: shape `(C, H, W)` of one image; set from the data.
        num_classes: number of classes K; set from the data.
        pretrained: download timm's weights as initial weights, unless the weights come from a checkpoint.
        options: other arguments of `create_model`, such as `drop_rate`. If a model needs `img_size`, it is set from the
            data. Set it here if transforms crop the images. With `pretrained`, set the data's `mean` and `std` to the
            values in `timm.get_pretrained_cfg(model_name)`, which are 0.5 for many ViTs.

    Raises:
        ImportError: timm is not installed.
        ValueError: timm has no such model.
    """

    checkpoint_arguments: ClassVar[dict[str, Any]] = {"pretrained": False}  # used if a checkpoint contains the weights

    def __init__(
        self,
        model_name: str,
        input_shape: tuple[int, int, int],
        num_classes: int,
        pretrained: bool = False,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        try:
            import timm
        except ImportError as error:
            raise ImportError("timm is not installed: pip install timm") from error
        if not timm.is_model(model_name):
            near = ", ".join(get_close_matches(model_name, timm.list_models(), 5))
            raise ValueError(f"timm has no model {model_name!r}; similar: {near or 'none, see timm.list_models()'}")
        given: dict[str, Any] = {"in_chans": input_shape[0], "num_classes": num_classes}
        if getattr(timm.models.get_pretrained_cfg(model_name), "fixed_input_size", False):
            given["img_size"] = input_shape[1:]
        net: Any = timm.create_model(model_name, pretrained, **{**given, **(options or {})})
        self.backbone: nn.Module = net
        self.head: nn.Module = nn.Identity()
        classifier = net.get_classifier()
        if isinstance(classifier, nn.Linear) and not hasattr(net, "aux_head"):  # VOLO adds the output of a second head
            path = next(name for name, module in self.backbone.named_modules() if module is classifier)
            self.backbone.set_submodule(path, nn.Identity())
            self.head = classifier

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))
