"""The exponential moving average of the weights, and what all averages of a training share."""

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from lit_project.errors import UserError


class LiveAverage(WeightAveraging):
    """Base of averages that are validated, saved and tested instead of the weights that train.

    Lightning's `WeightAveraging`, of which only one can be at work: two would swap their weights with those of the
    training in the wrong order. A checkpoint that is loaded to evaluate gives its average; Lightning's gives the
    weights of the training where this trainer has trained before.

    Raises:
        UserError: there is another average, or a precision whose weights are not float32.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes the average."""
        callbacks = trainer.callbacks  # type: ignore[attr-defined]
        others = [other for other in callbacks if isinstance(other, WeightAveraging) and other is not self]
        if stage == "fit" and others:
            names = " and ".join(sorted(type(one).__name__ for one in (self, *others)))
            raise UserError(f"only one average of the weights can be at work, and these are configured: {names}")
        if stage == "fit" and str(trainer.precision).endswith("-true") and trainer.precision != "32-true":
            raise UserError(f"an average of the weights needs them in float32, not with precision {trainer.precision}")
        super().setup(trainer, pl_module, stage)

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Training goes on with its own weights and with the average; all else takes what was loaded, the average."""
        if trainer.state.fn == "fit":
            super().on_load_checkpoint(trainer, pl_module, checkpoint)


class EMA(LiveAverage):
    """Moves an average towards the weights after each step: a ← d a + (1 - d) w (Polyak & Juditsky 1992).

    After n steps d is the smaller of `decay` and (1 + n) / (10 + n), as in TensorFlow's `ExponentialMovingAverage`:
    with a constant d of 0.999 the average of a run of a few hundred steps would mostly be its first weights.

    Args:
        decay: d after many steps: the average looks back over about 1 / (1 - d) of them.

    Raises:
        UserError: a decay that is not in [0, 1).
    """

    def __init__(self, decay: float = 0.999) -> None:
        if not 0 <= decay < 1:
            raise UserError(f"EMA: decay must be in [0, 1), got {decay}")

        def move(averages: Sequence[Tensor], weights: Sequence[Tensor], steps: Tensor) -> None:
            get_ema_multi_avg_fn(min(decay, (1 + int(steps)) / (10 + int(steps))))(averages, weights, steps)

        super().__init__(use_buffers=True, multi_avg_fn=move)
