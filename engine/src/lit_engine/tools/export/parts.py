"""Defines which functions a task exports, and how the exported files are compared with `predict`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lit_engine.errors import UserError
from lit_engine.training.plain import call_forward, inputs_of

Run = Callable[..., Sequence[Tensor]]  # runs an exported file


class Part(nn.Module):
    """A function that is exported to a file.

    Args:
        owner: module that contains the function's parameters.
        function: callable that accepts the inputs in order and returns one or more tensors. The callable must not
            loop over a free axis.
        inputs: example tensors, keyed by name. Only the shapes and types matter.
        outputs: names of the outputs.
        free: maps an input to the space-separated names of its leading axes whose length may vary (default: `batch`).
    """

    def __init__(
        self,
        owner: nn.Module,
        function: Callable[..., Any],
        inputs: Mapping[str, Tensor],
        outputs: Sequence[str],
        free: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.owner, self.function, self.inputs, self.outputs = owner, function, inputs, list(outputs)
        self.free = {name: (free or {}).get(name, "batch").split() for name in inputs}

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs as a tuple. Both this method and the exported file reject inputs of the wrong type."""
        for name, value in zip(self.inputs, inputs, strict=True):
            torch._assert_tensor_metadata(value, dtype=self.inputs[name].dtype)
        found = self.function(*inputs)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    def describe(self) -> dict[str, Any]:
        """Return the shapes and types of the inputs, and the names of the outputs."""
        inputs = {
            name: {"shape": [*free, *self.inputs[name].shape[len(free) :]], "type": str(self.inputs[name].dtype)[6:]}
            for name, free in self.free.items()
        }
        return {"inputs": inputs, "outputs": self.outputs}


@dataclass
class Exported:
    """The result of a task's `exported` method for one prediction batch.

    Args:
        parts: the exported functions, keyed by file name without the extension.
        difference: function that returns the largest difference between the files' outputs and rows from `predict`.
        unit: unit of the difference.
        about: JSON data that describes the model. Hyperparameters that the task receives from the data are added.
        with_onnx: contents of additional files to use with the ONNX files, keyed by file name.
    """

    parts: Mapping[str, Part]
    difference: Callable[[Mapping[str, Run], Any, dict[str, list[Any]]], float]
    unit: str
    about: Mapping[str, Any] = field(default_factory=dict)
    with_onnx: Mapping[str, str] = field(default_factory=dict)


def get_example_inputs(task: LightningModule, batch: Any) -> dict[str, Tensor]:
    """Return the inputs of `forward` from `example_input_array` if it is set, and from a batch otherwise."""
    return inputs_of(task, batch if task.example_input_array is None else task.example_input_array)


def export_forward(task: LightningModule, batch: Any) -> Exported:
    """Export `forward` with its inputs and outputs. This is the default for tasks without an `exported` method."""
    inputs = get_example_inputs(task, batch)
    names = list(inputs)
    if len(names) == 1:
        names = [getattr(batch, "_fields", ("inputs",))[0]]
    try:
        outputs = name_tensors(call_forward(task, inputs, inputs.values()))
    except (RuntimeError, TypeError) as error:
        shapes, reason = ", ".join(str(tuple(one.shape)) for one in inputs.values()), str(error).partition("\n")[0]
        raise UserError(
            f"{type(task).__name__}.forward rejects the first tensors of a batch, {shapes}: {reason}. "
            "Set example_input_array to valid inputs"
        ) from error

    def compute(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(name_tensors(call_forward(task, inputs, values)).values())

    part = Part(task, compute, dict(zip(names, inputs.values(), strict=True)), list(outputs))

    def difference(runs: Mapping[str, Run], batch: Any, rows: Any) -> float:
        values = list(get_example_inputs(task, batch).values())
        # The first sample is compared separately, to test a batch size that was not traced.
        batches = [[one[:1] for one in values], [one[1:] for one in values]] if len(values[0]) > 1 else [values]
        return max(compute_largest_difference(list(runs["model"](*some)), list(compute(*some))) for some in batches)

    return Exported({"model": part}, difference, "output values")


def name_tensors(outputs: Any) -> dict[str, Tensor]:
    """Return the tensors that `forward` returned, keyed by `outputs`, `outputs_0`…, or the keys of a dict.

    Raises:
        UserError: the output is neither a tensor nor a tuple, list or dict of tensors.
    """
    if isinstance(outputs, Tensor):
        return {"outputs": outputs}
    named = outputs if isinstance(outputs, Mapping) else {}
    if isinstance(outputs, tuple | list):
        named = {f"outputs_{number}": value for number, value in enumerate(outputs)}
    if not named or not all(isinstance(value, Tensor) for value in named.values()):
        nested = "nested " if any(isinstance(value, tuple | list | Mapping) for value in named.values()) else ""
        raise UserError(
            f"forward returned a {nested}{type(outputs).__name__}: "
            "only tensors and tuples or dicts of tensors can be exported"
        )
    return dict(named)


def compute_largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest absolute difference between two lists of tensors with the same shapes.

    Differences are divided by the largest finite expected value if it exceeds 1. Equal infinities and NaNs differ by 0.
    """
    largest = torch.zeros((), dtype=torch.double)
    for one, other in zip(found, expected, strict=True):
        one, other = one.double(), other.double()
        same = (one == other) | (one.isnan() & other.isnan())
        scale = other[other.isfinite()].abs().amax() if other.isfinite().any() else 1.0
        if not same.all():
            largest = torch.maximum(largest, (one - other)[~same].abs().max() / max(scale, 1.0))
    return float(largest)
