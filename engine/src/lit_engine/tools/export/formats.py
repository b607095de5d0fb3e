"""Writes a model and its description to files in several formats, and loads the files again to run them."""

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
from lit_engine.checkpoints.weights import with_versions
from lit_engine.errors import UserError
from lit_engine.tools.export.parts import Part, Run

LENGTHS = {"batch": 2, "source": 3, "past": 4}  # lengths of free axes for tracing (the graph accepts any length)


def _call_quietly(what: str, make: Callable[[], Any]) -> Any:
    """Call a torch function, suppressing its output. Recurrent layers are traced for any sequence length.

    Raises:
        UserError: the call failed. The message contains the reason.
    """
    try:
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            stack.enter_context(redirect_stderr(io.StringIO()))  # on failure, torch prints the whole graph
            stack.callback(logging.disable, logging.root.manager.disable)
            logging.disable(logging.WARNING)
            for context in recurrences_as_loops():  # needed by both torch.export and torch.onnx
                stack.enter_context(context)
            return make()
    except Exception as error:  # a user's model can raise any exception
        lines = [line.strip(" -") for line in str(error.__cause__ or error).splitlines() if line.strip()]
        reason = next(
            (line.partition(". If")[0] for line in lines if line.startswith("You marked")), "".join(lines[:1])
        )
        hint = "`--format safetensors` exports only the weights"
        raise UserError(f"the {what} cannot be exported: {reason or type(error).__name__}; {hint}") from error


def trace(name: str, part: Part) -> ExportedProgram:
    """Trace a part into a graph whose free axes may have any length."""
    shapes = tuple(dict.fromkeys(range(len(free)), Dim.DYNAMIC) for free in part.free.values())

    def make() -> ExportedProgram:
        examples = tuple(
            part.inputs[name].new_zeros([LENGTHS[axis] for axis in free] + list(part.inputs[name].shape[len(free) :]))
            for name, free in part.free.items()
        )
        return torch.export.export(part, examples, dynamic_shapes=(shapes,))

    program = _call_quietly(name, make)
    used: set[Any] = set()
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # stack traces contain local paths
        used |= free_symbols(node.meta.get("val"))
    # Loops create unused symbols, which torch would report whenever the file is loaded.
    for symbol in program.range_constraints.keys() - used:
        del program.range_constraints[symbol]
    return program


def write_pt2(program: ExportedProgram, part: Part, about: str, file: Path) -> Run:
    """Write a `.pt2` file that contains `about` as `about.json`, and return a function that runs the file."""
    with warnings.catch_warnings(action="ignore"):  # torch warns if buffers share memory
        # If torch wrote the file itself, a full disk would abort the process.
        torch.export.save(program, content := io.BytesIO(), extra_files={"about.json": about})
    file.write_bytes(content.getvalue())
    return torch.export.load(file).module()


def write_onnx(program: ExportedProgram, part: Part, about: str, file: Path) -> Run:
    """Write an ONNX file that contains `about` in its `metadata_props`, and return a function that runs the file."""
    from onnxruntime import InferenceSession

    names, axes = list(part.inputs), tuple(dict(enumerate(free)) for free in part.free.values())
    options: Any = {"input_names": names, "output_names": part.outputs, "dynamic_shapes": (axes,)}
    made = _call_quietly(f"file {file.name}", lambda: torch.onnx.export(program, dynamo=True, verbose=False, **options))
    made.model.metadata_props["about"] = about
    made.save(str(file), external_data=False)
    session = InferenceSession(str(file))

    def run(*inputs: Tensor) -> list[Tensor]:
        arrays = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
        return [torch.from_numpy(value) for value in session.run(None, arrays)]

    return run


def write_safetensors(net: nn.Module, about: str, file: Path) -> None:
    """Write the network's state dict and `about` to a file, and load the file back into the network."""
    from safetensors.torch import load_file, save

    # Tied weights are written twice, because the format does not support shared tensors.
    weights = {name: value.clone().contiguous() for name, value in net.state_dict().items()}
    file.write_bytes(save(weights, {"about": about}))
    for value in net.state_dict().values():
        value.zero_()
    net.load_state_dict(with_versions(load_file(file), net))


def run_in_two_batches(run: Run) -> Run:
    """Return a function that runs the first sample separately, to test a batch size that was not traced."""

    def both(*inputs: Tensor) -> Sequence[Tensor]:
        if inputs[0].shape[0] == 1:
            return run(*inputs)
        halves = run(*(value[:1] for value in inputs)), run(*(value[1:] for value in inputs))
        return [torch.cat(pair) for pair in zip(*halves, strict=True)]

    return both
