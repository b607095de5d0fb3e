"""Check results and resumed runs on a GPU, and measure speed and time to a target score, with a single command.

    python benchmarks/gpu.py                        run all parts; writes results/gpu.json
    python benchmarks/gpu.py same resume            run only these parts; the file keeps the results of the others
    python benchmarks/gpu.py --tiny --device cpu    try out the script; writes only to --out

- same: trains the quickstarts without dropout or augmentation on the device and on the CPU, in double precision if
  possible, so that rounding does not matter. The metrics must agree. Most other overlays run only on the device.
- resume: compares an uninterrupted run with a run that was killed with SIGKILL and resumed. Both use `deterministic`
  and must be equal bit for bit.
- waits: counts the operations in training steps that make the CPU wait for the device. There should be none.
- speed: compares the epoch times of `fit` and hand-written loops, and measures the utilization (overlay `profile`).
- mnist, fashion_mnist, multi30k: seconds from the first batch to the end of the validation that reaches a target,
  excluding start-up and data loading. Validation uses 2,000 (MNIST) or 5,000 images, or 1,014 sentences.

If a part fails, its error is recorded and the next part starts. No part starts after nine minutes. If a command
may take at most ten minutes, run three commands: `same resume waits`, `speed mnist`, `fashion_mnist multi30k`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, ClassVar

import torch
from common import DATA, RESULTS, ROOT, EpochClock, Times, machine, terminal
from kills import DIGITS, callbacks, content, differences
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_engine.project import use
from lit_engine.run.directory import RunDir
from lit_project.__main__ import PROJECT
from lit_project.__main__ import main as lit_project
from lit_project.data.mnist import FashionMNIST
from lit_project.tasks.classification import ImageClassifier
from plain import Plain

BF16 = ["-c", "configs/overlays/bf16.yaml"]
DOUBLE = ["--trainer.precision=64-true"]
ON_DEVICE = ["--data.on_device=true"]
PLAIN_DIGITS = ["-c", "configs/quickstart.yaml", "--model.net.dropout=0", "--model.net.head_dropout=0",
                "--data.train_transforms=null", "--trainer.max_epochs=2"]  # fmt: skip
PLAIN_TEXT = ["-c", "configs/translation_quickstart.yaml", "--model.net.dropout=0", "--trainer.max_epochs=1"]
# Options, monitored metric, and relative tolerance for its difference from the value on the CPU.
SAME: dict[str, tuple[list[str], str, float]] = {
    "quickstart": ([*PLAIN_DIGITS, *DOUBLE], "val/loss", 1e-5),
    "quickstart, data on the device": ([*PLAIN_DIGITS, *DOUBLE, *ON_DEVICE], "val/loss", 1e-5),
    "quickstart, bf16": ([*PLAIN_DIGITS, *BF16], "val/loss", 5e-2),
    "quickstart, compile": ([*PLAIN_DIGITS, *DOUBLE, "-c", "configs/overlays/compile.yaml"], "val/loss", 1e-5),
    "regression_quickstart": (
        ["-c", "configs/regression_quickstart.yaml", "--model.net.dropout=0", *DOUBLE], "val/loss", 1e-5,
    ),
    "translation_quickstart": ([*PLAIN_TEXT, *DOUBLE], "val/loss", 1e-5),
}  # fmt: skip
# Options of the runs in which waits are counted.
TRANSFORMER = ["--model.net=TransformerSeq2Seq", "--model.net.size=64"]
WAITS: dict[str, list[str]] = {
    "quickstart, mixup, ema": [*PLAIN_DIGITS[:2], "-c", "configs/overlays/mixup.yaml",
                               "-c", "configs/overlays/ema.yaml"],
    "regression_quickstart, accumulate": ["-c", "configs/regression_quickstart.yaml",
                                          "--trainer.accumulate_grad_batches=2"],
    "translation_quickstart, bf16": ["-c", "configs/translation_quickstart.yaml", *BF16],
    "translation_quickstart, Transformer": ["-c", "configs/translation_quickstart.yaml", *TRANSFORMER],
    "fashion_mnist_resnet20, data on the device": ["-c", "configs/fashion_mnist_resnet20.yaml", f"--data.root={DATA}",
                                                   "--data.batch_size=32", *ON_DEVICE],
}  # fmt: skip
OVERLAYS = ("accumulate", "augment", "cutmix", "early_stopping", "ema", "erasing", "flips", "label_smoothing", "mixup",
            "nan_guard", "no_decay", "swa")  # fmt: skip
BY_HAND = ("fashion_mnist_mlp", "fashion_mnist_cnn", "fashion_mnist_resnet20")
# Config, options, metric, its target, and number of runs.
RECORDS: dict[str, tuple[str, list[str], str, float, int]] = {
    "mnist": ("mnist_cnn", ["--data.batch_size=512", "--trainer.max_epochs=6", *ON_DEVICE], "val/accuracy", 0.99, 20),
    "fashion_mnist": ("fashion_mnist_resnet20", ["--data.batch_size=512", *ON_DEVICE], "val/accuracy", 0.94, 3),
    "multi30k": ("multi30k", [], "val/bleu", 38.0, 1),
}


class TimeTo(Callback):
    """Callback that times a fit from its first batch to the end of the validation in which `metric` reaches `target`.

    Training stops then. `TimeTo.seconds` is the result of the latest fit, or None if the target was not reached.
    """

    seconds: float | None = None

    def __init__(self, metric: str, target: float) -> None:
        self.metric, self.target, self.begin = metric, target, 0.0
        TimeTo.seconds = None

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Start the clock."""
        self.begin = self.begin or time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock and end training once the target is reached."""
        if self.begin and TimeTo.seconds is None and trainer.callback_metrics[self.metric] >= self.target:
            TimeTo.seconds = time.perf_counter() - self.begin
            trainer.should_stop = True


class Waits(Callback):
    """Callback that records where the CPU waits for CUDA in the third and fourth batch, in `Waits.places`."""

    places: ClassVar[list[str]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, i: int
    ) -> None:
        """Start recording after the second batch, and stop after the fourth."""
        if i == 1:
            self.caught = warnings.catch_warnings(record=True)
            self.warned = self.caught.__enter__()
            warnings.simplefilter("always")
            watch_waits(True)
        elif i == 3:
            watch_waits(False)
            self.caught.__exit__(None, None, None)
            waits = [one for one in self.warned or [] if "synchronizing CUDA operation" in str(one.message)]
            Waits.places = [f"{one.filename}:{one.lineno}" for one in waits]


def watch_waits(on: bool) -> None:
    """Turn warnings about operations that wait for CUDA on or off."""
    if torch.cuda.is_available():
        torch.cuda.set_sync_debug_mode("warn" if on else "default")


class GPU:
    """The parts of the benchmark, which run on one device.

    Args:
        device: `gpu`, or `cpu` to try out the script.
        tiny: Whether to use only a few batches.
        folder: Folder for the runs.
    """

    def __init__(self, device: str, tiny: bool, folder: Path) -> None:
        self.device, self.tiny, self.folder, self.count = device, tiny, folder, 0

    def command(self, options: list[str], name: str, device: str | None = None) -> list[str]:
        """Return the `fit` arguments for a run called `name` with these options."""
        where = [f"--trainer.accelerator={device or self.device}", "--trainer.devices=1", f"--runs_dir={self.folder}"]
        few = ["--trainer.limit_train_batches=4", "--trainer.limit_val_batches=2", "--trainer.max_epochs=2",
               "--model.schedulers=null"]  # fmt: skip
        if any("multi30k" in option for option in options):
            few += ["--data.vocabulary_size=80", "--model.net.size=32"]
        if any("tatoeba" in option for option in options):
            few += ["--data.vocabulary_size=80", "--model.net.hidden_size=32", "--model.net.embedding_size=32"]
        if "--data.batch_size=512" in options:  # mnist and fashion_mnist
            few += ["--data.batch_size=32", "--data.eval_batch_size=32"]
        return ["fit", *options, *where, f"--run_name={name}", "--test_after_fit=false", *(few if self.tiny else [])]

    def fit(self, options: list[str], device: str | None = None) -> RunDir:
        """Train a run. Raise RuntimeError if the command fails."""
        self.count += 1
        name = f"run{self.count}"
        with terminal():
            status = lit_project(self.command(options, name, device))
        if status:
            raise RuntimeError(f"fit {' '.join(options)} exited with status {status}")
        return RunDir.open(next(self.folder.glob(f"*/{name}")))

    def same(self) -> dict[str, Any]:
        """Compare metrics on the device and on the CPU."""
        found = {}
        for name, (options, metric, tolerance) in SAME.items():
            plain = [*options[:2], *(o for o in options[2:] if "configs/" not in o and o not in ("-c", *ON_DEVICE))]
            on_cpu, here = (self.fit(o, d).metrics()["fit"][metric] for o, d in ((plain, "cpu"), (options, None)))
            fine = abs(here - on_cpu) <= tolerance * abs(on_cpu)
            found[name] = {"cpu": on_cpu, "device": here, "tolerance": tolerance, "same": fine}
        for overlay in OVERLAYS:
            options = ["-c", "configs/quickstart.yaml", "-c", f"configs/overlays/{overlay}.yaml"]
            found[f"quickstart, {overlay}"] = {"val/accuracy": self.fit(options).metrics()["fit"]["val/accuracy"]}
        return found

    def resume(self) -> dict[str, Any]:
        """Compare a killed and resumed run to an uninterrupted run."""
        fast = ["--data.num_workers=0", "--trainer.deterministic=true"]
        options = [*DIGITS, *fast, *callbacks(every_minutes=None, every_n_steps=2), "--trainer.max_epochs=6"]
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        start = [sys.executable, "-m", "lit_project"]

        def run(*words: str) -> None:
            subprocess.run([*start, *words], env=environment, check=True, stdout=subprocess.DEVNULL, timeout=200)

        run(*self.command(options, "whole"))
        process = subprocess.Popen([*start, *self.command(options, "killed")], env=environment, stdout=-3)
        saved = self.folder / "quickstart" / "killed" / "checkpoints" / "last.ckpt"
        saves: set[int] = set()
        while process.poll() is None and len(saves) < 4:  # the first checkpoint is saved before the first step
            time.sleep(0.001)
            if saved.exists():
                saves.add(saved.stat().st_mtime_ns)
        process.kill()
        status = process.wait()
        run("fit", "--run", str(saved.parents[1]))
        different = differences(*(content(self.folder / "quickstart" / name) for name in ("whole", "killed")))
        return {"status of the killed one": status, "different": different[:20], "same": status < 0 and not different}

    def waits(self) -> dict[str, Any]:
        """Count the waits for the device in two batches of each kind of run."""
        found: dict[str, Any] = {}
        for name, options in WAITS.items():
            watched = [*options, "--trainer.max_epochs=1", "--trainer.limit_train_batches=9", "--model.schedulers=null"]
            Waits.places = ["not measured"]
            self.fit([*watched, '--trainer.callbacks+={"class_path": "gpu.Waits"}'])
            places = sys.modules["gpu"].Waits.places
            found[name] = {"waits in two batches": len(places), "places": places}
        return found

    def speed(self) -> dict[str, Any]:
        """Compare seconds per epoch to a hand-written loop, and measure the utilization with the `profile` overlay."""
        data = FashionMNIST(root=DATA)
        data.prepare_data()
        data.setup("fit")
        place = torch.device("cuda" if self.device == "gpu" else "cpu")
        splits = [tuple(t[: 512 if self.tiny else None].to(place) for t in data.splits[s]) for s in ("train", "val")]
        data_options = [f"--data.root={DATA}", "--data.batch_size=256", "--data.train_transforms=null"]
        clock = f"--trainer.callbacks+={json.dumps({'class_path': 'common.EpochClock'})}"
        found: dict[str, Any] = {}
        for name in BY_HAND:
            options = ["-c", f"configs/{name}.yaml", *data_options, *ON_DEVICE, clock,
                       "--model.optimizer=torch.optim.Adam", "--model.optimizer.lr=0.001",
                       "--model.optimizer.weight_decay=0", "--model.optimizer.fused=true",
                       "--trainer.max_epochs=4"]  # fmt: skip
            last = self.fit(options).path / "checkpoints" / "last.ckpt"
            ours = Times.mean(EpochClock.epochs[1:]).wall
            net = ImageClassifier.load_from_checkpoint(last).net.to(place)
            hand = Plain(net, splits[0], splits[1], 256, None, fused=True).times(3).wall
            found[name] = {"seconds": ours, "by hand": hand, "ratio": ours / hand}
        for name, options in {
            "mlp": ["-c", "configs/fashion_mnist_mlp.yaml", *ON_DEVICE],
            "cnn": ["-c", "configs/fashion_mnist_cnn.yaml", *BF16, *ON_DEVICE],
            "resnet18": ["-c", "configs/fashion_mnist_resnet18.yaml", *BF16, *ON_DEVICE],
            "gru": ["-c", "configs/tatoeba_fra_eng.yaml", *BF16],
            "transformer": ["-c", "configs/multi30k.yaml", *BF16],
        }.items():
            options = [*options, "-c", "configs/overlays/profile.yaml", f"--data.root={DATA}", "--trainer.max_epochs=1"]
            found[f"{name}, profile"] = json.loads((self.fit(options).path / "profile.json").read_text())
        return found

    def record(self, name: str) -> dict[str, Any]:
        """Measure the seconds until a target is reached, in several runs with different seeds."""
        config, options, metric, target, runs = RECORDS[name]
        clock = json.dumps({"class_path": "gpu.TimeTo", "init_args": {"metric": metric, "target": target}})
        seconds = []
        for seed in range(1, (1 if self.tiny else runs) + 1):
            more = [f"--data.root={DATA}", f"--seed_everything={seed}", f"--trainer.callbacks+={clock}"]
            self.fit(["-c", f"configs/{config}.yaml", *BF16, *options, *more])
            seconds.append(sys.modules["gpu"].TimeTo.seconds)
        reached = [value for value in seconds if value is not None]
        median = statistics.median(reached) if reached else None
        return {"target": target, "seconds": seconds, "median": median, "reached": f"{len(reached)} of {len(seconds)}"}


def device() -> dict[str, Any]:
    """Return the GPU's properties and the versions of its software."""
    if not torch.cuda.is_available():
        return {"name": "no CUDA device"}
    about = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"name": about.name, "bytes": about.total_memory, "multiprocessors": about.multi_processor_count,
            "capability": f"{about.major}.{about.minor}", "driver": driver, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version()}  # fmt: skip


