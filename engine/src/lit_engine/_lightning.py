"""All access to undocumented parts of Lightning 2.6 and torch 2.15: one function each, with a test that names it."""

from lightning.pytorch import Trainer


def scales_loss(trainer: Trainer) -> bool:
    """Whether gradients are scaled, as with 16-mixed on a GPU; steps that are not finite are then left out."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None
