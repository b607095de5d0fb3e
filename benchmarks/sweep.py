"""Measure the overhead of a sweep compared to a single `fit`, and the speedup with two workers.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/sweep.py

Trials are single-threaded fits of the quickstart. The overhead is the time of a trial, as measured by the runner of a
one-trial sweep, minus the time of the same command without a sweep (medians, interleaved). The speedup compares the
same eight trials with one and two workers. Prints the results and writes benchmarks/results/sweep.json.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from common import RESULTS, ROOT

CONFIG = str(ROOT / "configs" / "quickstart.yaml")
SWEEP = {
    "method": "grid",
    "metric": {"name": "val/accuracy", "goal": "maximize"},
    "command": ["lit-project", "fit", "--config", CONFIG, "--config", "${args_json_file}"],
}


def sweep_file(folder: Path, trials: int) -> Path:
    """Write a sweep whose trials differ only in the seed."""
    file = folder / f"seeds{trials}.yaml"
    seeds = {"seed_everything": {"values": list(range(trials))}}
    file.write_text(yaml.safe_dump({**SWEEP, "parameters": seeds}))
    return file


def timed(words: list[str], folder: Path) -> float:
    """Return the duration of a `lit-project` command in seconds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "lit_project", *words], cwd=folder, env=environment, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
    return time.perf_counter() - start


def trial_seconds(table: Path) -> list[float]:
    """Return the duration of each trial of a sweep in seconds."""
    return [float(row["seconds"]) for row in csv.DictReader(table.open())]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds to measure the overhead")
    parser.add_argument("--trials", type=int, default=8, help="trials per number of workers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        alone, in_sweep, whole = [], [], []
        file = sweep_file(folder, 1)
        fit = ["fit", "-c", CONFIG, "--seed_everything=0", "--test_after_fit=false"]
        for number in range(options.rounds):
            alone.append(timed(fit, folder))
            whole.append(timed(["sweep", str(file), "--dir", f"one{number}"], folder))
            in_sweep += trial_seconds(folder / f"one{number}" / "trials.csv")
        file = sweep_file(folder, options.trials)
        seconds = {}
        for workers in (1, 2):
            words = ["sweep", str(file), "--dir", f"workers{workers}", "--workers", str(workers)]
            seconds[workers] = timed(words, folder)
    result = {
        "cpus": os.cpu_count(),
        "fit alone s": [round(s, 2) for s in alone],
        "trial of a sweep s": in_sweep,
        "overhead s": round(statistics.median(in_sweep) - statistics.median(alone), 2),
        "sweep of one trial, whole s": [round(s, 2) for s in whole],
        "trials": options.trials,
        "one worker s": round(seconds[1], 1),
        "two workers s": round(seconds[2], 1),
        "ratio": round(seconds[2] / seconds[1], 3),
    }
    (RESULTS / "sweep.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
