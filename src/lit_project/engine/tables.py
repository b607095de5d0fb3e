"""Data of tables: rows of numbers from a file, standardised by the training split."""

import csv
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .datamodule import Rows, Split, SplitData, random_split
from .distributed import print_once
from .errors import DataError, did_you_mean

TAB = "\t"
MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")  # in lower case
LARGEST = torch.finfo(torch.float32).max


class CSVFile:
    """A CSV file whose first line names the columns. Blank lines are left out.

    Args:
        file: where it is; UTF-8.
        delimiter: between the columns of a line; `tab` for a tab.

    Attributes:
        names: of the columns.

    Raises:
        DataError: no such file, an empty one, or one that is not UTF-8. Lines are counted as an editor does: the names
            are line 1.
    """

    def __init__(self, file: str | Path, delimiter: str = ",") -> None:
        self.file = Path(file).expanduser()
        self.delimiter = TAB if delimiter in ("tab", r"\t") else delimiter
        _, _, header = next(self._lines(), (0, 1, []))
        self.names = [name.strip() for name in header]
        if not any(self.names):
            raise DataError(f"{self.file} is empty")

    def read(self, columns: Sequence[str], may_miss: Collection[str] = ()) -> Tensor:
        """The numbers of some columns, float64 `(N, K)`; in those that `may_miss` some, what is no number is NaN.

        Raises:
            DataError: no rows, no such column or several of that name, a line of another length than the first, a
                missing value or one that is no number.
        """
        for name in columns:
            self._check(name)
        chosen = [(self.names.index(name), name in may_miss) for name in columns]
        rows, blank = [], 0
        lines = self._lines()
        first, _, _ = next(lines)
        for place, line, cells in lines:
            if len(cells) != len(self.names):
                raise DataError(
                    f"{self.file}, line {line}: {len(cells)} values for the {len(self.names)} columns of line 1"
                )
            rows.append([self._value(cells[k], line, self.names[k], optional) for k, optional in chosen])
            blank = place - first - len(rows)
        if not rows:
            raise DataError(f"{self.file} has a line of names and no rows")
        if blank:
            print_once(f"note: {self.file}: blank lines are left out: {blank}")
        return torch.tensor(rows, dtype=torch.double)

    def cells(self) -> dict[int, dict[str, str]]:
        """The cells of each row by column. Rows are numbered from 0 below the names, blank lines counted."""
        lines = self._lines()
        first, _, _ = next(lines)
        return {place - first - 1: dict(zip(self.names, cells, strict=False)) for place, _, cells in lines}

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

    def _check(self, name: str) -> None:
        if name not in self.names:
            hint = did_you_mean(name, self.names, f"; there are: {', '.join(self.names)}")
            other = next((m for m in f";{TAB}|," if len(self.names) == 1 and m in self.names[0]), None)
            if other:
                hint = f"; line 1 has no {self.delimiter!r}: is the delimiter {'tab' if other == TAB else repr(other)}?"
            raise DataError(f"{self.file} has no column {name!r}{hint}")
        if self.names.count(name) > 1:
            raise DataError(f"{self.file} has {self.names.count(name)} columns named {name!r}")

    def _value(self, text: str, line: int, column: str, optional: bool) -> float:
        try:
            return self._number(text, line, column)
        except DataError:
            if optional:
                return math.nan
            raise

    def _number(self, text: str, line: int, column: str) -> float:
        where = f"{self.file}, line {line}, column {column!r}"
        text = text.strip()
        if text.lower() in MISSING:
            raise DataError(f"{where}: no value" + (f" ({text})" if text else ""))
        try:
            value = float(text.replace("_", "x"))  # Python reads 1_000 as a number
        except ValueError:
            raise DataError(f"{where}: {text!r} is not a number; feature_names can leave the column out") from None
        if not math.isfinite(value) or abs(value) > LARGEST:
            raise DataError(f"{where}: {text!r} is not a finite number of float32")
        return value


