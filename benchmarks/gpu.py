"""The project on a GPU, in one command: equal results, resume, speed, and times to an accuracy.

    python benchmarks/gpu.py                        all parts; writes results/gpu.json
    python benchmarks/gpu.py same resume            these parts; others stay in the file
    python benchmarks/gpu.py --tiny --device cpu    tries out the script; writes to --out alone

- same: the quickstarts without random layers on the device and on the CPU, metrics within a tolerance; then every
  overlay for one device, whose metrics may differ as seeds do.
- resume: a run killed by SIGKILL and resumed, with `deterministic`, against one that nothing interrupted: to the bit.
- speed: epochs of `fit` against loops by hand, the share of the device's matrix product (overlay `profile`).
- mnist, fashion_mnist, multi30k: seconds from the first batch to the end of the validation that reaches a target,
  without start-up and the loading of data. Validation is of 5,000 images, or of the 1,014 sentences.

A part that fails is recorded with its error, and the next one begins; none is begun after nine minutes. Where a
command has ten, take three: `same resume`, `speed mnist`, `fashion_mnist multi30k`.
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
from pathlib import Path
from typing import Any

import torch
from common import DATA, RESULTS, ROOT, EpochClock, machine, terminal
from kills import DIGITS, callbacks, content, differences
from lightning.pytorch import Callback, LightningModule, Trainer

from lit_engine.run.directory import RunDir
from lit_project.__main__ import main as lit_project
from lit_project.data.mnist import FashionMNIST
from lit_project.tasks.classification import ImageClassifier
from plain import Plain

BF16 = ["-c", "configs/overlays/bf16.yaml"]
ON_DEVICE = ["--data.on_device=true"]
PLAIN_DIGITS = ["-c", "configs/quickstart.yaml", "--model.net.dropout=0", "--model.net.head_dropout=0",
                "--data.train_transforms=null", "--trainer.max_epochs=2"]  # fmt: skip
PLAIN_TEXT = ["-c", "configs/translation_quickstart.yaml", "--model.net.dropout=0", "--trainer.max_epochs=1"]
# name → options, monitored metric, how far it may be from the CPU's
SAME: dict[str, tuple[list[str], str, float]] = {
    "quickstart": (PLAIN_DIGITS, "val/loss", 1e-3),
    "quickstart, data on the device": ([*PLAIN_DIGITS, *ON_DEVICE], "val/loss", 1e-3),
    "quickstart, bf16": ([*PLAIN_DIGITS, *BF16], "val/loss", 5e-2),
    "quickstart, compile": ([*PLAIN_DIGITS, "-c", "configs/overlays/compile.yaml"], "val/loss", 1e-3),
    "regression_quickstart": (["-c", "configs/regression_quickstart.yaml", "--model.net.dropout=0"], "val/loss", 1e-3),
    "translation_quickstart": (PLAIN_TEXT, "val/loss", 1e-2),
}
OVERLAYS = ("accumulate", "augment", "cutmix", "early_stopping", "ema", "erasing", "flips", "label_smoothing", "mixup",
            "nan_guard", "no_decay", "swa")  # fmt: skip
BY_HAND = ("fashion_mnist_mlp", "fashion_mnist_cnn", "fashion_mnist_resnet20")
# config, options, metric, its target, and runs
RECORDS: dict[str, tuple[str, list[str], str, float, int]] = {
    "mnist": ("mnist_cnn", ["--data.batch_size=512", "--trainer.max_epochs=6", *ON_DEVICE], "val/accuracy", 0.99, 20),
    "fashion_mnist": ("fashion_mnist_resnet20", ["--data.batch_size=512", *ON_DEVICE], "val/accuracy", 0.94, 3),
    "multi30k": ("multi30k", [], "val/bleu", 38.0, 1),
}


class TimeTo(Callback):
    """Seconds from the first batch of a fit to the end of the validation in which `metric` reaches `target`.

    Ends the training then. `TimeTo.seconds` is of the newest fit; None if it never did.
    """

    seconds: float | None = None

    def __init__(self, metric: str, target: float) -> None:
        self.metric, self.target, self.begin = metric, target, 0.0
        TimeTo.seconds = None

    def on_train_batch_start(self, trainer: Trainer, *args: Any) -> None:
        """Starts the clock."""
        self.begin = self.begin or time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops it."""
        if self.begin and TimeTo.seconds is None and trainer.callback_metrics[self.metric] >= self.target:
            TimeTo.seconds = time.perf_counter() - self.begin
            trainer.should_stop = True


