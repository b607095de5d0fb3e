"""Continuing in the middle of an epoch, for data modules whose training loader knows its position."""

from typing import Any

from lightning.pytorch import LightningDataModule


class ResumablePosition(LightningDataModule):
    """Saves the position of the training loader and puts the loader of a resumed run there."""

    _training: Any = None  # the loader of the training batches
    _resume: dict[str, Any] | None = None  # the position that it has to begin at

    def resumable(self, loader: Any) -> Any:
        """A training loader, put at the position of the checkpoint that the run is resumed from."""
        if self._resume is not None:
            loader.load_state_dict(self._resume)
        self._training, self._resume = loader, None
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Position in the epoch of training.

        Lightning saves that of the loader, too, but does not restore it where a learning rate schedule has asked for
        the length of the run before.
        """
        return self._training.state_dict() if self._training is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Training continues there."""
        if state_dict and self.trainer is not None and self.trainer.training:
            self._resume = state_dict
