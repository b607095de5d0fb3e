"""Train small runs of every kind and print hashes of their results, which a refactoring must not change.

    python benchmarks/golden.py --out before.json           before a change; a few minutes
    python benchmarks/golden.py --against before.json       after the change; exit status 1 if a hash differs
    python benchmarks/golden.py --runs quickstart table     only these runs

Each run is trained four times: uninterrupted; stopped by SIGTERM in the middle of an epoch and resumed; with gradients
accumulated over two batches; and on two processes. Hashes are SHA-256 sums of the best weights, the latest weights, the
optimizer and scheduler state, metrics.csv and metrics.json without timings, and the predictions for the test split.
The resumed run must match the uninterrupted run. Hashes depend on the processor and on the versions of the libraries,
so only compare hashes from the same machine.

The script works on a copy of the files that git tracks, and uses only the command line and the files of a run, so that
it runs unchanged before and after modules are moved. It needs the official Fashion-MNIST archives in data/.
"""

import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
TIMINGS = ("seconds", "_per_second")
KINDS = ("classification", "multilabel", "segmentation", "table", "sequence", "pretrained_sequence")
SHORT = ["--trainer.max_epochs=2", "--trainer.log_every_n_steps=2"]
TEXT = ["--data.size=400", "--data.val_size=40", "--data.test_size=40", *SHORT]
# Config and `fit` options of each run.
RUNS = {
    "quickstart": ["quickstart", *SHORT],
    "fashion_mnist_mlp": ["fashion_mnist_mlp", *SHORT, "--trainer.limit_train_batches=12",
                          "--trainer.limit_val_batches=4", "--trainer.limit_test_batches=4",
                          "--trainer.limit_predict_batches=4"],
    "image_folder": ["image_folder", *SHORT, "--data.num_workers=2", "--data.batch_size=8"],
    "regression": ["regression_quickstart", *SHORT],
    "translation": ["translation_quickstart", *TEXT],
    "two_optimizers": ["translation_two_optimizers", *TEXT],
    **{kind: [f"golden_{kind}", *SHORT] for kind in KINDS},
}  # fmt: skip
TWO_PROCESSES = ["--trainer.accelerator=cpu", "--trainer.devices=2", "--trainer.strategy=ddp"]
STOP = '''
import os, signal
from lightning.pytorch.callbacks import Callback

class StopAfter(Callback):
    """Sends SIGTERM to this process after the given optimizer step."""

    def __init__(self, step: int) -> None:
        self.step, self.sent = step, False

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.global_step == self.step and not self.sent:
            self.sent = True
            os.kill(os.getpid(), signal.SIGTERM)
'''


def copy_project(folder: Path) -> Path:
    """Copy the files that git tracks, add a task of each kind, and return the copy's path."""
    copy = folder / "project"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy / name)
    (copy / "data").symlink_to(ROOT / "data")
    for kind in KINDS:
        command = [sys.executable, "scripts/new_task.py", f"golden_{kind}", "--kind", kind]
        subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
    return copy


