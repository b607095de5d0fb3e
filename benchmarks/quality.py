"""Measure the scores in the README and the config headers: the test scores of the shipped configs over several seeds.

    python benchmarks/quality.py                                       run all tasks with seeds 1 to 3
    python benchmarks/quality.py mnist_mlp multi30k_de_en --seeds 1 2 --workers 2 --threads 1

Runs `lit-project repeat` and tests the checkpoint selected by each config (best by validation, or last) once. Runs are
stored in repeats/quality/. Completed runs are not repeated, and interrupted runs are resumed. Prints a table and
replaces the tasks' entries in benchmarks/results/quality.json.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, ROOT, stored
from torch.nn import functional as F

from lit_engine.tools.runs.differences import mean_sd
from lit_project.data.tables import Diabetes

FILE = RESULTS / "quality.json"
BF16 = ["-c", "configs/overlays/bf16.yaml"]
MIXED = ["--trainer.precision=bf16-mixed"]
OTHER_WAY = ["--data.source=en", "--data.target=fr"]
FOLDS = 5
# Config, options, test metric and its target.
TASKS: dict[str, tuple[str, list[str], str, float | None]] = {
    "quickstart": ("quickstart", [], "accuracy", 0.985),
    "mnist_mlp": ("mnist_mlp", [], "accuracy", 0.984),
    "fashion_mnist_mlp": ("fashion_mnist_mlp", [], "accuracy", 0.905),
    "mnist_cnn": ("mnist_cnn", [], "accuracy", 0.997),
    "fashion_mnist_cnn": ("fashion_mnist_cnn", [], "accuracy", 0.952),
    "fashion_mnist_resnet20": ("fashion_mnist_resnet20", BF16, "accuracy", 0.945),
    "fashion_mnist_resnet18": ("fashion_mnist_resnet18", BF16, "accuracy", 0.945),
    "regression_quickstart": ("regression_quickstart", ["--folds", str(FOLDS)], "r2", 0.48),
    "translation_quickstart": ("translation_quickstart", [], "bleu", 95.0),
    "tatoeba_fra_eng": ("tatoeba_fra_eng", [], "bleu", None),
    "tatoeba_eng_fra": ("tatoeba_fra_eng", OTHER_WAY, "bleu", None),
    "tatoeba_eng_fra_full": ("tatoeba_eng_fra_full", MIXED, "bleu", 40.0),
    "multi30k_en_de": ("multi30k", MIXED, "bleu_lowercase", 41.0),
    "multi30k_de_en": ("multi30k", [*MIXED, "--data.source=de", "--data.target=en"], "bleu_lowercase", 40.0),
    "multi30k_en_fr": ("multi30k", [*MIXED, "--data.target=fr"], "bleu_lowercase", 59.0),
}


def lit_project(arguments: Sequence[str], threads: int) -> None:
    """Run the command line with the given number of threads."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-m", "lit_project", *arguments], cwd=ROOT, env=environment, check=True)


def repeated(
    config: str, more: Sequence[str], folder: Path, seeds: Sequence[int], options: argparse.Namespace
) -> dict[str, Any]:
    """Fit and test a config with these seeds, unless already done, and return summary.json from the folder."""
    command = ["repeat", "-c", f"configs/{config}.yaml", *more, "--seeds", *map(str, seeds), "--dir", str(folder)]
    lit_project([*command, "--workers", str(options.workers)], options.threads)
    return json.loads((folder / "summary.json").read_text())


def with_seeds(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the options shared by benchmarks with several seeds."""
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=1, help="number of concurrent runs")
    parser.add_argument("--threads", type=int, default=1, help="threads per run")
    return parser


def least_squares() -> dict[str, Any]:
    """Return the R² of linear least squares on each fold of `Diabetes`, fitted to the same training rows as the net."""
    values = {}
    for fold in range(FOLDS):
        splits = Diabetes(folds=FOLDS, fold=fold).splits
        x, y, test_x, test_y = (part.double() for part in (*splits["train"], *splits["test"]))
        weights = torch.linalg.lstsq(F.pad(x, (0, 1), value=1.0), y).solution
        error = (F.pad(test_x, (0, 1), value=1.0) @ weights - test_y).square().mean()
        values[f"fold-{fold}"] = (1 - error / test_y.var(correction=0)).item()
    mean, sd, n = mean_sd([*values.values()])
    return {"n": n, "mean": mean, "sd": sd, "values": values}


def entry(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return a task's entry with the n, mean, std and values of each test metric."""
    config, more, _, target = TASKS[name]
    folder = ROOT / "repeats" / "quality" / name
    told = repeated(config, more, folder, options.seeds, options)
    metrics = {
        metric: {key: one[key] for key in ("n", "mean", "sd", "values")}
        for metric, one in told["metrics"].items()
        if metric.startswith(("test/", "epochs", "seconds"))
    }
    if name == "regression_quickstart":
        metrics["least squares, test/r2"] = least_squares()
    last = json.loads((folder / list(told["runs"].values())[-1]["path"] / "metrics.json").read_text())["test"]
    return {
        "options": more, "target": target, "threads": options.threads, "runs at a time": options.workers,
        **{key: told[key] for key in ("git", "versions", "devices")}, "metrics": metrics,
        **{key: last[key] for key in ("signatures",) if key in last},
    }  # fmt: skip


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"tasks to run, from {', '.join(TASKS)}")
    options = with_seeds(parser).parse_args()
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"unknown task {', '.join(sorted(unknown))}: choose from {', '.join(TASKS)}")
    for name in options.tasks:
        made = entry(name, options)
        table = stored("quality") | {name: made}  # read again, because another process may have updated it
        # Write each innermost object or list on a single line.
        text = re.sub(r"\{[^{}]*\}|\[[^][{}]*\]", lambda part: " ".join(part[0].split()), json.dumps(table, indent=2))
        FILE.write_text(f"{text}\n")
    print(f"{'task':<26}{'metric':<16}{'mean ± sd':>18}{'target':>8}{'seeds':>7}")
    for name, row in table.items():
        metric = TASKS[name][2]
        one, unit = row["metrics"][f"test/{metric}"], 100 if metric == "accuracy" else 1
        score = f"{unit * one['mean']:.2f}" + (f" ± {unit * one['sd']:.2f}" if one["sd"] else "")
        target = "" if row["target"] is None else f"{unit * row['target']:.1f}"
        print(f"{name:<26}{metric:<16}{score:>18}{target:>8}{one['n']:>7}")


if __name__ == "__main__":
    main()
