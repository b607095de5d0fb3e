"""CSV reader and base class for tabular data. The base class computes statistics of the training split."""

import csv
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_engine.data.module import Rows, Split, SplitData, random_split, size_of_split
from lit_engine.errors import DataError, did_you_mean

TAB = "\t"
LARGEST = torch.finfo(torch.float32).max  # networks compute in float32
# Tables are float64, because float32 rounds Unix times to 128 seconds. Apple's GPUs do not support float64.
WIDE = torch.float if torch.backends.mps.is_available() else torch.double


def number_in(cell: str) -> float:
    """Return the number in a cell, or NaN if it is not a finite float32 number."""
    try:
        value = float(cell.strip().replace("_", "x"))  # Python accepts 1_000 as a number
    except ValueError:
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


def parse_delimiter(name: str) -> str:
    r"""Return a tab character for `tab` or `\t`, or any other delimiter unchanged."""
    return TAB if name in ("tab", r"\t") else name


class CSVFile:
    """UTF-8 CSV file with a header line. Blank lines are skipped.

    Args:
        file: path of the file.
        delimiter: delimiter between columns, or `tab` for a tab character.

    Attributes:
        names: names of the columns.

    Raises:
        DataError: if the file is missing, empty or damaged. Line numbers in messages start at 1.
    """

    def __init__(self, file: str | Path, delimiter: str = ",") -> None:
        self.file = Path(file).expanduser()
        self.delimiter = parse_delimiter(delimiter)
        _, header = next(self._lines(), (1, []))
        self.names = [name.strip() for name in header]
        if not any(self.names):
            raise DataError(f"{self.file} is empty")

    def read(self, columns: Sequence[str], advice: str = "") -> Tensor:
        """Return the values of K columns as a float64 tensor `(N, K)`.

        Raises:
            DataError: if there are no rows, a column does not exist or is not unique, or a line has the wrong length.
                If a value is missing or not a number, the message ends with `advice`.
        """
        chosen = self.places(columns)
        if self._numbers is not None:
            return torch.from_numpy(self._numbers[:, chosen])
        rows = [[self._number(cells[k], line, self.names[k], advice) for k in chosen] for line, cells in self.rows()]
        return torch.tensor(rows, dtype=torch.double)

    @cached_property
    def _numbers(self) -> np.ndarray | None:
        """Return all values `(N, K)`, read by NumPy's fast reader, or None if a cell is not a plain, finite number."""
        line, _ = next(self._lines())
        with suppress(ValueError), warnings.catch_warnings(action="ignore"):  # NumPy warns about tables without rows
            table = np.loadtxt(
                self.file, delimiter=self.delimiter, comments=None, skiprows=line, ndmin=2, encoding="utf-8-sig"
            )
            if len(table) and table.shape[1] == len(self.names) and bool((np.abs(table) <= LARGEST).all()):
                return table
        return None

    def cells(self) -> list[dict[str, str]]:
        """Return the cells of each row by column.

        Raises:
            DataError: if there are no rows, a line has the wrong length, or column names are not unique.
        """
        self.places([name for name in self.names if name])
        return [dict(zip(self.names, cells, strict=True)) for _, cells in self.rows()]

    def inputs(self) -> dict[int, dict[str, str]]:
        """Map each row number, counted from 0, to the row's `line` number and cells, for `PredictionTable`."""
        names = ["input/line" if name == "line" else name for name in self.names]
        rows = ({"line": str(line), **dict(zip(names, cells, strict=True))} for line, cells in self.rows())
        return dict(enumerate(rows))

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line number and the cells of each row.

        Raises:
            DataError: if there are no rows, or a line has the wrong length.
        """
        lines = self._lines()
        next(lines)  # the header
        empty = True
        for line, cells in lines:
            if len(cells) != len(self.names):
                count = f"{len(cells)} values for the {len(self.names)} columns of line 1"
                raise DataError(f"{self.file}, line {line}: {count}{self._delimiter_hint()}")
            empty = False
            yield line, cells
        if empty:
            raise DataError(f"{self.file} has a header but no rows")

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the first line number and the cells of each record that is not blank."""
        if len(self.delimiter) != 1:
            raise DataError(f"delimiter must be one character, got {self.delimiter!r}")
        if not self.file.is_file():
            raise DataError(
                f"{self.file} is a folder, not a CSV file" if self.file.is_dir() else f"no such file: {self.file}"
            )
        with self.file.open(newline="", encoding="utf-8-sig") as handle:  # utf-8-sig skips a byte order mark
            reader = csv.reader(handle, delimiter=self.delimiter, skipinitialspace=True)
            begin = 1
            try:
                for cells in reader:
                    if any(cell.strip() for cell in cells) or len(cells) > 1:
                        yield begin, cells
                    begin = reader.line_num + 1
            except (csv.Error, UnicodeDecodeError) as error:
                raise DataError(f"{self.file}, line {begin} or later: cannot be read as UTF-8 CSV ({error})") from error

    def places(self, columns: Sequence[str]) -> list[int]:
        """Return the index of each column. Raise DataError if a column does not exist or is not unique."""
        missing = [name for name in columns if name not in self.names]
        if missing:
            there = f"; available: {', '.join(self.names)}"
            hint = did_you_mean(missing[0], self.names, there) if len(missing) == 1 else there
            raise DataError(
                f"{self.file} has no column {', '.join(map(repr, missing))}{self._delimiter_hint() or hint}"
            )
        twice = next((name for name in columns if self.names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{self.file} has {self.names.count(twice)} columns named {twice!r}")
        return [self.names.index(name) for name in columns]

    def _delimiter_hint(self) -> str:
        """Return a hint if the header is a single name that contains another delimiter."""
        other = next((mark for mark in f";{TAB}|," if len(self.names) == 1 and mark in self.names[0]), None)
        named = "tab" if other == TAB else repr(other)
        return f"; line 1 has no {self.delimiter!r}: is the delimiter {named}?" if other else ""

    def _number(self, text: str, line: int, column: str, advice: str) -> float:
        value = number_in(text)
        if math.isnan(value):
            empty = "the cell is empty: fill it or delete the row"
            what = f"{text.strip()!r} is not a finite number" if text.strip() else empty
            raise DataError(f"{self.file}, line {line}, column {column!r}: {what}{advice}")
        return value


class TableBatch(NamedTuple):
    """Rows of a table, and their indices in the split.

    `features` are float64 `(B, F)` and `targets` are float64 `(B, T)`, both in their original units. Unknown values are
    NaN. `indices` are int64 `(B,)`. Standardize the values before converting them to float32.
    """

    features: Tensor
    targets: Tensor
    indices: Tensor


STATISTICS = ("feature_mean", "feature_std", "target_mean", "target_std")


class TabularData(SplitData):
    """Tabular data whose test and validation rows are selected at random, but are the same in every run.

    Batches contain values in their original units. The task standardizes them with the attributes `feature_mean`,
    `feature_std`, `target_mean` and `target_std`, which are statistics of the training split.

    Args:
        features: feature values `(N, F)`, which are stored as float64.
        targets: target values `(N, T)`, which are stored as float64.
        feature_names: column names of `features`.
        target_names: column names of `targets`.
        test_size: number of test rows. A value below 1 is a fraction of all rows. `folds` replaces this size.
        val_size: number of validation rows. A value below 1 is a fraction of the rows outside the test split.
        feature_mean: mean of each feature. Default: the value from the training split or the evaluated checkpoint.
        feature_std: standard deviation of each feature. Default: from the same source, or 1 for constant features.
        target_mean: mean of each target. Default: the value from the training split or the evaluated checkpoint.
        target_std: standard deviation of each target. Default: from the same source, or 1 for constant targets.
        **kwargs: arguments of `SplitData`.

    Attributes:
        input_size: number of features F.
        output_size: number of targets T.

    Raises:
        DataError: if a batch size is below 1, a value is not finite, the statistics do not match the columns, or there
            are too few rows for the splits. If all statistics are given, the table may be empty.
    """

    batch = TableBatch
    default_batch_size = 32
    predicts_on = "table"
    delimiter = ","  # delimiter of files passed to `predict`
    no_rows = "its table has no rows"  # reason why no splits exist

    def __init__(
        self,
        features: Tensor,
        targets: Tensor,
        feature_names: Sequence[str],
        target_names: Sequence[str],
        test_size: float = 0.2,
        val_size: float = 0.15,
        feature_mean: list[float] | None = None,
        feature_std: list[float] | None = None,
        target_mean: list[float] | None = None,
        target_std: list[float] | None = None,
        eval_batch_size: int = 10_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(eval_batch_size=eval_batch_size, **kwargs)
        self.feature_names, self.target_names = list(feature_names), list(target_names)
        self.input_size, self.output_size = len(self.feature_names), len(self.target_names)
        table = _finite(features, self.feature_names), _finite(targets, self.target_names)
        if len(features) or None in (feature_mean, feature_std, target_mean, target_std):
            self.splits = self._split(*table, test_size, val_size)
        self.feature_mean, self.feature_std = self._standard(0, self.feature_names, feature_mean, feature_std)
        self.target_mean, self.target_std = self._standard(1, self.target_names, target_mean, target_std)

    def _split(self, features: Tensor, targets: Tensor, test_size: float, val_size: float) -> dict[str, Any]:
        rows = len(features)
        rest, test = self.hold_out(rows, min(rows, size_of_split("test_size", test_size, rows)))
        val_rows = size_of_split("val_size", val_size, len(rest))
        if min(len(test), val_rows) < 1 or len(rest) - val_rows < 2:
            raise DataError(
                f"{rows} rows are too few: test_size {test_size} and val_size {val_size} result in {len(test)} test, "
                f"{val_rows} validation and {len(rest) - val_rows} training rows. "
                "Training needs at least 2 rows, and each other split needs at least 1"
            )
        train, val = random_split(len(rest), val_rows)
        self.chosen = {"train": rest[train], "val": rest[val], "test": test}
        return {split: (features[indices], targets[indices]) for split, indices in self.chosen.items()}

    def _standard(
        self, part: int, names: list[str], mean: list[float] | None, std: list[float] | None
    ) -> tuple[list[float], list[float]]:
        """Return the mean and standard deviation of features (part 0) or targets (part 1), computing them if None."""
        if mean is None or std is None:
            values = self.splits["train"][part].double()
            own_std = values.std(dim=0, correction=0)
            # Rounding can make the standard deviation of equal values nonzero, and that of tiny values zero.
            own_std[(values == values[0]).all(dim=0) | (own_std == 0)] = 1
            mean, std = mean or values.mean(dim=0).tolist(), std or own_std.tolist()
        if not len(mean) == len(std) == len(names):
            raise DataError(f"got {len(mean)} means and {len(std)} standard deviations for columns {', '.join(names)}")
        return list(mean), list(std)

    def has_split(self, split: Split) -> bool:
        return split in self.splits

    def inputs(self, split: Split) -> dict[int, dict[str, str]]:
        """Return a dict for `PredictionTable`. The keys are row numbers in the whole table, counted from 0."""
        return {row: {} for row in self.chosen[split].tolist()}

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Raise DataError for a split that the constructor has not created."""
        raise DataError(f"{type(self).__name__} has no {split} split: {self.no_rows}")

    def predict_from(self, file: str | Path) -> dict[int, dict[str, str]]:
        """Make `predict` read the rows of a CSV file instead of the test split.

        The columns may be in any order, and other columns are ignored. Targets are read if all rows contain them. The
        file may use a different delimiter than the training data.

        Returns:
            A dict from row numbers to the cells of each row, for the prediction table.

        Raises:
            DataError: if the file is invalid (see `CSVFile`).
        """
        tables = (CSVFile(file, delimiter) for delimiter in (self.delimiter, *",;\t|"))
        table = next((one for one in tables if {*self.feature_names} <= {*one.names}), None)
        table = table or CSVFile(file, self.delimiter)
        features = table.read(self.feature_names).to(WIDE)
        try:
            targets = table.read(self.target_names).to(WIDE)
        except DataError:  # some targets are unknown
            targets = torch.full((len(features), self.output_size), math.nan, dtype=WIDE)
        self.new = Rows(TableBatch, features, targets)
        return table.inputs()


def _finite(values: Tensor, names: Sequence[str]) -> Tensor:
    """Return values `(N, K)` as float64. Raise DataError if a value is not finite."""
    if values.ndim != 2 or values.shape[1] != len(names):
        raise DataError(f"expected a table with {len(names)} columns, got shape {tuple(values.shape)}")
    values = values.to(WIDE)
    wrong = (~values.float().isfinite()).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(f"sample {row}, column {names[column]!r}: not a finite float32 number")
    return values
