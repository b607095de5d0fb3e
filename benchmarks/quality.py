"""Test accuracy of the shipped configs over several seeds: what the headers of the configs state.

    python benchmarks/quality.py                                       all configs, seeds 1 to 3, one after the other
    python benchmarks/quality.py mnist_mlp fashion_mnist_mlp --seeds 1 2 3 --workers 2

Each run is `lit-project fit`; the checkpoint is chosen on validation and tested once on the official test split. Runs
are kept in runs/; finished ones are not repeated and cut ones are resumed. Prints a table, writes
benchmarks/results/quality.json, where other seeds of before stay.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BF16 = ["-c", "configs/overlays/bf16.yaml"]
# config → overlay options, target of the test accuracy in percent
CONFIGS: dict[str, tuple[list[str], float | None]] = {
    "quickstart": ([], 98.0),
    "mnist_mlp": ([], 98.4),
    "fashion_mnist_mlp": ([], 89.5),
    "mnist_cnn": (BF16, 99.4),
    "fashion_mnist_cnn": (BF16, 93.4),
    "fashion_mnist_resnet20": (BF16, 94.5),
    "fashion_mnist_resnet18": (BF16, 94.5),
}


def lit_project(arguments: Sequence[str], threads: int) -> None:
    """Runs the command line with so many threads."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "lit_project", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def run(config: str, seed: int, threads: int, options: Sequence[str], name: str) -> dict[str, Any]:
    """Fits and tests a config with a seed as `runs/CONFIG/NAME`, unless that is finished; returns its metrics.json."""
    folder = ROOT / "runs" / config / name
    metrics = folder / "metrics.json"
    if not (metrics.exists() and "test" in json.loads(metrics.read_text())):
        started = ["--run", str(folder)] if (folder / "checkpoints" / "last.ckpt").exists() else [
            "-c", f"configs/{config}.yaml", *options, f"--seed_everything={seed}", "--run_name", name,
        ]  # fmt: skip
        lit_project(["fit", *started, "--test_after_fit=true"], threads)
    return json.loads(metrics.read_text())


def merged(rows: dict[int, dict[str, Any]], before: dict[str, Any]) -> dict[str, Any]:
    """Seeds in order, and for each column its values: those of `rows`, and those of seeds that were run `before`."""
    rows = {seed: {name: before[name][place] for name in next(iter(rows.values()))}
            for place, seed in enumerate(before.get("seeds", []))} | rows  # fmt: skip
    seeds = sorted(rows)
    return {"seeds": seeds, **{name: [rows[seed][name] for seed in seeds] for name in rows[seeds[0]]}}


def entry(
    config: str, results: dict[int, dict[str, Any]], before: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """The entry of a config: its seeds of `before` that were not run now, and those of now."""
    rows = {
        seed: {
            "test accuracy %": round(100 * metrics["test"]["test/accuracy"], 2),
            "test samples": metrics["test"]["test/samples"],
            "epochs": metrics["fit"]["epochs"],
            "seconds": metrics["fit"]["seconds"],
        }
        for seed, metrics in results.items()
    }
    columns = merged(rows, before)
    accuracies = columns["test accuracy %"]
    return {
        "seeds": columns.pop("seeds"),
        "target": CONFIGS[config][1],
        "mean": round(statistics.mean(accuracies), 2),
        "std": round(statistics.stdev(accuracies), 2) if len(accuracies) > 1 else None,
        **columns,
        "threads": options.threads,
        "runs at a time": options.workers,
    }


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=list(CONFIGS), help="names of configs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads a run")
    options = parser.parse_args()
    jobs = [(config, seed) for config in options.configs for seed in options.seeds]

    def one(job: tuple[str, int]) -> dict[str, Any]:
        config, seed = job
        return run(config, seed, options.threads, CONFIGS[config][0], f"quality-seed{seed}")

    with ThreadPoolExecutor(options.workers) as pool:
        done = list(pool.map(one, jobs))
    file = ROOT / "benchmarks" / "results" / "quality.json"
    file.parent.mkdir(exist_ok=True)
    table = json.loads(file.read_text()) if file.exists() else {}
    for config in options.configs:
        results = {job[1]: metrics for job, metrics in zip(jobs, done, strict=True) if job[0] == config}
        table[config] = entry(config, results, table.get(config, {}), options)
    file.write_text(json.dumps(table, indent=2) + "\n")
    print(f"{'config':<26}{'test accuracy %':>18}{'target':>8}{'seeds':>7}")
    for config, row in table.items():
        target = "" if row["target"] is None else f"{row['target']:.1f}"
        print(f"{config:<26}{row['mean']:>11.2f} ± {row['std'] or 0:.2f}{target:>8}{len(row['seeds']):>7}")


if __name__ == "__main__":
    main()
