"""Logger that writes metrics.csv."""

import contextlib
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from lit_engine.distributed.processes import print_once
from lit_engine.run.directory import RunDir, csv_text, write_text
from lit_engine.run.metric_names import COUNTERS, recorded_name

SAVE_SECONDS = 10.0


class _NoExperiment:
    """Stand-in experiment that ignores all calls, such as `add_image`, and prints a note about the first one."""

    def __init__(self, folder: str | Path) -> None:
        self.log_dir = self.dir = str(folder)  # attributes of TensorBoard's writer and W&B's run
        self.has_noted = False

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not self.has_noted:
            print_once(f"note: `logger.experiment.{name}` needs a logger: add `-c configs/overlays/tensorboard.yaml`")
        self.has_noted = True
        return lambda *args, **kwargs: None


class MetricsCSV(Logger):
    """Logger that writes `metrics.csv`. Training and validation metrics that are logged at the same step share a row.

    The file is saved at the end of each epoch, and about every ten seconds during a long epoch.

    Lightning's CSVLogger would delete an existing file in the same folder, and with it the history of a resumed run.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.file = Path(folder) / "metrics.csv"
        self._rows: list[dict[str, Any]] = []
        self._saved = monotonic()
        self._changed = False  # whether there are new values to write. A finished run has none, even if it is resumed.
        self.stage: Callable[[], str] = lambda: "train"  # returns the current stage
        self.step: Callable[[], int] = lambda: 0  # returns the step to use for values logged without a step
        self.experiment: Any = _NoExperiment(folder)

    def rows_to_restore(self) -> dict[str, Any]:
        """Save the file. Return the number of rows, and the content of the last row, which may still receive values."""
        self.save()
        return {"rows": len(self._rows), "last": self._rows[-1:]}

    def restore_rows(self, state: Mapping[str, Any] | None) -> None:
        """Read the file of a resumed run without the rows after the checkpoint, because training repeats them.

        Raises:
            RunError: the file is broken.
        """
        self._rows = [{**row, "step": int(row["step"])} for row in RunDir(self.file.parent).history()[1]]
        if state is None:  # the checkpoint is from a run without metrics.csv
            return
        self._rows = [*self._rows[: state["rows"] - 1], *state["last"]] if state["rows"] else []

    @property
    def name(self) -> str:
        return ""  # the file is not in a subfolder of the run directory

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return str(self.file.parent)

    @property
    def log_dir(self) -> str:
        return self.save_dir

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because config.yaml contains the hyperparameters."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._changed = True
        step, stage = self.step() if step is None else int(step), self.stage()
        metrics = {n if n in COUNTERS else recorded_name(n, stage): value for n, value in metrics.items()}
        metrics = {n: value.item() if isinstance(value, Tensor | np.generic) else value for n, value in metrics.items()}
        if not self._rows or int(self._rows[-1]["step"]) != step:
            self._rows.append({"step": step})
        self._rows[-1].update({k: format_significant(v, 7) if isinstance(v, float) else v for k, v in metrics.items()})
        if monotonic() - self._saved >= SAVE_SECONDS:
            with contextlib.suppress(OSError):  # a full disk is reported when the next checkpoint is saved
                self.save()

    @rank_zero_only
    def save(self) -> None:
        """Replace the file. For 10,000 rows, this takes 20 ms."""
        self._saved = monotonic()
        if not self._changed or not self._rows:
            return
        columns = list(dict.fromkeys([*COUNTERS, *(name for row in self._rows for name in row)]))
        write_text(self.file, csv_text(self._rows, columns))
        self._changed = False  # set last, because writing fails if the disk is full

    @rank_zero_only
    def finalize(self, status: str) -> None:
        self.save()


def format_significant(value: float, digits: int) -> str:
    """Round a value to `digits` significant digits. Whole numbers, such as counts, keep all digits."""
    return str(int(value)) if value.is_integer() and abs(value) < 2**53 else f"{value:.{digits}g}"
