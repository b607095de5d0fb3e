"""Time of commands up to what they are asked for, and memory of a fit.

    python benchmarks/startup.py

Each is a process of its own, in turns; ratios are medians of those of the rounds. CPU seconds are those of the process;
they vary less than seconds on a machine that others use too.

- `fit --help`, and `fit` (784-512-512-10, Fashion-MNIST) up to the end of its first step: at most 1.2 times importing
  LightningCLI, which every Lightning command line does (and which imports torchvision, too, if it is there).
- `--help`, a wrong command, and `runs` and `compare` of 200 runs, which need no torch: at most 1 s.
- Peak memory of a fit of two epochs: at most 200 MB more than the loop by hand, `plain.py`.
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
PROGRAM = [sys.executable, "-m", "lit_project"]
FIT = [*PROGRAM, "fit", "-c", f"{ROOT}/configs/fashion_mnist_mlp.yaml", f"--data.root={DATA}",
       "--trainer.accelerator=cpu", "--trainer.max_epochs=2", "--test_after_fit=false"]  # fmt: skip
RUNS = 200
# Runs a command from a small process: the peak of a child is at least the memory of the process that started it.
MEASURE = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss]))
"""


class LeaveAfterStep(Callback):
    """Ends the process after the first step of training."""

    def on_train_batch_end(self, *args: Any) -> None:
        """Leaves without cleaning up, which is no part of the start."""
        os._exit(0)


def process(command: list[str], peaks: list[float], status: int = 0) -> Times:
    """Times of a process from its start to its end; adds its peak memory in MB to `peaks`.

    Raises:
        RuntimeError: it ended with another status.
    """
    paths = os.pathsep.join([str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", MEASURE, *command], env={**os.environ, "PYTHONPATH": paths},
                          check=True, capture_output=True, text=True)  # fmt: skip
    found, wall, cpu, peak = json.loads(done.stdout)
    if found != status:
        raise RuntimeError(f"{shlex.join(command)} ended with status {found}")
    peaks.append(peak / 1024)  # KiB on Linux
    return Times(wall, cpu)


def many_runs(folder: Path) -> Path:
    """A folder of runs that differ in a rate: copies of one without its checkpoints."""
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
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = str(many_runs(Path(folder) / "runs"))
        fit = [*FIT, f"--runs_dir={folder}"]
        # title → command, its status
        commands: dict[str, tuple[list[str], int]] = {
            "import lightning.pytorch.cli": (IMPORT, 0),
            "lit-project fit --help": ([*PROGRAM, "fit", "--help"], 0),
            "lit-project fit, to its first step": ([*fit, "--trainer.callbacks+=startup.LeaveAfterStep"], 0),
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
        for name in list(variants)[:7]:
            variants[name]()  # fills the disk cache
        times = interleave(variants, options.rounds)
    base = times["import lightning.pytorch.cli"]
    result, rows = {}, []
    for name, values in times.items():
        ratios = {clock: ratio(values, base, clock) for clock in ("wall", "cpu")}
        seconds, cpu_seconds = [t.wall for t in values], [t.cpu for t in values]
        peak = statistics.median(peaks[name])
        result[name] = {"seconds": seconds, "CPU seconds": cpu_seconds, "of the import": ratios, "peak MB": peak}
        medians = [f"{statistics.median(seconds):.2f}", f"{statistics.median(cpu_seconds):.2f}"]
        rows.append([name, *medians, show_ratio(ratios["wall"]), show_ratio(ratios["cpu"]), f"{peak:.0f}"])
    header = ["", "seconds", "CPU seconds", "of the import", "of the import, CPU", "peak MB"]
    table("Start-up and memory", header, rows)
    save("startup", {"rounds": options.rounds, **result})


if __name__ == "__main__":
    main()