class GPU:
    """The parts, on one device.

    Args:
        device: `gpu`, or `cpu` to try the script out.
        tiny: takes few batches of everything.
        folder: for the runs.
    """

    def __init__(self, device: str, tiny: bool, folder: Path) -> None:
        self.device, self.tiny, self.folder, self.count = device, tiny, folder, 0

    def command(self, options: list[str], name: str, device: str | None = None) -> list[str]:
        """`fit` with these options as the run `name`."""
        where = [f"--trainer.accelerator={device or self.device}", "--trainer.devices=1", f"--runs_dir={self.folder}"]
        few = ["--trainer.limit_train_batches=4", "--trainer.limit_val_batches=2", "--trainer.max_epochs=2",
               "--model.schedulers=null"]  # fmt: skip
        if any("multi30k" in option for option in options):
            few += ["--data.vocabulary_size=80", "--model.net.size=32"]
        if any("tatoeba" in option for option in options):
            few += ["--data.vocabulary_size=80", "--model.net.hidden_size=32", "--model.net.embedding_size=32"]
        if "--data.batch_size=512" in options:  # records of images
            few += ["--data.batch_size=32", "--data.eval_batch_size=32"]
        return ["fit", *options, *where, f"--run_name={name}", "--test_after_fit=false", *(few if self.tiny else [])]

    def fit(self, options: list[str], device: str | None = None) -> RunDir:
        """Trains; raises RuntimeError if the command failed."""
        self.count += 1
        name = f"run{self.count}"
        with terminal():
            status = lit_project(self.command(options, name, device))
        if status:
            raise RuntimeError(f"fit {' '.join(options)} ended with status {status}")
        return RunDir.open(next(self.folder.glob(f"*/{name}")))

    def same(self) -> dict[str, Any]:
        """Metrics on the device beside those on the CPU."""
        torch.backends.cudnn.allow_tf32 = False  # its 10 bits are too few for the tolerance
        found = {}
        for name, (options, metric, tolerance) in SAME.items():
            plain = [*options[:2], *(o for o in options[2:] if "configs/" not in o and o not in ("-c", *ON_DEVICE))]
            on_cpu, here = (self.fit(o, d).metrics()["fit"][metric] for o, d in ((plain, "cpu"), (options, None)))
            fine = abs(here - on_cpu) <= tolerance * abs(on_cpu)
            found[name] = {"cpu": on_cpu, "device": here, "tolerance": tolerance, "same": fine}
        torch.backends.cudnn.allow_tf32 = True
        for overlay in OVERLAYS:
            options = ["-c", "configs/quickstart.yaml", "-c", f"configs/overlays/{overlay}.yaml"]
            found[f"quickstart, {overlay}"] = {"val/accuracy": self.fit(options).metrics()["fit"]["val/accuracy"]}
        return found

    def resume(self) -> dict[str, Any]:
        """A run that was killed beside one that was not."""
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
        while process.poll() is None and len(saves) < 4:  # the first is from before the first step
            time.sleep(0.001)
            if saved.exists():
                saves.add(saved.stat().st_mtime_ns)
        process.kill()
        status = process.wait()
        run("fit", "--run", str(saved.parents[1]))
        different = differences(*(content(self.folder / "quickstart" / name) for name in ("whole", "killed")))
        return {"status of the killed one": status, "different": different[:20], "same": status < 0 and not different}

    def speed(self) -> dict[str, Any]:
        """Seconds of an epoch beside a loop by hand, and the share of a matrix product."""
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
                       "--model.optimizer=torch.optim.Adam", "--trainer.max_epochs=4"]  # fmt: skip
            last = self.fit(options).path / "checkpoints" / "last.ckpt"
            ours = statistics.median(times.wall for times in EpochClock.epochs[1:])
            net = ImageClassifier.load_from_checkpoint(last).net.to(place)
            hand = Plain(net, splits[0], splits[1], 256, None).times(3).wall
            found[name] = {"seconds": ours, "by hand": hand, "ratio": ours / hand}
        for name, options in {
            "mlp": ["-c", "configs/fashion_mnist_mlp.yaml", *ON_DEVICE],
            "cnn": ["-c", "configs/fashion_mnist_cnn.yaml", *BF16, *ON_DEVICE],
            "resnet18": ["-c", "configs/fashion_mnist_resnet18.yaml", *BF16, *ON_DEVICE],
            "gru": ["-c", "configs/tatoeba_eng_fra_full.yaml", *BF16],
            "transformer": ["-c", "configs/multi30k.yaml", *BF16],
        }.items():
            options = [*options, "-c", "configs/overlays/profile.yaml", f"--data.root={DATA}", "--trainer.max_epochs=1"]
            found[f"{name}, profile"] = json.loads((self.fit(options).path / "profile.json").read_text())
        return found

    def record(self, name: str) -> dict[str, Any]:
        """Seconds to a target, of several runs with different seeds."""
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
    """What torch knows of the GPU."""
    if not torch.cuda.is_available():
        return {"name": "no CUDA device"}
    about = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"name": about.name, "bytes": about.total_memory, "multiprocessors": about.multi_processor_count,
            "capability": f"{about.major}.{about.minor}", "driver": driver, "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version()}  # fmt: skip


def main() -> None:
    """Runs the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["same", "resume", "speed", *RECORDS]
    parser.add_argument("parts", nargs="*", default=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--tiny", action="store_true", help="few batches of everything")
    parser.add_argument("--minutes", type=float, default=9, help="no part is begun after these")
    parser.add_argument("--out", type=Path, help="default: results/gpu.json, and none if tiny")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(names):
        parser.error(f"no part {', '.join(sorted(unknown))}: there are {', '.join(names)}")
    out = options.out.resolve() if options.out else None if options.tiny else RESULTS / "gpu.json"
    os.chdir(ROOT)
    begun = time.perf_counter()
    parts = json.loads(out.read_text())["parts"] if out and out.exists() else {}
    failed = False
    for name in options.parts:
        if time.perf_counter() - begun > 60 * options.minutes:
            print(f"{name}: not begun after {options.minutes:g} minutes")
            continue
        with tempfile.TemporaryDirectory() as folder:
            gpu, start = GPU(options.device, options.tiny, Path(folder)), time.perf_counter()
            try:
                found = gpu.record(name) if name in RECORDS else getattr(gpu, name)()
            except Exception as error:
                traceback.print_exc()
                found, failed = {"error": repr(error)}, True
        parts[name] = {**found, "part took": time.perf_counter() - start}
        print(json.dumps({name: parts[name]}, indent=2), flush=True)
        if out:  # at once, for a run that is cut short
            out.write_text(json.dumps({"device": device(), "machine": machine(), "parts": parts}, indent=2) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
