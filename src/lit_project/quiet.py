"""Silences what Lightning says in every run and nobody can act on."""

import logging
import warnings

_ADVERTISEMENTS = (
    "💡",
    "GPU available",
    "TPU available",
    "HPU available",
    "Seed set to",
    "Restoring states",
    "Restored all states",
    "Loaded model weights",
    "Loading `train_dataloader`",
    "`Trainer.fit` stopped",
    "Using bfloat16",
)


def _wanted(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_ADVERTISEMENTS)


def quiet_lightning() -> None:
    """Leaves warnings and errors, and drops advertisements and notices that the command line gives itself."""
    for name in ("lightning.pytorch.utilities.rank_zero", "lightning.fabric.utilities.rank_zero",
                 "lightning.fabric.utilities.seed"):  # fmt: skip
        logger = logging.getLogger(name)
        if _wanted not in logger.filters:
            logger.addFilter(_wanted)
    for message in (
        r".*does not have many workers.*",  # in-memory loaders need none
        r".*number of training batches .* is smaller than the logging interval.*",
        r".*LeafSpec.* is deprecated.*",  # within Lightning
        r".*Checkpoint directory .* exists and is not empty.*",  # a resumed run
    ):
        warnings.filterwarnings("ignore", message)