class TableBatch(NamedTuple):
    """Rows of a table, and which samples of the split they are.

    `features` is float32 `(B, F)` and `targets` float32 `(B, T)`, both in their own units; `indices` is
    int64 `(B,)`. Targets that are not known, where rows are only to be predicted, are NaN.
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
        features: `(N, F)`, kept as float32 (seven digits).
        targets: `(N, T)`, the same.
        feature_names: of the columns of `features`.
        target_names: of the columns of `targets`.
        test_size: rows of the test split; a share of all rows if below 1.
        val_size: rows of validation; a share of the rows that are not test if below 1.
        feature_mean: of each feature; default: of the training split, or what the checkpoint holds that is evaluated.
        feature_std: the same; of a constant feature it is 1.
        target_mean: the same of each target.
        target_std: the same.
        batch_size: rows per process (per micro-batch when accumulating).
        eval_batch_size: the same without gradients; it changes no result, only memory and speed.
        **kwargs: of `SplitData`.

    Attributes:
        input_size: number of features F.
        output_size: number of targets T.

    Raises:
        DataError: a batch size below 1, a number that is not finite, too few rows for the splits (none are enough
            to predict on others, with all statistics given), a target that is constant in the training split, or
            statistics that do not fit the columns.
    """

    batch = TableBatch
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
        batch_size: int = 32,
        eval_batch_size: int = 10_000,
        **kwargs: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, eval_batch_size=eval_batch_size, **kwargs)
        self.feature_names, self.target_names = list(feature_names), list(target_names)
        self.input_size, self.output_size = len(self.feature_names), len(self.target_names)
        table = _finite(features, self.feature_names), _finite(targets, self.target_names)
        if len(features) or None in (feature_mean, feature_std, target_mean, target_std):
            self.splits = self._split(*table, test_size, val_size)
            if target_std is None:
                self._check_targets()
        self.feature_mean, self.feature_std = self._standard(0, "feature", feature_mean, feature_std)
        self.target_mean, self.target_std = self._standard(1, "target", target_mean, target_std)

    def _split(self, features: Tensor, targets: Tensor, test_size: float, val_size: float) -> dict[str, Any]:
        rows = len(features)
        test_rows = _rows("test_size", test_size, rows)
        val_rows = _rows("val_size", val_size, rows - test_rows)
        if min(test_rows, val_rows) < 1 or rows - test_rows - val_rows < 2:
            raise DataError(
                f"{rows} rows are too few: test_size {test_size} and val_size {val_size} make {test_rows} rows of "
                f"test, {val_rows} of validation and {rows - test_rows - val_rows} of training; "
                "each split needs 1, training 2"
            )
        rest, test = random_split(rows, test_rows)
        train, val = random_split(len(rest), val_rows)
        chosen = {"train": rest[train], "val": rest[val], "test": test}
        return {split: (features[indices], targets[indices]) for split, indices in chosen.items()}

    def _check_targets(self) -> None:
        targets = self.splits["train"][1]
        for name, column in zip(self.target_names, targets.T, strict=True):
            if (column == column[0]).all():
                value = f"{column[0].item():g}"
                raise DataError(
                    f"the target {name!r} is {value} in all {len(column)} rows of training: nothing to learn"
                )

    def _standard(
        self, part: int, what: str, mean: list[float] | None, std: list[float] | None
    ) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of the features (part 0) or targets (1): as given, else those of training."""
        if mean is None or std is None:
            own = _statistics(self.splits["train"][part])
            mean, std = mean or own[0], std or own[1]
        size = (self.input_size, self.output_size)[part]
        return _fitting(f"{what}_mean", mean, size), _fitting(f"{what}_std", std, size)

    def has_split(self, split: Split) -> bool:
        """Whether there are rows."""
        return split in self.splits

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        """Raises DataError: features `(N, F)` and targets `(N, T)` of all splits are made by the constructor."""
        raise DataError(f"{type(self).__name__} has no {split} split: {self.no_rows}")

    def predict_from(self, file: str | Path) -> dict[int, dict[str, str]]:
        """`predict` then reads the rows of a CSV file instead of the test split.

        Its columns may be in any order, and it may have others. Targets are read if each row has a number for each.

        Args:
            file: with the columns `feature_names`, and the delimiter of the table itself.

        Returns:
            The columns of each row by its number in the file, for the table of predictions.

        Raises:
            DataError: no such file, no rows, no such column, or a feature that is missing or no number.
        """
        table = CSVFile(file, self.delimiter)
        names = self.target_names if all(table.names.count(name) == 1 for name in self.target_names) else []
        values = table.read([*self.feature_names, *names], may_miss=names)
        targets = values[:, self.input_size :].float()
        if not names or targets.isnan().any():
            targets = torch.full((len(values), self.output_size), math.nan)
        self.new = Rows(TableBatch, values[:, : self.input_size].float(), targets)
        self.predict_source = f"table_{table.file.stem}"
        return table.cells()


def _finite(values: Tensor, names: Sequence[str]) -> Tensor:
    """Values `(N, K)` as float32."""
    if values.ndim != 2 or values.shape[1] != len(names):
        raise DataError(f"a table of {len(names)} columns was expected, got shape {tuple(values.shape)}")
    values = values.float()
    wrong = (~values.isfinite()).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(f"sample {row}, column {names[column]!r}: not a finite number of float32")
    return values


def _rows(name: str, size: float, rows: int) -> int:
    """Number of rows of a split that is given as a number or as a share."""
    if not 0 < size < math.inf or (size >= 1 and size != int(size)):
        raise DataError(f"{name} must be a share between 0 and 1 or a number of rows, got {size}")
    return int(size) if size >= 1 else round(rows * size)


def _statistics(values: Tensor) -> tuple[list[float], list[float]]:
    """Mean and standard deviation (divided by N) of each column of `(N, K)`; 1 for a constant one, as a divisor."""
    wide = values.double()
    std = wide.std(dim=0, correction=0)
    # compared, for the rounded mean of equal numbers may leave a deviation that is tiny and not zero
    std[(wide == wide[0]).all(dim=0)] = 1
    return wide.mean(dim=0).tolist(), std.tolist()


def _fitting(name: str, values: list[float], size: int) -> list[float]:
    if len(values) != size:
        raise DataError(f"{name} has {len(values)} numbers for {size} columns")
    if name.endswith("std") and min(values) <= 0:
        raise DataError(f"{name} must be positive, got {min(values)}")
    return list(values)
