"""What a task tells `export`: which functions become files, and how far their results are from those of `predict`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lit_engine.errors import UserError
from lit_engine.training.plain import inputs_of, largest_difference, tensors_in

Run = Callable[..., Sequence[Tensor]]  # computes by a file: the tensors of its inputs → those of its outputs


class Part(nn.Module):
    """A function that becomes a file.

    Args:
        owner: holds its parameters.
        function: takes the inputs in their order, gives a tensor or several; no loop over a free axis.
        inputs: tensors by name, of which shape and type count.
        outputs: names.
        free: input → names of its first axes, which may have any length; default: `batch`.
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
        """What the function gives, always as several tensors. The file rejects inputs of another type, too."""
        for name, value in zip(self.inputs, inputs, strict=True):
            torch._assert_tensor_metadata(value, dtype=self.inputs[name].dtype)
        found = self.function(*inputs)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    def describe(self) -> dict[str, Any]:
        """Shapes and types of the inputs, names of the outputs."""
        inputs = {
            name: {"shape": [*free, *self.inputs[name].shape[len(free) :]], "type": str(self.inputs[name].dtype)[6:]}
            for name, free in self.free.items()
        }
        return {"inputs": inputs, "outputs": self.outputs}


@dataclass
class Exported:
    """What the method `exported` of a task returns, given a batch of `predict`.

    Args:
        parts: by the stem of their file.
        difference: of what the parts compute by their files from the rows that `predict` made of a batch: the largest.
        unit: of the difference.
        about: what a user of the files must know besides what the task has from the data, as plain data.
        with_onnx: files for use with those of ONNX → content.
    """

    parts: Mapping[str, Part]
    difference: Callable[[Mapping[str, Run], Any, dict[str, list[Any]]], float]
    unit: str
    about: Mapping[str, Any] = field(default_factory=dict)
    with_onnx: Mapping[str, str] = field(default_factory=dict)


def example_of(task: LightningModule, batch: Any) -> dict[str, Tensor]:
    """Return the inputs of `forward` in `example_input_array`, if it is set, or in a batch."""
    return inputs_of(task, batch if task.example_input_array is None else task.example_input_array)


def of_forward(task: LightningModule, batch: Any) -> Exported:
    """Of a task without the method `exported`: the inputs of `forward` in a batch → the tensors that it returns."""
    inputs = example_of(task, batch)
    names = list(inputs)
    if len(names) == 1:
        names = [getattr(batch, "_fields", ("inputs",))[0]]
    try:
        outputs = tensors_in(task(*inputs.values()))
    except (RuntimeError, TypeError) as error:
        shapes, reason = ", ".join(str(tuple(one.shape)) for one in inputs.values()), str(error).partition("\n")[0]
        raise UserError(
            f"{type(task).__name__}.forward rejects the first tensors of a batch, {shapes}: {reason}. Set "
            "example_input_array to its inputs"
        ) from error

    def compute(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_in(task(*values)).values())

    part = Part(task, compute, dict(zip(names, inputs.values(), strict=True)), list(outputs))

    def difference(runs: Mapping[str, Run], batch: Any, rows: Any) -> float:
        values = list(example_of(task, batch).values())
        return largest_difference(list(runs["model"](*values)), list(compute(*values)))

    return Exported({"model": part}, difference, "of the outputs")
