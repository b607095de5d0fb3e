"""Exports a run to files, and checks that they reproduce the output of `predict` on the first batches."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lit_engine.errors import UserError
from lit_engine.load import load_for_prediction
from lit_engine.project import current
from lit_engine.run.directory import RunDir
from lit_engine.tools.export.formats import run_in_two_batches, trace, write_onnx, write_pt2, write_safetensors
from lit_engine.tools.export.parts import Exported, Run, export_forward, get_example_inputs
from lit_engine.training.task import Task

WRITERS = {"pt2": write_pt2, "onnx": write_onnx}
TOLERANCE = 1e-4  # allowed difference from `predict`. Float32 rounding errors are smaller.


class Exporter:
    """An exporter that writes a run's model to files and compares their outputs with `predict` on the first batches.

    Args:
        run: the run, which is not modified.
        checkpoint: file with the run's weights.

    Raises:
        UserError: the weights or the data are missing.
    """

    def __init__(self, run: RunDir, checkpoint: Path) -> None:
        self.run, self.checkpoint = run, checkpoint
        # With these trainer settings, `predict` returns the same results as the exported files.
        settings = {"accelerator": "cpu", "precision": "32-true", "limit_predict_batches": 2, "inference_mode": False}
        self.task, data, trainer = load_for_prediction(run, checkpoint, **settings)
        self.preparation: dict[str, Any] = getattr(data, "describe_preparation", dict)()
        if isinstance(self.task, Task):
            self.task.channels_last = False  # torch.export warns about this memory format
        # Without an `exported` method, files are compared with `forward`, so `predict_step` is not needed.
        self.has_exported = hasattr(self.task, "exported")
        predict: Any = self.task.predict_step if self.has_exported else lambda *_: {}
        self.seen: list[tuple[Any, dict[str, list[Any]]]] = []  # (batch, output of `predict_step`)

        def predict_step(batch: Any, *args: Any) -> Any:
            self.seen.append((batch, predict(batch, *args)))
            return self.seen[-1][1]

        self.task.predict_step = predict_step  # type: ignore[method-assign]
        if not self.has_exported and self.task.example_input_array is not None:
            self.seen.append((None, {}))  # no batch is needed, so the data may lack a test split
        else:
            trainer.predict(self.task, data, return_predictions=False)
        self.task.eval()

    @torch.no_grad()
    def write(self, formats: Sequence[str], folder: Path) -> dict[str, str]:
        """Write all files to a folder and return a note about each file.

        Raises:
            UserError: the model cannot be exported, or the outputs of an exported file do not match `predict`.
        """
        task: Any = self.task
        make = task.exported if self.has_exported else partial(export_forward, task)
        made: Exported = make(self.seen[0][0])
        about = {
            "task": type(task).__name__,
            "run": self.run.name,
            "checkpoint": self.checkpoint.name,
            **({"preparation": self.preparation} if self.preparation else {}),
            **made.about,
            **{name: task.hparams[name] for name in current().links.values() if name in task.hparams},  # from the data
            "files": {name: part.describe() for name, part in made.parts.items()},
            **({"net": task.hparams["net"]} if "net" in task.hparams else {}),
        }
        text = json.dumps(about, indent=2, ensure_ascii=False, default=str) + "\n"
        notes: dict[str, str] = {}
        if set(formats) & set(WRITERS):
            programs = {name: trace(name, part) for name, part in made.parts.items()}
        for format in formats:
            if format == "safetensors":
                net = getattr(task, "net", task)
                if not isinstance(task, Task) or len([*net.parameters()]) < len([*task.parameters()]):
                    net = task  # it may have weights outside `net`, such as a head
                write_safetensors(net, text, folder / "model.safetensors")
                runs, files = dict(make(self.seen[0][0]).parts), ["model.safetensors"]
            else:
                files = [f"{name}.{format}" for name in made.parts]
                parts = zip(programs.items(), made.parts.values(), files, strict=True)
                runs = {name: WRITERS[format](p, part, text, folder / file) for (name, p), part, file in parts}
                if self.has_exported:
                    runs = {name: run_in_two_batches(run) for name, run in runs.items()}
            notes |= dict.fromkeys(files, self._compare(made, runs, format))
        for name, content in {"model.json": text, **(made.with_onnx if "onnx" in formats else {})}.items():
            (folder / name).write_text(content, encoding="utf-8")
            notes[name] = ""
        return notes

    def _samples(self) -> int:
        if self.has_exported:
            return sum(len({*rows["index"]}) for _, rows in self.seen)
        return sum(len(next(iter(get_example_inputs(self.task, batch).values()))) for batch, _ in self.seen)

    def _compare(self, made: Exported, runs: Mapping[str, Run], format: str) -> str:
        try:
            found = torch.tensor([made.difference(runs, batch, rows) for batch, rows in self.seen])
        except AssertionError as error:
            why = str(error).partition("\n")[0]
            raise UserError(
                f"{format}: the file rejects a batch, because the shapes of inputs may differ only in the number of "
                f"samples ({why}). If you will only use inputs of one shape, set example_input_array"
            ) from error
        compared = "`predict`" if self.has_exported else "`forward`"
        what = f"differs from {compared} by at most {found.max():.1g} ({made.unit}; {self._samples()} samples)"
        if not found.max() <= TOLERANCE:  # also true for NaN
            is_random = not self.has_exported and not made.difference(made.parts, *self.seen[0]) <= TOLERANCE
            why = ", because `forward` draws random numbers: move the sampling to another method" if is_random else ""
            raise UserError(f"{format}: {what}{why}; no file was written")
        if steps := self.preparation.get("eval_transforms"):
            what += f"; not included: {', '.join(steps)}"
        return f", {what}"
