"""Reads the numbers of a CSV file, and says on which line what is wrong."""

import csv
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from lit_project.errors import DataError, did_you_mean
from lit_project.processes import print_once

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
