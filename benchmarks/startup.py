"""Measure the start-up time of commands and the memory usage of a fit.

    python benchmarks/startup.py

Each command runs in a separate process, interleaved over several rounds. Ratios are medians over the rounds. CPU
seconds vary less than wall-clock seconds on a shared machine. Targets:

- `fit --help`, and `fit` (784-512-512-10, Fashion-MNIST) until its first step is complete: at most 1.2 times the import
  time of LightningCLI, which every Lightning command line needs (and which imports torchvision if it is installed).
- `--help`, an unknown command, and `runs` and `compare` with 200 runs, which need no torch: at most 1 s.
- `predict`, `test`, `export` and `serve` (until its page is ready and it prints the address), with a run of the
  quickstart: at most 2.0 times the CPU time of `import torch`. For comparison, the table includes the export
  of a single layer with `torch.export`.
- Peak memory of a fit with two epochs: at most 200 MB more than the hand-written loop `plain.py`.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import DATA, ROOT, Times, interleave, ratio, save, show_ratio, table
from lightning.pytorch import Callback

IMPORT = [sys.executable, "-c", "import lightning.pytorch.cli"]
TORCH = [sys.executable, "-c", "import torch"]
EXPORT = [sys.executable, "-c", "import torch; torch.export.export(torch.nn.Linear(1, 1), (torch.ones(2, 1),))"]
PROGRAM = [sys.executable, "-m", "lit_project"]
FIT = [*PROGRAM, "fit", "-c", f"{ROOT}/configs/fashion_mnist_mlp.yaml", f"--data.root={DATA}",
       "--trainer.accelerator=cpu", "--trainer.max_epochs=2", "--test_after_fit=false"]  # fmt: skip
RUNS = 200
# Start the command from a small process, because a child's peak memory is at least its parent's memory.
MEASURE = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""
SERVE = """
import signal, subprocess, sys
with subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE) as server:
    server.stdout.readline()
    server.send_signal(signal.SIGINT)
    server.communicate()
sys.exit(server.returncode)
"""


class LeaveAfterStep(Callback):
    """Callback that exits the process after the first training step."""

    def on_train_batch_end(self, *args: Any) -> None:
        """Exit without cleanup, which is not part of the start-up time."""
        os._exit(0)


def process(command: list[str], peaks: list[float], status: int = 0) -> Times:
    """Return the duration of a command, and append its peak memory in MB to `peaks`.

    Raises:
        RuntimeError: If the command exits with a different status.
    """
    paths = os.pathsep.join([str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], env={**os.environ, "PYTHONPATH": paths},
                          check=True, capture_output=True, text=True)  # fmt: skip
    found, wall, cpu, peak = json.loads(done.stdout)
    if found != status:
        raise RuntimeError(f"{shlex.join(command)} exited with status {found}")
    peaks.append(peak / 1024)  # KiB on Linux
    return Times(wall, cpu)


def many_runs(folder: Path) -> Path:
    """Create runs with different learning rates by copying one run without its checkpoints. Return their folder."""
    process([*PROGRAM, "fit", "-c", f"{ROOT}/configs/quickstart.yaml", "--trainer.max_epochs=10", "--run_name=0",
             "--trainer.limit_train_batches=2", f"--runs_dir={folder}"], [])  # fmt: skip
    first = folder / "quickstart" / "0"
    texts = {path.name: path.read_text() for path in first.iterdir() if path.suffix in (".yaml", ".csv", ".json")}
    for number in range(1, RUNS):
        (first.parent / str(number)).mkdir()
        for name, text in texts.items():
            (first.parent / str(number) / name).write_text(text.replace("lr: 0.0", f"lr: 0.0{number}"))
    return folder


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = str(many_runs(Path(folder) / "runs"))
        run = f"{runs}/quickstart/0"
        fit = [*FIT, f"--runs_dir={folder}"]
        # Command and exit status by title.
        commands: dict[str, tuple[list[str], int]] = {
            "import lightning.pytorch.cli": (IMPORT, 0),
            "lit-project fit --help": ([*PROGRAM, "fit", "--help"], 0),
            "lit-project fit, to its first step": ([*fit, "--trainer.callbacks+=startup.LeaveAfterStep"], 0),
            "import torch": (TORCH, 0),
            "torch.export of a layer": (EXPORT, 0),
            "lit-project predict": ([*PROGRAM, "predict", run], 0),
            "lit-project test": ([*PROGRAM, "test", run], 0),
            "lit-project export": ([*PROGRAM, "export", run], 0),
            "lit-project serve": ([sys.executable, "-c", SERVE, *PROGRAM, "serve", run, "--port=0"], 0),
            "lit-project --help": ([*PROGRAM, "--help"], 0),
            "lit-project fitt": ([*PROGRAM, "fitt"], 2),
            f"lit-project runs, of {RUNS}": ([*PROGRAM, "runs", runs], 0),
            f"lit-project compare, of {RUNS}": ([*PROGRAM, "compare", runs], 0),
            "two epochs by hand": ([sys.executable, f"{ROOT}/benchmarks/plain.py"], 0),
            "two epochs of lit-project fit": (fit, 0),
        }
        peaks: dict[str, list[float]] = {name: [] for name in commands}
        variants: dict[str, Callable[[], Times]] = {
            name: partial(process, command, peaks[name], status) for name, (command, status) in commands.items()
        }
        for name in list(variants)[:-2]:
            variants[name]()  # warms up the disk cache
        times = interleave(variants, options.rounds)
    base = times["import lightning.pytorch.cli"]
    result, rows = {}, []
    for name, values in times.items():
        ratios = {clock: ratio(values, base, clock) for clock in ("wall", "cpu")}
        of_torch = ratio(values, times["import torch"], "cpu")
        seconds, cpu_seconds = [t.wall for t in values], [t.cpu for t in values]
        peak = statistics.median(peaks[name])
        result[name] = {"seconds": seconds, "CPU seconds": cpu_seconds, "of the import": ratios, "of torch": of_torch,
                        "peak MB": peak}  # fmt: skip
        medians = [f"{statistics.median(seconds):.2f}", f"{statistics.median(cpu_seconds):.2f}"]
        shown = [show_ratio(one) for one in (ratios["wall"], ratios["cpu"], of_torch)]
        rows.append([name, *medians, *shown, f"{peak:.0f}"])
    header = ["", "seconds", "CPU seconds", "of the import", "of the import, CPU", "of import torch, CPU", "peak MB"]
    table("Start-up and memory", header, rows)
    save("startup", {"rounds": options.rounds, **result})


if __name__ == "__main__":
    main()
