"""Exports a trained model to files that run without this project, and compares their outputs with `predict`.

%(prog)s runs/quickstart/first                                   write a .pt2 file, which needs only torch
%(prog)s runs/quickstart/first --format onnx,safetensors         write an ONNX file (needs no torch) and the weights
"""

import argparse
import os
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lit_engine.cli.arguments import OptionParser, expanded_path
from lit_engine.errors import UserError, did_you_mean
from lit_engine.run.directory import RunDir
from lit_engine.tools.output import HELP, json_document

NEEDS = {"pt2": (), "onnx": ("onnx", "onnxscript", "onnxruntime"), "safetensors": ("safetensors",)}


def option_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `export`."""
    parser = OptionParser("export", __doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "run", nargs="?", default=argparse.SUPPRESS, metavar="RUN", help="run whose checkpoint is exported"
    )
    source.add_argument("--run", metavar="RUN", help="alternative to the positional RUN")
    parser.add_argument("--ckpt_path", default="best", metavar="best|last|average|PATH", help="default: best")
    parser.add_argument("--format", default="pt2", metavar="LIST", help=f"any of {','.join(NEEDS)} (default: pt2)")
    parser.add_argument("--json", action="store_true", help=HELP)
    where = "default: RUN/export. Existing files are replaced"
    parser.add_argument("--output", type=expanded_path, metavar="DIR", help=where)
    return parser


def export(args: Sequence[str]) -> int:
    """Run the command and return its exit status.

    Raises:
        UserError: an option is invalid, or packages, weights or data are missing. Also raised if the model cannot be
            exported, or if the outputs of an exported file do not match `predict`. In all of these cases, no file is
            written.
    """
    options = option_parser().parse_args(args)
    formats = list(dict.fromkeys(options.format.split(",")))
    for name in formats:
        if name not in NEEDS:
            others = f"; choose from {', '.join(NEEDS)}"
            raise UserError(f"--format: no format {name!r}{did_you_mean(name, NEEDS, others)}")
        if None in map(find_spec, NEEDS[name]):
            raise UserError(f"--format {name} needs more packages: pip install {' '.join(NEEDS[name])}")
    with json_document(options.json) as document:
        document.update(_export(options, formats))
    return 0


def _export(options: argparse.Namespace, formats: list[str]) -> dict[str, Any]:
    """Write the files and return the paths of the run, the checkpoint and the files."""
    from lit_engine.checkpoints.choose import choose_checkpoint
    from lit_engine.tools.export.files import Exporter

    run = RunDir.open(options.run)
    checkpoint = choose_checkpoint(run, options.ckpt_path)
    print(f"checkpoint: {checkpoint}")
    exporter = Exporter(run, checkpoint)
    folder = options.output or run.path / "export"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UserError(f"{folder}: {error.strerror}") from error
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as scratch:
        notes = exporter.write(formats, Path(scratch))
        lines: list[str] = []
        for name, note in notes.items():
            file = folder / name
            replaced = "; replaces an earlier one" if file.exists() else ""
            os.replace(Path(scratch, name), file)
            lines.append(f"{file}: {file.stat().st_size / 1000:,.1f} kB{note}{replaced}")
    print("\n".join(lines))  # after all files are in place, because printing fails if the pipe is closed
    return {"run": run.path, "checkpoint": checkpoint, "files": [folder / name for name in notes]}