def write_images(folder: Path, count: int = 120) -> None:
    """Write `images/` with `count` images in two classes."""
    draw = random.Random(0)
    for number in range(count):
        file = folder / "images" / ("dark", "bright")[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        colour = draw.randrange(100) + 100 * (number % 2)
        Image.new("RGB", (20, 20), (colour, draw.randrange(256), draw.randrange(256))).save(file)


def lit_project(*args: str, expect: tuple[int, ...] = (0,)) -> None:
    """Run a command of the copied project in the current folder. Raise RuntimeError with its output on failure."""
    done = subprocess.run([sys.executable, "-m", "lit_project", *args], capture_output=True, text=True)
    if done.returncode not in expect:
        raise RuntimeError(f"lit-project {' '.join(args)}: status {done.returncode}\n{done.stdout}\n{done.stderr}")


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors, numbers and strings of nested mappings and lists with their paths, except timings."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not str(key).endswith(TIMINGS):
                yield from leaves(item, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}/{place}")
    else:
        yield path, value


def digest(value: Any) -> str:
    """Return the SHA-256 hash of nested tensors, numbers and strings, independent of the order of mapping keys."""
    found = hashlib.sha256()
    for path, leaf in sorted(leaves(value), key=lambda item: item[0]):
        found.update(path.encode())
        if isinstance(leaf, torch.Tensor):
            tensor = leaf.detach().cpu().contiguous()
            found.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
        else:
            found.update(repr(leaf).encode())
    return found.hexdigest()


def results(run: Path, folder: Path) -> dict[str, str]:
    """Return the hash of each result of a run. In predictions, `folder` is removed from the paths of images."""
    last = torch.load(run / "checkpoints" / "last.ckpt", map_location="cpu", weights_only=True)
    best = max((run / "checkpoints").glob("best*.ckpt"), default=run / "checkpoints" / "last.ckpt")
    with (run / "metrics.csv").open(newline="") as file:
        rows = [dict(sorted(row.items())) for row in csv.DictReader(file)]
    metrics = json.loads((run / "metrics.json").read_text())
    metrics["test"].pop("checkpoint", None)
    table = (run / "predictions" / "test.csv").read_bytes()
    return {
        "best weights": digest(torch.load(best, map_location="cpu", weights_only=True)["state_dict"]),
        "last weights": digest(last["state_dict"]),
        "optimizer": digest([last["optimizer_states"], last["lr_schedulers"]]),
        "metrics.csv": digest(rows),
        "metrics.json": digest(metrics),
        "predictions": hashlib.sha256(table.replace(str(folder).encode(), b"")).hexdigest(),
    }


def train(name: str, copy: Path, folder: Path) -> dict[str, dict[str, str]]:
    """Train one run in all four variants. Return the hash of each result by variant."""
    config, *options = RUNS[name]
    config = f"{copy}/configs/{config}.yaml"
    if name == "image_folder":
        options.append(f"--data.root={folder}/images")
    elif name == "fashion_mnist_mlp":
        options.append(f"--data.root={ROOT}/data")
    accumulate = "--model.accumulate=2" if name == "two_optimizers" else "--trainer.accumulate_grad_batches=2"
    ways = {
        "uninterrupted": [],
        "resumed": ["--trainer.callbacks+={class_path: golden_stop.StopAfter, init_args: {step: 8}}"],
        "accumulated": [accumulate],
        "two processes": TWO_PROCESSES,
    }
    found = {}
    for way, more in ways.items():
        run = folder / "runs" / Path(config).stem / f"{name}-{way.replace(' ', '-')}"
        expect = (143,) if way == "resumed" else (0,)
        lit_project("fit", "-c", config, *options, *more, f"--run_name={run.name}", expect=expect)
        if way == "resumed":
            lit_project("fit", "--run", str(run))
        lit_project("predict", "--run", str(run), *(["--trainer.devices=1"] if way == "two processes" else []))
        found[way] = results(run, folder)
        print(f"{name:20} {way:14} {' '.join(f'{key} {value[:8]}' for key, value in found[way].items())}", flush=True)
    return found


def main() -> int:
    """Train the runs, then print and compare the hashes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path, help="write the hashes to this JSON file")
    parser.add_argument("--against", type=Path, help="compare with the hashes in this JSON file")
    options = parser.parse_args()
    out, against = (file and file.resolve() for file in (options.out, options.against))
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        folder = Path(name)
        copy = copy_project(folder)
        write_images(folder)
        (folder / "golden_stop.py").write_text(STOP)
        os.chdir(folder)
        paths = [str(copy / "src"), str(copy / "engine" / "src"), str(folder)]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            trained = pool.map(lambda run: train(run, copy, folder), options.runs)
            found = dict(zip(options.runs, trained, strict=True))
    wrong = [
        f"{run}: resumed and uninterrupted differ in {key}"
        for run, ways in found.items()
        for key, value in ways["uninterrupted"].items()
        if ways["resumed"][key] != value
    ]
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")
    if against:
        expected = json.loads(against.read_text())
        wrong += [
            f"{run}, {way}: {key} differs"
            for run, ways in found.items()
            for way, hashes in ways.items()
            for key, value in hashes.items()
            if expected[run][way][key] != value
        ]
    print("\n".join(wrong) or "all hashes agree")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
