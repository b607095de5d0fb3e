"""Callback that writes the results of `predict` to the run directory, as a CSV table or as saved tensors."""

import io
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from lit_engine.callbacks.drawing import log_table
from lit_engine.checkpoints.callback import fast_dev_run
from lit_engine.distributed.processes import all_gathered
from lit_engine.errors import UserError
from lit_engine.run.directory import csv_text, write_text

MAX_LOGGED = 10_000  # maximum number of rows in the W&B table


class PredictionTable(BasePredictionWriter):
    """Callback that writes the values returned by `predict_step` to a table, with one row per sample in index order.

    `columns_of` describes which return values become columns. All other values are saved unchanged in a `.pt` file of
    the same name, as a list of all batches. With several dataloaders, each has its own file (`test_0.csv`, …).

    Args:
        file: path of the table. Its folder is created.
        inputs: maps sample indices to columns that describe the input, in the order of the dataset. By default, the
            data module's method `inputs("test")` is called, if it exists and there is only one dataloader.

    Attributes:
        rows: the rows of all tables.
        files: the files that were written.
        missing: the elements of `inputs` that should have a prediction but have none, such as unreadable images.
    """

    def __init__(self, file: Path, inputs: Mapping[int, Mapping[str, Any]] | None = None) -> None:
        super().__init__("batch")
        self.file = file
        self.inputs = inputs
        self.rows: list[dict[str, Any]] = []
        self.files: list[Path] = []
        self.missing: list[Mapping[str, Any]] = []
        self._found: list[tuple[int, int, Batch]] = []  # index of the dataloader, position and content of each batch

    def write_on_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        prediction: Any,
        batch_indices: Sequence[int] | None,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int,
    ) -> None:
        """Store the predictions of a batch. Lightning passes `batch_indices` for ordinary DataLoaders."""
        if prediction is None:  # `predict_step` writes its own files
            return
        # Copy the tensors, because they may be views of larger ones, or in the shared memory of DataLoader workers.
        values = apply_to_collection(prediction, Tensor, lambda tensor: tensor.cpu().clone())
        indices = [int(index) for index in batch_indices or ()]
        place = batch_idx * trainer.world_size + trainer.global_rank
        self._found.append((dataloader_idx, place, Batch(values, indices)))

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        found = sorted(all_gathered(self._found, trainer), key=itemgetter(0, 1))
        self._found = []
        if fast_dev_run(trainer):  # do not replace complete tables
            return
        by_loader = {number: [batch for *_, batch in group] for number, group in groupby(found, key=itemgetter(0))}
        for number, batches in by_loader.items():
            file = self.file if list(by_loader) == [0] else self.file.with_stem(f"{self.file.stem}_{number}")
            if columns := _columns_of_batches(batches):
                self._write_rows(file, columns, trainer)
            elif trainer.is_global_zero:
                self._write_values(file.with_suffix(".pt"), [batch.values for batch in batches])

    def _write_rows(self, file: Path, batches: list[dict[str, list[Any]]], trainer: Trainer) -> None:
        rows = [dict(zip(batch, row, strict=True)) for batch in batches for row in zip(*batch.values(), strict=True)]
        rows = [{"index": number, **row} for number, row in enumerate(rows)]  # an index in the row takes precedence
        rows.sort(key=lambda row: row["index"])
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        is_test = file == self.file and getattr(data, "new", None) is None  # other loaders may read other splits
        if self.inputs is None and is_test and callable(getattr(data, "inputs", None)):
            self.inputs = data.inputs("test")
        if self.inputs is not None:
            known = {row["index"] for row in rows}
            samples = list(self.inputs.items())
            rows = [_add_inputs(row, *samples[row["index"]]) for row in rows]
            # if the batches are limited, samples after the last prediction may not have been read
            limit = trainer.limit_predict_batches
            limited = isinstance(limit, int) or limit != 1.0  # 1 means one batch, but 1.0 means all
            read = range(max(known, default=-1) + 1 if limited else len(samples))
            self.missing = [samples[number][1] for number in read if number not in known]
        if trainer.is_global_zero and rows:
            columns = list(dict.fromkeys(name for row in rows for name in row))  # batches may have different columns
            write_text(file, csv_text(rows, columns))
            self.files.append(file)
            table = [[row.get(name, "") for name in columns] for row in rows[:MAX_LOGGED]]
            log_table(trainer, f"predictions/{file.stem}", columns, table)
        self.rows += rows

    def _write_values(self, file: Path, batches: list[Any]) -> None:
        """Save the values of all batches as a list that `torch.load` can read with `weights_only=True`."""
        content = io.BytesIO()
        try:
            torch.save(batches, content)
            torch.load(io.BytesIO(content.getvalue()), weights_only=True)
        except Exception as error:
            kinds = ", ".join(dict.fromkeys(type(value).__name__ for value in batches))
            raise UserError(
                f"predict_step returned {kinds}, which cannot be saved: "
                "return tensors, numbers, strings, or a tuple, list or dict of these"
            ) from error
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.getvalue())
        self.files.append(file)
        print("predict_step returns no columns: its return values were saved unchanged, as a list of batches")


