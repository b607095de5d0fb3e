"""Regression: predicts numbers from numbers."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_engine.data.tables import WIDE
from lit_engine.errors import UserError
from lit_engine.training.exact import Totals
from lit_engine.training.schedules import OptimizerFactory, build_optimizer, build_schedulers
from lit_engine.training.task import Task

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported

SUMS = ("residual", "absolute", "first", "second")  # of each target; see `Regressor.evaluation_step`


class Regressor(Task):
    """Trains a net that gives T standardised targets `(B, T)` of F standardised features `(B, F)`.

    The checkpoint holds all that prediction needs: names and statistics are hyper-parameters that the config takes from
    the data; `forward` standardises features and gives predictions in the units of the targets.

    Logged at each epoch's end, over all samples and processes: `train/loss`; for `val` and `test`:

    - `loss` of the standardised targets, and `samples`;
    - of one target, `mse` and `mae` in its unit; of several, `mse/NAME` and `mae/NAME` of each in its own unit, with
      `mse_standardised` and `mae_standardised`, the means over the targets in units of their `target_std`;
    - `r2`, the mean over the targets: 1 - SS_res / SS_tot, with SS_tot about the mean of the split that is evaluated. A
      target that is constant there has no R² and is left out; without any other, `r2` is not logged.

    Args:
        net: `(B, F)` → `(B, T)`.
        optimizer: makes the optimizer of the parameters.
        target_names: in the order of the net's outputs; from the data.
        feature_names: in the order of the net's inputs; from the data.
        feature_mean: of each feature; from the data.
        feature_std: the same.
        target_mean: of each target; from the data.
        target_std: the same.
        loss: of two `(B, T)`, averaged over both axes; default: the squared error.
        **kwargs: of `Task`: schedulers, parameter_groups, compile, metrics.

    Attributes:
        r2: R² of each target that has one, in the last evaluation.
    """

    headline_metrics = ("loss", "r2")
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
        loss: nn.Module | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        self.net = net
        self.loss = loss or nn.MSELoss()
        self.target_names = list(target_names)
        self.feature_names = list(feature_names)
        # hyper-parameters and not weights: a warm start on other data keeps the statistics of its own
        for name, values in (
            ("feature_mean", feature_mean), ("feature_std", feature_std),
            ("target_mean", target_mean), ("target_std", target_std),
        ):  # fmt: skip
            self.register_buffer(name, torch.tensor(list(values), dtype=WIDE), persistent=False)
        self.notes["task"] = "tabular-regression"  # as the Hugging Face Hub calls it
        self.r2: dict[str, float] = {}

    def setup(self, stage: str) -> None:
        """Raises UserError for a precision to which Lightning would round features and targets in their units."""
        precision = str(self.trainer.precision)
        rounds = f"precision {precision} rounds features and targets in their units"
        if precision in ("16-true", "bf16-true"):
            raise UserError(f"{rounds}: take {precision.replace('true', 'mixed')}")
        offsets = [self.feature_mean.abs() / self.feature_std, self.target_mean.abs() / self.target_std]
        if "mixed" in precision and torch.cat(offsets).max() > 10_000:  # float32 leaves 3 digits of the deviation
            raise UserError(f"{rounds} to float32, and a mean is over 10,000 standard deviations: use 32-true")
        super().setup(stage)

    def standardised(self, targets: Tensor) -> Tensor:
        """Targets `(B, T)` in their units → what the loss compares with the net's outputs."""
        return ((targets - self.target_mean) / self.target_std).to(self.dtype)

    def outputs(self, features: Tensor) -> Tensor:
        """Features `(B, F)` in their units → outputs of the net `(B, T)`, standardised.

        Raises:
            UserError: the net gives another shape, which the loss might stretch to fit.
        """
        outputs = self.net(((features - self.feature_mean) / self.feature_std).to(self.dtype))
        expected = (features.shape[0], len(self.target_names))
        if outputs.shape != expected:
            raise UserError(f"the net gives {tuple(outputs.shape)}, and the targets are {expected}")
        return outputs

    def forward(self, features: Tensor) -> Tensor:
        """Features `(B, F)` → predictions `(B, T)`, both in their units."""
        return self.outputs(features).float() * self.target_std + self.target_mean

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its learning rate schedulers. The factors of several schedulers are multiplied."""
        optimizer = build_optimizer(self.optimizer_factory, self.parameter_groups())
        return [optimizer], build_schedulers(self.schedules, optimizer, self.length)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features, targets = batch[0], batch[1]
        return self.step(self.loss(self.outputs(features), self.standardised(targets)), len(targets))

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "test")

    def evaluation_step(self, batch: Any, split: str) -> dict[str, Tensor]:
        """Adds one batch to the sums; gives `predictions` and `targets`, both `(B, T)` in their units, to callbacks."""
        features, targets = batch[0], batch[1]
        outputs = self.outputs(features).float()
        predictions = outputs * self.target_std + self.target_mean
        true, error = _double(targets), _double(predictions) - _double(targets)
        # moments of the standardised targets: near zero, so that no digits cancel in SS_tot; R² is the same
        z = (true - _double(self.target_mean)) / _double(self.target_std)
        sums = dict(zip(SUMS, (error**2, error.abs(), z, z**2), strict=True))
        columns = {f"{name}/{k}": s for name, v in sums.items() for k, s in enumerate(v.sum(dim=0).unbind())}
        self.step(self.loss(outputs, self.standardised(targets)), len(targets), **columns)
        return {"predictions": predictions, "targets": targets}

    def metric_inputs(self, outputs: Any) -> Iterable[Tensor]:
        """Predictions and targets in their units, `(B, T)`, of one target `(B,)`."""
        return [values.squeeze(1) for values in outputs.values()]

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        means = totals.means()
        squared, absolute, first, second = (
            torch.tensor([means[f"{name}/{k}"] for k in range(len(self.target_names))], dtype=torch.double)
            for name in SUMS
        )
        std = _double(self.target_std.cpu())
        r2 = 1 - squared / std**2 / (second - first**2)
        varies = second - first**2 > 1e-12 * second  # of equal numbers, rounding may leave something
        self.r2 = {name: float(value) for name, value, real in zip(self.target_names, r2, varies, strict=True) if real}
        values = {"loss": means["loss"]}
        for name, each, scale in (("mse", squared, std**2), ("mae", absolute, std)):
            if len(each) == 1:
                values[name] = each.item()
            else:  # whose units differ
                values |= {f"{name}/{target}": e.item() for target, e in zip(self.target_names, each, strict=True)}
                values[f"{name}_standardised"] = (each / scale).mean().item()
        if self.r2:
            values["r2"] = sum(self.r2.values()) / len(self.r2)
        return {**values, "samples": float(totals.count)}

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Rows of a table, one per sample: index, prediction, and the target if it is known.

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

    def exported(self, batch: Any) -> "Exported":
        """For `export`: features → predictions, both in their units."""
        from lit_engine.tools.export.parts import Exported, Part

        part = Part(self, self.forward, {"features": batch[0]}, ["predictions"])

        def difference(runs: Any, batch: Any, rows: Any) -> float:
            (found,) = runs["model"](batch[0])
            columns = [values for name, values in rows.items() if name.startswith("prediction")]
            expected = torch.tensor(columns, dtype=found.dtype).T
            return float(((found - expected) / self.target_std).abs().max())

        return Exported({"model": part}, difference, "standard deviations of a target")


def _double(values: Tensor) -> Tensor:
    """In float64, in which sums of many samples are exact to the digits shown; some devices do not have it."""
    return values.cpu().double() if values.device.type == "mps" else values.double()
