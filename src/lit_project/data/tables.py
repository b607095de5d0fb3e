"""Tabular data from your own CSV files, and the diabetes dataset, which is included in this package."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_engine.data.module import Split
from lit_engine.data.tables import STATISTICS, CSVFile, TabularData
from lit_engine.errors import DataError


class Diabetes(TabularData):
    """Ten measurements of 442 diabetes patients, and the progression of the disease one year later.

    Source: Efron, Hastie, Johnstone & Tibshirani (2004), "Least angle regression". The features are age in years, sex
    (1 or 2), body mass index, blood pressure and six blood values in original units. The target is between 25 and 346.

    Args:
        **kwargs: arguments of `TabularData`.
    """

    def __init__(self, **kwargs: Any) -> None:
        table = np.load(Path(__file__).with_name("files") / "diabetes.npz")
        super().__init__(
            features=torch.from_numpy(table["data"]),
            targets=torch.from_numpy(table["target"])[:, None],
            feature_names=["age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"],
            target_names=["progression"],
            **kwargs,
        )


class CSV(TabularData):
    """Numeric columns of a CSV file, whose first line contains the column names.

    Blank lines are ignored, and unused columns may contain anything. If the file is missing, a trained run can still
    predict on a different file (`predict RUN --table FILE`).

    Args:
        file: path of the CSV file, in UTF-8.
        target_names: name or names of the columns to predict.
        feature_names: names of the feature columns. Default: all other named columns. If a checkpoint is evaluated,
            its features are used.
        delimiter: character between columns; `tab` for a tab.
        **kwargs: arguments of `TabularData`.

    Raises:
        DataError: a column is listed twice, or there are no features. `CSVFile` and `TabularData` also raise DataError.
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
            named = [*features, *targets]
            source.places(named)  # raises an error for missing or repeated columns
            if twice := [name for name in named if named.count(name) > 1]:
                raise DataError(f"{twice[0]!r} is listed twice among features and targets")
            if not features:
                raise DataError(f"{file} has no feature column: add one, or change target_names")
            last = source.read(targets, "; targets must be numbers")
            table = torch.cat([source.read(features, "; exclude the column with feature_names"), last], dim=1)
        super().__init__(
            features=table[:, : len(features)],
            targets=table[:, len(features) :],
            feature_names=features,
            target_names=targets,
            **kwargs,
        )
        self.file = file

    def inputs(self, split: Split) -> dict[int, dict[str, str]]:
        """Return each sample's line number and cells for `PredictionTable`, keyed by row number."""
        rows = CSVFile(self.file, self.delimiter).inputs()
        return {row: rows[row] for row in super().inputs(split)}
