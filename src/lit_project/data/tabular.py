"""Tables of numbers in memory: features and targets of regression, and their statistics."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from lit_project.data.csv_file import CSVFile
from lit_project.data.in_memory import random_split
from lit_project.data.order import EpochBatches
from lit_project.data.splits import Split, SplitData
from lit_project.data.table_loader import TableLoader
from lit_project.errors import DataError

STATISTICS = ("feature_mean", "feature_std", "target_mean", "target_std")


class TabularData(SplitData):
    """A table of which a fixed random part is test and a fixed random part of the rest is validation.

    Batches hold the numbers in their own units. The task standardises, by the statistics of the training split that
    it takes from the attributes below.

    Args:
        features: `(N, F)`, kept as float32 (seven digits).
        targets: `(N, T)`, the same.
        feature_names: of the columns of `features`.
        target_names: of the columns of `targets`.
        test_size: rows of the test split; a share of all rows if below 1.
        val_size: rows of validation; a share of the rows that are not test if below 1.
        batch_size: rows an optimizer micro-batch and process.
        eval_batch_size: the same without gradients; it changes no result, only memory and speed.
        drop_last: leave out the last training batch if it is not full.
        seed: of the order of the training samples; `null` follows `seed_everything`.
        feature_mean: of each feature; default: of the training split, or what the checkpoint holds that is evaluated.
        feature_std: the same; of a constant feature it is 1.
        target_mean: the same of each target.
        target_std: the same.

    Attributes:
        input_size: number of features F.
        output_size: number of targets T.

    Raises:
        DataError: a batch size below 1, a number that is not finite, too few rows for the splits (none are enough
            to predict on others, with all statistics given), a target that is constant in the training split, or
            statistics that do not fit the columns.
    """

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
        batch_size: int = 32,
        eval_batch_size: int = 10_000,
        drop_last: bool = False,
        seed: int | None = None,
        feature_mean: list[float] | None = None,
        feature_std: list[float] | None = None,
        target_mean: list[float] | None = None,
        target_std: list[float] | None = None,
    ) -> None:
        super().__init__()
        for name, value in (("batch_size", batch_size), ("eval_batch_size", eval_batch_size)):
            if value < 1:
                raise DataError(f"{name} must be at least 1, got {value}")
        self.feature_names, self.target_names = list(feature_names), list(target_names)
        self.input_size, self.output_size = len(self.feature_names), len(self.target_names)
        self.batch_size = batch_size
        self.eval_batch_size = eval_batch_size
        self.drop_last = drop_last
        self.seed = seed
        table = _finite(features, self.feature_names), _finite(targets, self.target_names)
        self.splits: dict[Split, tuple[Tensor, Tensor]] = {}
        if len(features) or None in (feature_mean, feature_std, target_mean, target_std):
            self.splits = self._split(*table, test_size, val_size)
            if target_std is None:
                self._check_targets()
        self.feature_mean, self.feature_std = self._standard(0, "feature", feature_mean, feature_std)
        self.target_mean, self.target_std = self._standard(1, "target", target_mean, target_std)
        self.new_rows: tuple[Tensor, Tensor] | None = None
        self.predict_source = "test"

    def __str__(self) -> str:
        """What it is, in words: Lightning would make loaders to count them, and jsonargparse prints what it links."""
        sizes = ", ".join(f"{self.size_of(split)} {split}" for split in self.splits) or "none"
        return f"{type(self).__name__}({self.input_size} features, {self.output_size} targets; rows: {sizes})"

    def _split(
        self, features: Tensor, targets: Tensor, test_size: float, val_size: float
    ) -> dict[Split, tuple[Tensor, Tensor]]:
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
        chosen: dict[Split, Tensor] = {"train": rest[train], "val": rest[val], "test": test}
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

    def size_of(self, split: Split) -> int:
        """Number of samples of a split."""
        return len(self._rows_of(split)[1])

    def _rows_of(self, split: Split) -> tuple[Tensor, Tensor]:
        if split not in self.splits:
            raise DataError(f"{type(self).__name__} has no {split} split: {self.no_rows}")
        return self.splits[split]

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
        self.new_rows = values[:, : self.input_size].float(), targets
        self.predict_source = f"table_{table.file.stem}"
        return table.cells()

    def predict_dataloader(self) -> TableLoader:
        """The test split, or the rows of the file that `predict_from` named."""
        if self.new_rows is None:
            return self.loader("test")
        size = len(self.new_rows[0])
        order = EpochBatches(size, self.eval_batch_size, shuffle=False, drop_last=False, **self.share())
        return TableLoader(*self.new_rows, order)

    def loader(self, split: Split) -> TableLoader:
        """Batches of a split for this process."""
        train = split == "train"
        order = EpochBatches(
            self.size_of(split),
            self.batch_size if train else self.eval_batch_size,
            shuffle=self.shuffles(split),
            drop_last=train and self.drop_last,
            **self.share(),
        )
        return TableLoader(*self._rows_of(split), order)


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
