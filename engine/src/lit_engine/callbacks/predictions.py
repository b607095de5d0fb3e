"""Predictions as a CSV table in the run directory."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from lit_engine.distributed.processes import all_gathered
from lit_engine.run.directory import write_text


class PredictionTable(Callback):
    """Writes one row per sample, ordered by index, from tasks whose `predict_step` gives columns with an `index`.

    Args:
        file: where to; its folder is made.
        inputs: of new samples, in their order: index in the table → columns that say what was predicted on; default:
            what `inputs("test")` of the data module gives, if it has it.

    Attributes:
        rows: those of the table.
        missing: those of `inputs` that got no prediction although they were read.
    """

    def __init__(self, file: Path, inputs: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        self.file = file
        self.inputs = inputs
        self.rows: list[dict[str, Any]] = []
        self.missing: list[Mapping[str, Any]] = []
        self._rows: list[dict[str, Any]] = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, *args: Any, **kwargs: Any
    ) -> None:
        names = list(outputs)
        self._rows += [dict(zip(names, row, strict=True)) for row in zip(*outputs.values(), strict=True)]

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        rows = sorted(all_gathered(self._rows, trainer), key=lambda row: row["index"])
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if self.inputs is None and hasattr(data, "inputs") and getattr(data, "new", None) is None:
            self.inputs = data.inputs("test")
        if self.inputs is not None:
            found = {row["index"] for row in rows}
            samples = list(self.inputs.items())
            rows = [_with_inputs(row, *samples[row["index"]]) for row in rows]
            # with a limit, samples after the last predicted one may not have been read
            limit = trainer.limit_predict_batches
            limited = isinstance(limit, int) or limit != 1.0  # 1 is a batch, 1.0 are all
            read = range(max(found, default=-1) + 1 if limited else len(samples))
            self.missing = [samples[number][1] for number in read if number not in found]
        if trainer.is_global_zero and rows:
            text = io.StringIO()
            writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_text(self.file, text.getvalue())
        self._rows, self.rows = [], rows


def _with_inputs(row: dict[str, Any], index: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A row with its inputs after its index; a column whose name is taken becomes `input/NAME`."""
    named = {f"input/{name}" if name in row else name: value for name, value in inputs.items()}
    return {"index": index, **named, **{name: value for name, value in row.items() if name != "index"}}