class Batch(NamedTuple):
    """The value that `predict_step` returned for a batch, and the indices of its samples, if known."""

    values: Any
    indices: list[int]


def columns_of(outputs: Any) -> dict[str, list[Any]] | None:
    """Return a batch of predictions as columns, or None if it cannot be converted.

    A tensor or array `(B,)` or a list of B values becomes the column `prediction`. A tensor or array `(B, K)` becomes
    the columns `prediction_0`, …, `prediction_K-1`. Tuples and lists of tensors are converted element by element to
    columns `prediction_0`, …, and dicts to columns named after their keys. All columns must have the same length B.
    """
    if isinstance(outputs, Mapping):
        named = {str(name): value for name, value in outputs.items()}
    elif isinstance(outputs, tuple) or (isinstance(outputs, list) and any(isinstance(one, Tensor) for one in outputs)):
        named = {f"prediction_{number}": value for number, value in enumerate(outputs)}
    else:
        named = {"prediction": outputs}
    columns: dict[str, list[Any]] = {}
    for name, value in named.items():
        if isinstance(value, Tensor) and value.layout is not torch.strided:  # a sparse tensor
            return None
        if isinstance(value, Tensor | np.ndarray) and value.ndim < 2:  # `squeeze` removes the axis of a single sample
            columns[name] = value.reshape(-1).tolist()
        elif isinstance(value, Tensor | np.ndarray) and value.ndim == 2:
            columns |= {f"{name}_{number}": column for number, column in enumerate(value.T.tolist())}
        elif isinstance(value, list) and not any(isinstance(one, Tensor | Mapping | tuple) for one in value):
            columns[name] = [one.tolist() if isinstance(one, np.ndarray | np.generic) else one for one in value]
        else:
            return None
    return columns if len({len(column) for column in columns.values()}) < 2 else None


def _records(batch: Batch) -> dict[Any, list[Any]] | None:
    """Convert a list with one dict per sample, as object detectors return it, to a dict of lists.

    Tensors with at most two axes, such as boxes, become lists. Return None if the batch has any other form.
    """
    samples = batch.values
    is_list = isinstance(samples, list) and len(samples) == len(batch.indices) > 0
    if not is_list or not all(isinstance(one, Mapping) and one.keys() == samples[0].keys() for one in samples):
        return None

    def plain(value: Any) -> Any:
        is_small = isinstance(value, Tensor) and value.layout is torch.strided and value.ndim <= 2
        return value.tolist() if is_small else value

    return {name: [plain(one[name]) for one in samples] for name in samples[0]}


def _columns_of_batches(batches: Sequence[Batch]) -> list[dict[str, list[Any]]] | None:
    """Return the predictions of a dataloader as columns, or None if a batch cannot be converted.

    A list with one dict per sample becomes one column per key. A list of tensors is interpreted as one tensor per
    sample if this is possible for every batch, and at least one batch cannot be interpreted as columns. If there is one
    row for each sample, the first column is the sample's `index`. Object detectors may return any number of rows.
    """
    per_sample = all(map(_can_be_per_sample, batches)) and any(
        batch.values[0].shape[:1] != (len(batch.values),) for batch in batches
    )
    found = []
    for batch in batches:
        columns = columns_of(torch.stack(batch.values) if per_sample else _records(batch) or batch.values)
        if columns is None:
            return None
        found.append(columns)
    pairs = list(zip(batches, found, strict=True))
    if all(columns and {*map(len, columns.values())} == {len(batch.indices)} for batch, columns in pairs):
        return [{"index": batch.indices, **columns} for batch, columns in pairs]
    return found


def _can_be_per_sample(batch: Batch) -> bool:
    """Return whether the values are a list with one tensor per sample, all of the same shape."""
    values, indices = batch
    is_list = isinstance(values, list) and all(isinstance(one, Tensor) for one in values)
    return is_list and len(values) == len(indices) and len({one.shape for one in values}) == 1


def _add_inputs(row: dict[str, Any], index: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the inputs inserted after the index. An input whose name is taken becomes `input/NAME`."""
    named = {f"input/{name}" if name in row else name: value for name, value in inputs.items()}
    return {"index": index, **named, **{name: value for name, value in row.items() if name != "index"}}
