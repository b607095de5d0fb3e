"""The regression task, which predicts numeric targets from numeric features."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lit_engine.data.tables import WIDE
from lit_engine.errors import UserError
from lit_engine.training.exact import Totals
from lit_engine.training.schedules import OptimizerFactory, build_optimizer, build_schedulers
from lit_engine.training.task import Task
from lit_project.models.losses import at_least_float32

if TYPE_CHECKING:
    from lit_engine.tools.export.parts import Exported

SUMS = ("residual", "absolute", "first", "second")  # `Regressor.evaluation_step` computes these sums per target.


class Regressor(Task):
    """Regression task for models that map F standardized features `(B, F)` to T standardized targets `(B, T)`.

    Names and statistics are set from the data and stored in the checkpoint, so prediction needs no other file.
    `forward` standardizes the features and returns predictions in the original units of the targets.

    At the end of each epoch, the task logs metrics over all samples and processes. Training logs `train/loss`. `val`
    and `test` log the following metrics:

    - `loss` is computed from the standardized targets. `samples` is the number of samples.
    - `mse` and `mae` are computed from unstandardized values. With several targets, they are logged as `mse/NAME` and
      `mae/NAME`, and `mse_standardized` and `mae_standardized` are means over all standardized targets.
    - `r2` is the mean of 1 - SS_res / SS_tot over all targets. SS_tot is relative to the mean of the evaluated split.
      Targets that are constant in this split have no R² and are ignored. `r2` is omitted if all targets are constant.

    Args:
        net: model that maps `(B, F)` to `(B, T)`.
        optimizer: creates the optimizer for the parameters.
        target_names: target names in the order of the model's outputs; set from the data.
        feature_names: feature names in the order of the model's inputs; set from the data.
        feature_mean: mean of each feature; set from the data.
        feature_std: standard deviation of each feature; set from the data.
        target_mean: mean of each target; set from the data.
        target_std: standard deviation of each target; set from the data.
        loss: maps outputs and targets, both `(B, T)`, to their mean loss. Default: squared error.
        **kwargs: the other arguments of `Task`, such as `schedulers` and `parameter_groups`.

    Attributes:
        r2: R² by target name in the last evaluation, excluding constant targets.
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
        # Non-persistent, because a warm start on a different dataset must use the statistics of that dataset.
        for name, values in (
            ("feature_mean", feature_mean), ("feature_std", feature_std),
            ("target_mean", target_mean), ("target_std", target_std),
        ):  # fmt: skip
            self.register_buffer(name, torch.tensor(list(values), dtype=WIDE), persistent=False)
        self.notes["task"] = "tabular-regression"  # task name on the Hugging Face Hub
        self.r2: dict[str, float] = {}

    def setup(self, stage: str) -> None:
        """Raise UserError if Lightning would round the unnormalized features and targets to a low precision."""
        precision = str(self.trainer.precision)
        if precision in ("16-true", "bf16-true"):
            other = precision.replace("true", "mixed")
            raise UserError(f"precision {precision} rounds the unnormalized features and targets: use {other}")
        super().setup(stage)

    def standardize(self, targets: Tensor) -> Tensor:
        """Standardize targets `(B, T)` to compare them with the model's outputs."""
        return ((targets - self.target_mean) / self.target_std).to(self.dtype)

    def outputs(self, features: Tensor) -> Tensor:
        """Return the model's standardized outputs `(B, T)` for unnormalized features `(B, F)`.

        Raises:
            UserError: the outputs and targets have different shapes, which the loss might silently broadcast.
        """
        outputs = self.net(((features - self.feature_mean) / self.feature_std).to(self.dtype))
        expected = (features.shape[0], len(self.target_names))
        if outputs.shape != expected:
            raise UserError(f"the model returns shape {tuple(outputs.shape)}, but the targets have shape {expected}")
        return outputs

    def forward(self, features: Tensor) -> Tensor:
        """Return predictions `(B, T)` for features `(B, F)`, both in their original units."""
        return at_least_float32(self.outputs(features)) * self.target_std + self.target_mean

    def configure_optimizers(self) -> Any:
        """Return the optimizer and its schedulers. If there are several schedulers, their factors are multiplied."""
        optimizer = build_optimizer(self.optimizer_factory, self.parameter_groups())
        return [optimizer], build_schedulers(self.schedules, optimizer, self.length)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        features, targets = batch[0], batch[1]
        return self.step(self.loss(self.outputs(features), self.standardize(targets)), len(targets))

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "val")

    def test_step(self, batch: Any, batch_idx: int) -> Any:
        return self.evaluate(batch, "test")

    def evaluation_step(self, batch: Any, split: str) -> dict[str, Tensor]:
        """Add a batch to the sums. Return `predictions` and `targets` `(B, T)` in original units."""
        features, targets = batch[0], batch[1]
        outputs = at_least_float32(self.outputs(features))
        predictions = outputs * self.target_std + self.target_mean
        true, error = _to_float64(targets), _to_float64(predictions) - _to_float64(targets)
        # Standardizing the targets does not change R², and it avoids cancellation in SS_tot.
        z = (true - _to_float64(self.target_mean)) / _to_float64(self.target_std)
        sums = dict(zip(SUMS, (error**2, error.abs(), z, z**2), strict=True))
        columns = {f"{name}/{k}": s for name, v in sums.items() for k, s in enumerate(v.sum(dim=0).unbind())}
        self.step(self.loss(outputs, self.standardize(targets)), len(targets), **columns)
        return {"predictions": predictions, "targets": targets}

    def metric_inputs(self, outputs: Any) -> Iterable[Tensor]:
        """Return predictions and targets in their original units, `(B, T)`, or `(B,)` if there is one target."""
        return [values.squeeze(1) for values in outputs.values()]

    def evaluation_metrics(self, totals: Totals, split: str) -> dict[str, float]:
        means = totals.means()
        squared, absolute, first, second = (
            torch.tensor([means[f"{name}/{k}"] for k in range(len(self.target_names))], dtype=torch.double)
            for name in SUMS
        )
        std = _to_float64(self.target_std.cpu())
        r2 = 1 - squared / std**2 / (second - first**2)
        varies = second - first**2 > 1e-12 * second  # Due to rounding, equal numbers may have a tiny variance.
        self.r2 = {name: float(value) for name, value, real in zip(self.target_names, r2, varies, strict=True) if real}
        values = {name: mean for name, mean in means.items() if name.partition("/")[0] not in SUMS}
        for name, each, scale in (("mse", squared, std**2), ("mae", absolute, std)):
            if len(each) == 1:
                values[name] = each.item()
            else:  # Targets may have different units.
                values |= {f"{name}/{target}": e.item() for target, e in zip(self.target_names, each, strict=True)}
                values[f"{name}_standardized"] = (each / scale).mean().item()
        if self.r2:
            values["r2"] = sum(self.r2.values()) / len(self.r2)
        return {**values, "samples": float(totals.count)}

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, list[Any]]:
        """Return columns with the index, the prediction and, if known, the target of each sample.

        With several targets, the columns are named `prediction/NAME` and `target/NAME`.
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
        """Return the function to export. It maps features to predictions in their original units."""
        from lit_engine.tools.export.parts import Exported, Part

        part = Part(self, self.forward, {"features": batch[0]}, ["predictions"])

        def difference(runs: Any, batch: Any, rows: Any) -> float:
            (found,) = runs["model"](batch[0])
            columns = [values for name, values in rows.items() if name.startswith("prediction")]
            expected = torch.tensor(columns, dtype=found.dtype).T
            return float(((found - expected) / self.target_std).abs().max())

        return Exported({"model": part}, difference, "standard deviations of a target")


def _to_float64(values: Tensor) -> Tensor:
    """Convert to float64, so that sums over many samples are accurate. MPS tensors are moved to the CPU first."""
    return values.cpu().double() if values.device.type == "mps" else values.double()
