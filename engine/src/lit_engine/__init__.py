"""Library for PyTorch Lightning projects, with base classes, run directories, a command line and tools.

Import names with `from lit_engine import ImageData, Task`. Names are imported on first use, because most of them need
torch and Lightning.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lit_engine.callbacks.averaging import EMA, SWA
    from lit_engine.callbacks.figures import Figures
    from lit_engine.callbacks.freezing import Unfreezing
    from lit_engine.callbacks.nan_guard import NaNGuard
    from lit_engine.checkpoints.callback import Checkpoint
    from lit_engine.checkpoints.choose import choose_checkpoint
    from lit_engine.cli.main import main, run_program
    from lit_engine.data.images import ImageData
    from lit_engine.data.module import Rows, Split, SplitData
    from lit_engine.data.tables import TabularData
    from lit_engine.errors import CheckpointError, DataError, RunError, UserError
    from lit_engine.load import load_data, load_for_prediction, load_model
    from lit_engine.loggers.tensorboard import TensorBoardExtras
    from lit_engine.loggers.wandb import WandbLogger
    from lit_engine.project import Project, current, use
    from lit_engine.run.directory import RunDir
    from lit_engine.training.exact import Totals
    from lit_engine.training.task import Task

__version__ = "0.2.0"
__all__ = [
    "EMA", "SWA", "Checkpoint", "CheckpointError", "DataError", "Figures", "ImageData", "NaNGuard", "Project", "Rows",
    "RunDir", "RunError", "Split", "SplitData", "TabularData", "Task", "TensorBoardExtras", "Totals", "Unfreezing",
    "UserError", "WandbLogger", "choose_checkpoint", "current", "load_data", "load_for_prediction", "load_model",
    "main", "run_program", "use",
]  # fmt: skip
_MODULES = {
    "callbacks.averaging": ("EMA", "SWA"),
    "callbacks.figures": ("Figures",),
    "callbacks.freezing": ("Unfreezing",),
    "callbacks.nan_guard": ("NaNGuard",),
    "checkpoints.callback": ("Checkpoint",),
    "checkpoints.choose": ("choose_checkpoint",),
    "cli.main": ("main", "run_program"),
    "data.images": ("ImageData",),
    "data.module": ("Rows", "Split", "SplitData"),
    "data.tables": ("TabularData",),
    "errors": ("CheckpointError", "DataError", "RunError", "UserError"),
    "load": ("load_data", "load_for_prediction", "load_model"),
    "loggers.tensorboard": ("TensorBoardExtras",),
    "loggers.wandb": ("WandbLogger",),
    "project": ("Project", "current", "use"),
    "run.directory": ("RunDir",),
    "training.exact": ("Totals",),
    "training.task": ("Task",),
}


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> Any:
        for module, names in _MODULES.items():
            if name in names:
                return getattr(import_module(f"lit_engine.{module}"), name)
        raise AttributeError(f"module 'lit_engine' has no attribute {name!r}")
