"""Whether the numbers of validation that there are belong to this epoch."""

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class KnowsValidation(Callback):
    """Mixed into callbacks that show numbers of validation.

    Attributes:
        validated: whether the epoch was validated: one that `max_steps` cuts short is not, nor one between those of
            `check_val_every_n_epoch`, and the numbers there are belong to an earlier one.
    """

    validated = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Not yet."""
        self.validated = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """From now on."""
        self.validated = True
