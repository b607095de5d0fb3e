"""Two tables that need no download: a function of which the answer is known, and real measurements of patients."""

from typing import Any

import torch

from lit_project.data.tabular import TabularData
from lit_project.errors import DataError
from lit_project.seeding import derive

FUNCTION_SEED = 2018  # its own constant, so that the table is the same whatever the seed of a run


class ClassicFunction(TabularData):
    """The three features `0`, `log x` and `5x` of the target `x`: a regression whose answer is known.

    x is uniform in [0.1, 10), from a generator of its own. The first feature is constant.

    Args:
        size: number of rows.
        **kwargs: of `TabularData`.

    Raises:
        DataError: a size that cannot be split.
    """

    def __init__(self, size: int = 1000, **kwargs: Any) -> None:
        if size < 0:
            raise DataError(f"size must not be negative, got {size}")
        generator = torch.Generator().manual_seed(derive(FUNCTION_SEED))
        x = 0.1 + 9.9 * torch.rand(size, generator=generator)
        features = torch.stack([torch.zeros(size), x.log(), 5 * x], dim=1)
        names = ["zero", "log x", "5 x"]
        super().__init__(features=features, targets=x[:, None], feature_names=names, target_names=["x"], **kwargs)


class Diabetes(TabularData):
    """442 patients, bundled with scikit-learn: ten measurements, and how far the disease had gone a year later.

    Efron, Hastie, Johnstone & Tibshirani (2004), "Least angle regression". Age in years, sex (1 or 2), body mass index,
    blood pressure and six blood values in the units of the source; the target is a score from 25 to 346.

    Args:
        **kwargs: of `TabularData`.
    """

    def __init__(self, **kwargs: Any) -> None:
        from sklearn.datasets import load_diabetes

        table = load_diabetes(scaled=False)
        super().__init__(
            features=torch.from_numpy(table.data),
            targets=torch.from_numpy(table.target)[:, None],
            feature_names=list(table.feature_names),
            target_names=["progression"],
            **kwargs,
        )
