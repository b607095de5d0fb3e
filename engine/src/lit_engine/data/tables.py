"""Data of tables: rows of numbers from a file, standardised by the training split."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lit_engine.data.module import Rows, Split, SplitData, random_split
from lit_engine.errors import DataError, did_you_mean

TAB = "\t"
LARGEST = torch.finfo(torch.float32).max  # nets compute in float32
# Tables are float64: in float32, the Unix times of a quarter of an hour are only nine numbers. Apple's GPUs lack it.
WIDE = torch.float if torch.backends.mps.is_available() else torch.double


def number_in(cell: str) -> float:
    """The number in a cell; NaN for anything but a finite one of float32."""
    try:
        value = float(cell.replace("_", "x"))  # Python reads 1_000 as a number
    except ValueError:
        return math.nan
    return value if abs(value) <= LARGEST else math.nan


class CSVFile:
    """A CSV file in UTF-8 whose first line names the columns; blank lines are left out.

    Args:
        file: where it is.
        delimiter: between the columns of a line; `tab` for a tab.

    Attributes:
        names: of the columns.

    Raises:
        DataError: it is missing, empty or damaged. Lines are counted as an editor does: the names are line 1.
    """

    def __init__(self, file: str | Path, delimiter: str = ",") -> None:
        self.file = Path(file).expanduser()
        self.delimiter = TAB if delimiter in ("tab", r"\t") else delimiter
        _, _, header = next(self._lines(), (0, 1, []))
        self.names = [name.strip() for name in header]
        if not any(self.names):
            raise DataError(f"{self.file} is empty")

    def read(self, columns: Sequence[str], advice: str = "") -> Tensor:
        """The numbers of some columns, float64 `(N, K)`.

        Raises:
            DataError: no rows, no such column or several of that name, a line of another length than the first, a
                missing value or one that is no number, which ends with the `advice`.
        """
        chosen = self._places(columns)
        rows = [
            [self._number(cells[k], line, self.names[k], advice) for k in chosen] for _, line, cells in self._rows()
        ]
        return torch.tensor(rows, dtype=torch.double)

    def cells(self) -> dict[int, dict[str, str]]:
        """The cells of each row by column. Rows are numbered from 0 below the names, blank lines counted.

        Raises:
            DataError: no rows, a line of another length than the first, or two columns of one name.
        """
        self._places([name for name in self.names if name])
        return {number: dict(zip(self.names, cells, strict=True)) for number, _, cells in self._rows()}

    def inputs(self) -> dict[int, dict[str, str]]:
        """Return the `line` in the file and the cells of each row, by row number: the inputs of `PredictionTable`."""
        rows = self._rows()
        return {
            number: {"line": str(line), **dict(zip(self.names, cells, strict=True))} for number, line, cells in rows
        }

    def _rows(self) -> Iterator[tuple[int, int, list[str]]]:
        """The number of each row, the line on which it begins, and its cells."""
        lines = self._lines()
        first, _, _ = next(lines)
        number = None
        for place, line, cells in lines:
            if len(cells) != len(self.names):
                count = f"{len(cells)} values for the {len(self.names)} columns of line 1"
                raise DataError(f"{self.file}, line {line}: {count}")
            yield (number := place - first - 1), line, cells
        if number is None:
            raise DataError(f"{self.file} has a line of names and no rows")

    def _lines(self) -> Iterator[tuple[int, int, list[str]]]:
        """The lines that are not blank: how many stand before each, and the number of the line on which it begins."""
        if len(self.delimiter) != 1:
            raise DataError(f"delimiter must be one character, got {self.delimiter!r}")
        if not self.file.is_file():
            raise DataError(f"no such file: {self.file}")
        with self.file.open(newline="", encoding="utf-8-sig") as handle:  # -sig: some programs begin a file with a mark
            reader = csv.reader(handle, delimiter=self.delimiter, skipinitialspace=True)
            begin = 1
            try:
                for place, cells in enumerate(reader):
                    if any(cell.strip() for cell in cells) or len(cells) > 1:
                        yield place, begin, cells
                    begin = reader.line_num + 1
            except (csv.Error, UnicodeDecodeError) as error:
                raise DataError(f"{self.file}, line {begin} or after: cannot be read as UTF-8 CSV ({error})") from error

    def _places(self, columns: Sequence[str]) -> list[int]:
        missing = [name for name in columns if name not in self.names]
        if missing:
            there = f"; there are: {', '.join(self.names)}"
            hint = did_you_mean(missing[0], self.names, there) if len(missing) == 1 else there
            other = next((m for m in f";{TAB}|," if len(self.names) == 1 and m in self.names[0]), None)
            if other:
                hint = f"; line 1 has no {self.delimiter!r}: is the delimiter {'tab' if other == TAB else repr(other)}?"
            raise DataError(f"{self.file} has no column {', '.join(map(repr, missing))}{hint}")
        twice = next((name for name in columns if self.names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"{self.file} has {self.names.count(twice)} columns named {twice!r}")
        return [self.names.index(name) for name in columns]

    def _number(self, text: str, line: int, column: str, advice: str) -> float:
        value = number_in(text)
        if math.isnan(value):
            what = f"{text.strip()!r} is not a finite number" if text.strip() else "an empty cell"
            raise DataError(f"{self.file}, line {line}, column {column!r}: {what}{advice}")
        return value


class TableBatch(NamedTuple):
    """Rows of a table, and which samples of the split they are.

    `features` is float64 `(B, F)` and `targets` float64 `(B, T)`, both in their own units (NaN: unknown); `indices` is
    int64 `(B,)`. Standardise before converting to float32.
    """

    features: Tensor
    targets: Tensor
    indices: Tensor


STATISTICS = ("feature_mean", "feature_std", "target_mean", "target_std")


class TabularData(SplitData):
    """A table: a fixed random part is test, a fixed random part of the rest is validation.

    Batches hold the numbers in their own units. The task standardises, by the statistics of the training split that
    it takes from the attributes below.

    Args:
        features: `(N, F)`, kept as float64.
        targets: `(N, T)`, the same.
        feature_names: of the columns of `features`.
        target_names: of the columns of `targets`.
        test_size: rows of the test split; a share of all rows if below 1. Not used with `folds`.
        val_size: rows of validation; a share of the rows that are not test if below 1.
        feature_mean: of each feature; default: of the training split, or what the evaluated checkpoint holds.
        feature_std: the same; 1 if the feature is constant.
        target_mean: the same of each target.
        target_std: the same.
        **kwargs: of `SplitData`.

    Attributes:
        input_size: number of features F.
        output_size: number of targets T.

    Raises:
        DataError: a batch size below 1, a number that is not finite, too few rows for the splits (none are enough
            to predict on others, with all statistics given), or statistics that do not fit the columns.
    """

    batch = TableBatch
    default_batch_size = 32
    predicts_on = "table"
    delimiter = ","  # of files to predict on
    no_rows = "its table has no rows"  # why there are no splits

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
        rest, test = self.hold_out(rows, min(rows, _rows("test_size", test_size, rows)))
        val_rows = _rows("val_size", val_size, len(rest))
        if min(len(test), val_rows) < 1 or len(rest) - val_rows < 2:
            raise DataError(
                f"{rows} rows are too few: test_size {test_size} and val_size {val_size} make {len(test)} rows of "
                f"test, {val_rows} of validation and {len(rest) - val_rows} of training; each split needs 1, training 2"
            )
        train, val = random_split(len(rest), val_rows)
        self.chosen = {"train": rest[train], "val": rest[val], "test": test}
        return {split: (features[indices], targets[indices]) for split, indices in self.chosen.items()}

    def _standard(
        self, part: int, names: list[str], mean: list[float] | None, std: list[float] | None
    ) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of the features (part 0) or targets (1): as given, else those of training."""
        if mean is None or std is None:
            values = self.splits["train"][part].double()
            own_std = values.std(dim=0, correction=0)
            # compared, for the rounded mean of equal numbers may leave a deviation that is tiny and not zero
            own_std[(values == values[0]).all(dim=0)] = 1
            mean, std = mean or values.mean(dim=0).tolist(), std or own_std.tolist()
        if not len(mean) == len(std) == len(names):
            raise DataError(f"{len(mean)} means and {len(std)} standard deviations for the columns {', '.join(names)}")
        return list(mean), list(std)

    def has_split(self, split: Split) -> bool:
        """Whether there are rows."""
        return split in self.splits

    def inputs(self, split: Split) -> dict[int, dict[str, str]]:
        """Return the inputs of `PredictionTable`: the row of each sample in the whole table, from 0."""
        return {row: {} for row in self.chosen[split].tolist()}

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Raises DataError: features `(N, F)` and targets `(N, T)` of all splits are made by the constructor."""
        raise DataError(f"{type(self).__name__} has no {split} split: {self.no_rows}")

    def predict_from(self, file: str | Path) -> dict[int, dict[str, str]]:
        """`predict` then reads the rows of a CSV file instead of the test split.

        Its columns may be in any order, and it may have others. Targets are read if each row has a number for each.

        Returns:
            The columns of each row by its number in the file, for the table of predictions.

        Raises:
            DataError: see `CSVFile`.
        """
        table = CSVFile(file, self.delimiter)
        features = table.read(self.feature_names).to(WIDE)
        try:
            targets = table.read(self.target_names).to(WIDE)
        except DataError:  # some are not known
            targets = torch.full((len(features), self.output_size), math.nan, dtype=WIDE)
        self.new = Rows(TableBatch, features, targets)
        self.predict_source = f"table_{table.file.stem}"
        return table.inputs()


def _finite(values: Tensor, names: Sequence[str]) -> Tensor:
    """Values `(N, K)` as float64."""
    if values.ndim != 2 or values.shape[1] != len(names):
        raise DataError(f"a table of {len(names)} columns was expected, got shape {tuple(values.shape)}")
    values = values.to(WIDE)
    wrong = (~values.float().isfinite()).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(f"sample {row}, column {names[column]!r}: not a finite number of float32")
    return values


def _rows(name: str, size: float, rows: int) -> int:
    """Number of rows of a split that is given as a number or as a share."""
    if not 0 < size < math.inf or (size >= 1 and size != int(size)):
        raise DataError(f"{name} must be a share between 0 and 1 or a number of rows, got {size}")
    return int(size) if size >= 1 else round(rows * size)
