"""Writes a file of each format, with what is said about it, and reads it again to compute with it."""

import io
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx.experimental.symbolic_shapes import free_symbols

from lit_engine._lightning import recurrences_as_loops
from lit_engine.errors import UserError
from lit_engine.tools.export.parts import Part, Run

LENGTHS = {"batch": 2, "source": 3, "past": 4}  # of free axes in a trace, which keeps none of them


def _quietly(what: str, make: Callable[[], Any]) -> Any:
    """The result of a talkative call of torch, in which recurrences have any length.

    Raises:
        UserError: torch cannot do it, with its reason.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            stack.enter_context(redirect_stderr(io.StringIO()))  # a whole graph, where it fails
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.WARNING)
            for context in recurrences_as_loops():  # torch.onnx traces with them, too
                stack.enter_context(context)
            return make()
    except Exception as error:  # of any kind: the net may be anyone's
        lines = [line.strip(" -") for line in str(error.__cause__ or error).splitlines() if line.strip()]
        reason = next(
            (line.partition(". If")[0] for line in lines if line.startswith("You marked")), "".join(lines[:1])
        )
        raise UserError(f"the {what} cannot be exported: {reason or type(error).__name__}") from error


def trace(name: str, part: Part) -> ExportedProgram:
    """A part as a graph that keeps no length of a free axis."""
    shapes = tuple(dict.fromkeys(range(len(free)), Dim.DYNAMIC) for free in part.free.values())

    def make() -> ExportedProgram:
        examples = tuple(
            part.inputs[name].new_zeros([LENGTHS[axis] for axis in free] + list(part.inputs[name].shape[len(free) :]))
            for name, free in part.free.items()
        )
        return torch.export.export(part, examples, dynamic_shapes=(shapes,))

    program = _quietly(name, make)
    used: set[Any] = set()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # which names folders of this machine
        used |= free_symbols(node.meta.get("val"))
    for symbol in program.range_constraints.keys() - used:  # of loops: torch would warn of them at each load
        del program.range_constraints[symbol]
    return program


def write_pt2(program: ExportedProgram, part: Part, about: str, file: Path) -> Run:
    """Writes a `.pt2` file, with the text of `about` as its `about.json`."""
    torch.export.save(program, file, extra_files={"about.json": about})
    return torch.export.load(file).module()


def write_onnx(program: ExportedProgram, part: Part, about: str, file: Path) -> Run:
    """Writes an ONNX file, with the text of `about` in its `metadata_props`."""
    from onnxruntime import InferenceSession

    names, axes = list(part.inputs), tuple(dict(enumerate(free)) for free in part.free.values())
    options: Any = {"input_names": names, "output_names": part.outputs, "dynamic_shapes": (axes,)}
    made = _quietly(f"file {file.name}", lambda: torch.onnx.export(program, dynamo=True, verbose=False, **options))
    made.model.metadata_props["about"] = about
    made.save(str(file), external_data=False)
    session = InferenceSession(str(file))

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, arrays)]

    return run


def write_safetensors(net: nn.Module, about: str, file: Path) -> None:
    """Writes the weights by their names in the net, with the text of `about`, and loads the net from the file."""
    from safetensors.torch import load_file, save

    # tied weights are written twice, because the format has no ties
    weights = {name: value.clone().contiguous() for name, value in net.state_dict().items()}
    file.write_bytes(save(weights, {"about": about}))
    for value in net.state_dict().values():
        value.zero_()
    net.load_state_dict(load_file(file))


def run_in_two_batches(run: Run) -> Run:
    """Computes the first sample alone, and then the others: no size of a batch is that of the trace by chance."""

    def both(*inputs: Tensor) -> Sequence[Tensor]:
        if inputs[0].shape[0] == 1:
            return run(*inputs)
        halves = run(*(value[:1] for value in inputs)), run(*(value[1:] for value in inputs))
        return [torch.cat(pair) for pair in zip(*halves, strict=True)]

    return both
