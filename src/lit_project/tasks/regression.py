"""Regression: numbers predicted from numbers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_project.errors import UserError
from lit_project.optim import OptimizerFactory, ParameterGroups, Schedule
from lit_project.tasks.base import Task
from lit_project.tasks.totals import Totals

SUMS = ("residual", "absolute", "first", "second")  # of each target; see `Regressor._evaluation_step`


class Regressor(Task):
    """Trains a net that gives T standardised targets `(B, T)` of F standardised features `(B, F)`.

    The checkpoint holds all that prediction needs: names and statistics are hyper-parameters that the config takes from
    the data; `forward` standardises features and gives predictions in the units of the targets.

    Logged at each epoch's end, over all samples and processes: `train/loss`; for `val` and `test`:

    - `loss` of the standardised targets, and `samples`;
    - of one target, `mse` and `mae` in its unit; of several, `mse/NAME` and `mae/NAME` of each in its own unit, with
      `mse_standardised` and `mae_standardised`, the means over the targets in units of their `target_std`;
    - `r2`, the mean over the targets: 1 - SS_res / SS_tot, with SS_tot about the mean of the split that is evaluated. A
      target that is constant there has no R² and is left out; where there is no other, `r2` is not logged.

    Args:
        net: `(B, F)` → `(B, T)`.
        optimizer: makes the optimizer of the parameters.
        target_names: in the order of the net's outputs; from the data.
        feature_names: in the order of the net's inputs; from the data.
        feature_mean: of each feature; from the data.
        feature_std: the same.
        target_mean: of each target; from the data.
        target_std: the same.
        schedulers: learning rate schedules; see `lit_project.optim.Schedule`.
        loss: of two `(B, T)`, averaged over both axes; default: the squared error.
        parameter_groups: parameters with rates or decay of their own; see `lit_project.optim.ParameterGroups`.

    Attributes:
        r2: R² of each target that has one, in the last evaluation.
    """

    feature_mean: Tensor
    feature_std: Tensor
    target_mean: Tensor
    target_std: Tensor

    def __init__(
        self,
        net: nn.Module,
        optimizer: OptimizerFactory,
        target_names: Sequence[str],
        feature_names: Sequence[str] = (),
        feature_mean: Sequence[float] = (0.0,),
        feature_std: Sequence[float] = (1.0,),
        target_mean: Sequence[float] = (0.0,),
        target_std: Sequence[float] = (1.0,),
        schedulers: Sequence[Schedule] | None = None,
        loss: nn.Module | None = None,
        parameter_groups: ParameterGroups | None = None,
    ) -> None:
        super().__init__(optimizer, schedulers, parameter_groups)
        self.net = net
        self.loss = loss or nn.MSELoss()
        self.target_names = list(target_names)
        self.feature_names = list(feature_names)
        statistics = {
            "feature_mean": feature_mean,
            "feature_std": feature_std,
            "target_mean": target_mean,
            "target_std": target_std,
        }
        for name, values in statistics.items():
            # hyper-parameters and not weights: a warm start on other data keeps the statistics of its own
            self.register_buffer(name, torch.tensor(list(values)), persistent=False)
        self.evaluated = Totals()
        self.r2: dict[str, float] = {}

    def standardised(self, targets: Tensor) -> Tensor:
        """Targets `(B, T)` in their units → what the loss compares with the net's outputs."""
        return (targets - self.target_mean) / self.target_std

    def outputs(self, features: Tensor) -> Tensor:
        """Features `(B, F)` in their units → outputs of the net `(B, T)`, standardised.

        Raises:
            UserError: the net gives another shape, which the loss might stretch to fit.
        """
        outputs = self.net((features - self.feature_mean) / self.feature_std)
        expected = (len(features), len(self.target_names))
        if outputs.shape != expected:
            raise UserError(f"the net gives {tuple(outputs.shape)}, and the targets are {expected}")
        return outputs

    def forward(self, features: Tensor) -> Tensor:
        """Features `(B, F)` → predictions `(B, T)`, both in their units."""
        return self.outputs(features).float() * self.target_std + self.target_mean

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """The loss of one batch of `(features, targets, …)`."""
        features, targets = batch[0], batch[1]
        loss = self.loss(self.outputs(features), self.standardised(targets))
        size = len(targets)
        self.running.add(size, loss=loss.detach() * size)
        return {"loss": self.weighted(loss, size), "mean": loss.detach()}

    def _evaluation_step(self, batch: Any) -> dict[str, Tensor]:
        features, targets = batch[0], batch[1]
        outputs = self.outputs(features).float()
        predictions = outputs * self.target_std + self.target_mean
        true, error = _double(targets), _double(predictions) - _double(targets)
        # moments of the standardised targets: near zero, so that no digits cancel in SS_tot; R² is the same
        z = (true - _double(self.target_mean)) / _double(self.target_std)
        sums = dict(zip(SUMS, (error**2, error.abs(), z, z**2), strict=True))
        columns = {f"{name}/{k}": s for name, v in sums.items() for k, s in enumerate(v.sum(dim=0).unbind())}
        loss = self.loss(outputs, self.standardised(targets))
        self.evaluated.add(len(targets), loss=loss * len(targets), **columns)
        return {"predictions": predictions, "targets": targets}

    def _evaluation_end(self, split: str) -> None:
        totals = self.evaluated.reduce(self)
        count, means = int(totals.count), totals.means()
        squared, absolute, first, second = (
            torch.tensor([means[f"{name}/{k}"] for k in range(len(self.target_names))], dtype=torch.double)
            for name in SUMS
        )
        std = _double(self.target_std.cpu())
        self.r2 = _r2(squared / std**2, first, second, self.target_names)
        values = {f"{split}/loss": means["loss"]}
        for name, each, scale in (("mse", squared, std**2), ("mae", absolute, std)):
            if len(each) == 1:
                values[f"{split}/{name}"] = each.item()
            else:  # whose units differ
                values |= {
                    f"{split}/{name}/{target}": e.item() for target, e in zip(self.target_names, each, strict=True)
                }
                values[f"{split}/{name}_standardised"] = (each / scale).mean().item()
        if self.r2:
            values[f"{split}/r2"] = sum(self.r2.values()) / len(self.r2)
        self.log_dict({**values, f"{split}/samples": float(count)}, sync_dist=True)

    def on_validation_epoch_start(self) -> None:
        """Starts the sums."""
        self.evaluated = Totals()

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Adds one batch to the sums; gives `predictions` and `targets`, both `(B, T)` in their units, to callbacks."""
        return self._evaluation_step(batch)

    def on_validation_epoch_end(self) -> None:
        """Logs `val/…`."""
        self._evaluation_end("val")

    def on_test_epoch_start(self) -> None:
        """Starts the sums."""
        self.evaluated = Totals()

    def test_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """As `validation_step`."""
        return self._evaluation_step(batch)

    def on_test_epoch_end(self) -> None:
        """Logs `test/…`."""
        self._evaluation_end("test")

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Rows of a table, one a sample: index, prediction, and the target where it is known.

        With several targets these are columns `prediction/NAME` and `target/NAME`.
        """
        features, targets, indices = batch
        if len(indices) == 0:
            return {}
        columns = {"prediction": self(features)}
        if not targets.isnan().any():
            columns["target"] = targets
        rows: dict[str, list[Any]] = {"index": indices.tolist()}
        for kind, values in columns.items():
            for name, column in zip(self.target_names, values.T, strict=True):
                rows[kind if len(self.target_names) == 1 else f"{kind}/{name}"] = column.tolist()
        return rows


def _double(values: Tensor) -> Tensor:
    """In float64, in which sums of many samples are exact to the digits shown; some devices do not have it."""
    return values.cpu().double() if values.device.type == "mps" else values.double()


def _r2(squared: Tensor, first: Tensor, second: Tensor, names: Sequence[str]) -> dict[str, float]:
    """R² of each target that varies: `(T,)` mean squared residual, mean and mean square of the targets."""
    variance = second - first**2
    varies = variance > 1e-12 * second  # of equal numbers, rounding may leave something
    return {name: 1 - float(s / v) for name, s, v, real in zip(names, squared, variance, varies, strict=True) if real}
