"""metrics.csv of a run: a row a logged step, continued on resume."""

import csv
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities import rank_zero_only

from .errors import RunError

SAVE_SECONDS = 10.0


class MetricsCSV(Logger):
    """Writes `metrics.csv`; what is logged at one step (training, then validation) becomes one row.

    Lightning saves at the end of epochs; in longer ones what is logged is in the file within about ten seconds.

    Lightning's CSVLogger deletes the file of an earlier run in the same folder, and so the history of a resumed run.

    Args:
        folder: of the run.
        resume_step: rows of later steps are dropped, for the resumed run repeats them.
    """

    def __init__(self, folder: str | Path, resume_step: int | None = None) -> None:
        super().__init__()
        self.file = Path(folder) / "metrics.csv"
        self._columns: list[str] = []
        self._rows: list[dict[str, Any]] = []
        self._written = 0  # rows that are in the file and final
        self._end = 0  # where they end in the file, in bytes
        self._saved = monotonic()
        if resume_step is not None and self.file.exists():
            # a crash or a full disk may have cut the last line short
            text = self.file.read_text(errors="replace")
            lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
            reader = csv.DictReader(lines)
            try:
                self._rows = [row for row in reader if int(row["step"]) <= resume_step]
            except (csv.Error, KeyError, TypeError, ValueError) as error:
                where = f"{self.file}, line {reader.line_num}"
                raise RunError(f"{where} is broken: it has no step; mend it or remove the file") from error
            self._columns = list(reader.fieldnames or [])

    @property
    def name(self) -> str:
        """Empty: the run directory is the folder itself."""
        return ""

    @property
    def version(self) -> str:
        """Empty, as the name."""
        return ""

    @property
    def save_dir(self) -> str:
        """The run directory."""
        return str(self.file.parent)

    @property
    def log_dir(self) -> str:
        """The run directory."""
        return self.save_dir

    @rank_zero_only
    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They are in config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Adds the metrics to the row of `step`."""
        step = step or 0
        if not self._rows or int(self._rows[-1]["step"]) != step:
            self._rows.append({"step": step})
        # float32 has seven digits
        self._rows[-1].update({k: f"{v:.7g}" if isinstance(v, float) else v for k, v in metrics.items()})
        new = [name for name in metrics if name not in self._columns]
        if new or not self._columns:
            leading = [c for c in ("epoch", "step") if c not in self._columns]
            self._columns += leading + [name for name in new if name not in ("epoch", "step")]
            self._written = self._end = 0  # another header: the file is written anew
        if monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Writes what is new; the last row may still grow and is overwritten then."""
        self._saved = monotonic()
        if not self._rows:
            return
        mode = "r+" if self._end else "w"
        with self.file.open(mode, newline="") as file:
            writer = csv.DictWriter(file, self._columns, restval="", lineterminator="\n")
            if self._end:
                file.seek(self._end)
                file.truncate()
            else:
                writer.writeheader()
            writer.writerows(self._rows[self._written : -1])
            file.flush()
            self._end = file.tell()
            self._written = len(self._rows) - 1
            writer.writerow(self._rows[-1])

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Writes the rest."""
        self.save()
