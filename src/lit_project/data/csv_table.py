"""A user's own table: any CSV file with a line of column names."""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from lit_project.data.tabular import TabularData
from lit_project.errors import DataError, did_you_mean

TAB = "\t"
MISSING = ("", "?", "-", "na", "n/a", "nan", "null", "none")  # in lower case
LARGEST = torch.finfo(torch.float32).max


class CSV(TabularData):
    """Numbers of a CSV file whose first line names the columns.

    Blank lines are passed over. Columns that are neither feature nor target may hold anything.

    Args:
        file: where it is; UTF-8.
        target_names: the column to predict, or several.
        feature_names: the columns to predict from; default: all others that have a name, or those of the
            checkpoint that is evaluated.
        delimiter: between the columns of a line; `tab` for a tab.
        **kwargs: of `TabularData`.

    Raises:
        DataError: no such file, no rows, an unknown or repeated column, a column that is both feature and target, a
            line of another length than the first, a missing value or one that is no number; or as in `TabularData`.
            Lines are counted as an editor does: the names are line 1.
    """

    def __init__(
        self,
        file: str | Path,
        target_names: list[str] | str,
        feature_names: list[str] | None = None,
        delimiter: str = ",",
        **kwargs: Any,
    ) -> None:
        targets = [target_names] if isinstance(target_names, str) else list(target_names)
        file = Path(file).expanduser()
        delimiter = TAB if delimiter in ("tab", r"\t") else delimiter
        lines = _lines(file, delimiter)
        _, header = next(lines, (1, []))
        header = [name.strip() for name in header]
        if not any(header):
            raise DataError(f"{file} is empty")
        others = [name for name in header if name and name not in targets]
        features = others if feature_names is None else list(feature_names)
        _check_columns(file, header, features, targets, delimiter)
        columns = [header.index(name) for name in (*features, *targets)]
        rows = []
        for line, cells in lines:
            if len(cells) != len(header):
                raise DataError(f"{file}, line {line}: {len(cells)} values for the {len(header)} columns of line 1")
            rows.append([_number(cells[k], file, line, header[k]) for k in columns])
        if not rows:
            raise DataError(f"{file} has a line of names and no rows")
        table = torch.tensor(rows, dtype=torch.double)
        super().__init__(
            features=table[:, : len(features)],
            targets=table[:, len(features) :],
            feature_names=features,
            target_names=targets,
            **kwargs,
        )


def _lines(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not blank, with the number of the line on which each begins."""
    if len(delimiter) != 1:
        raise DataError(f"delimiter must be one character, got {delimiter!r}")
    if not file.is_file():
        raise DataError(f"no such file: {file}")
    with file.open(newline="", encoding="utf-8-sig") as handle:  # -sig: some programs begin a file with a mark
        reader = csv.reader(handle, delimiter=delimiter, skipinitialspace=True)
        begin = 1
        try:
            for cells in reader:
                if any(cell.strip() for cell in cells) or len(cells) > 1:
                    yield begin, cells
                begin = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{file}, line {begin} or after: cannot be read as UTF-8 CSV ({error})") from error


def _check_columns(
    file: str | Path, header: Sequence[str], features: Sequence[str], targets: Sequence[str], delimiter: str
) -> None:
    """Raises DataError for names that the header does not have, and for names that are used twice."""
    for name in (*features, *targets):
        if name not in header:
            hint = did_you_mean(name, header, f"; there are: {', '.join(header)}")
            other = next((mark for mark in f";{TAB}|," if len(header) == 1 and mark in header[0]), None)
            if other:
                hint = f"; line 1 has no {delimiter!r}: is the delimiter {'tab' if other == TAB else repr(other)}?"
            raise DataError(f"{file} has no column {name!r}{hint}")
        if header.count(name) > 1:
            raise DataError(f"{file} has {header.count(name)} columns named {name!r}")
    if both := [name for name in features if name in targets]:
        raise DataError(f"{both[0]!r} is both feature and target")
    for kind, names in (("feature", features), ("target", targets)):
        if not names:
            raise DataError(f"{file}: there is no {kind} column")
        if repeated := [name for name in names if names.count(name) > 1]:
            raise DataError(f"the {kind} {repeated[0]!r} is named twice")


def _number(text: str, file: str | Path, line: int, column: str) -> float:
    where = f"{file}, line {line}, column {column!r}"
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
