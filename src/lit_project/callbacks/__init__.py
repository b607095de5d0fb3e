"""What Lightning lacks: run records, checkpoints that survive, predictions as tables, figures, progress."""

from lit_project.callbacks.checkpoint import Checkpoint
from lit_project.callbacks.figures import Figures
from lit_project.callbacks.nan_guard import NaNGuard
from lit_project.callbacks.predictions import PredictionTable
from lit_project.callbacks.progress import ProgressLines, RichProgress
from lit_project.callbacks.record import RunRecord
from lit_project.callbacks.regression import PredictedAgainstTrue
from lit_project.callbacks.tensorboard import TensorBoardExtras
from lit_project.callbacks.translations import Translations
from lit_project.callbacks.unfreezing import Unfreezing
from lit_project.callbacks.weight_averages import EMA, SWA

__all__ = [
    "EMA",
    "SWA",
    "Checkpoint",
    "Figures",
    "NaNGuard",
    "PredictedAgainstTrue",
    "PredictionTable",
    "ProgressLines",
    "RichProgress",
    "RunRecord",
    "TensorBoardExtras",
    "Translations",
    "Unfreezing",
]
