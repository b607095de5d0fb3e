"""A user's own table: any CSV file with a line of column names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lit_project.data.csv_file import CSVFile
from lit_project.data.tabular import STATISTICS, TabularData
from lit_project.errors import DataError


class CSV(TabularData):
    """Numbers of a CSV file whose first line names the columns.

    Blank lines are left out. Columns that are neither feature nor target may hold anything. Without the file a
    trained run can still predict on another (`predict --run RUN --table FILE`): its checkpoint knows the rest.

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
        self.delimiter = delimiter
        known = feature_names is not None and all(kwargs.get(name) is not None for name in STATISTICS)
        if known and not Path(file).expanduser().is_file():
            features = list(feature_names or [])
            table = torch.empty(0, len(features) + len(targets))
            self.no_rows = f"no such file: {file}"
        else:
            source = CSVFile(file, delimiter)
            others = [name for name in source.names if name and name not in targets]
            features = others if feature_names is None else list(feature_names)
            _check_columns(file, features, targets)
            table = source.read([*features, *targets])
        super().__init__(
            features=table[:, : len(features)],
            targets=table[:, len(features) :],
            feature_names=features,
            target_names=targets,
            **kwargs,
        )


def _check_columns(file: str | Path, features: Sequence[str], targets: Sequence[str]) -> None:
    """Raises DataError where there are no features or targets, and for names that are used twice."""
    if both := [name for name in features if name in targets]:
        raise DataError(f"{both[0]!r} is both feature and target")
    for kind, names in (("feature", features), ("target", targets)):
        if not names:
            raise DataError(f"{file}: there is no {kind} column")
        if repeated := [name for name in names if names.count(name) > 1]:
            raise DataError(f"the {kind} {repeated[0]!r} is named twice")