def main() -> None:
    """Run the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["same", "resume", "waits", "speed", *RECORDS]
    parser.add_argument("parts", nargs="*", default=names, metavar="PART", help=f"parts, from {', '.join(names)}")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--tiny", action="store_true", help="use only a few batches")
    parser.add_argument("--minutes", type=float, default=9, help="start no part after this time")
    parser.add_argument("--out", type=Path, help="output file; default: results/gpu.json, or none with --tiny")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(names):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(names)}")
    out = options.out.resolve() if options.out else None if options.tiny else RESULTS / "gpu.json"
    os.chdir(ROOT)
    use(PROJECT)  # in case it is not installed
    begun = time.perf_counter()
    parts = json.loads(out.read_text())["parts"] if out and out.exists() else {}
    failed = False
    for name in options.parts:
        if time.perf_counter() - begun > 60 * options.minutes:
            print(f"{name}: not started after {options.minutes:g} minutes")
            continue
        with tempfile.TemporaryDirectory() as folder:
            gpu, start = GPU(options.device, options.tiny, Path(folder)), time.perf_counter()
            try:
                found = gpu.record(name) if name in RECORDS else getattr(gpu, name)()
            except Exception as error:
                traceback.print_exc()
                found, failed = {"error": repr(error)}, True
        parts[name] = {**found, "part took": time.perf_counter() - start, "date": machine()["date"]}
        print(json.dumps({name: parts[name]}, indent=2), flush=True)
        if out:  # after each part, in case the script is interrupted
            out.write_text(json.dumps({"device": device(), "machine": machine(), "parts": parts}, indent=2) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
