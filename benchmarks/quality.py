"""Test scores of the shipped configs over several seeds: what the README and the headers of the configs state.

    python benchmarks/quality.py                                       all, seeds 1 to 3, one after the other
    python benchmarks/quality.py mnist_mlp multi30k_de_en --seeds 1 2 --workers 2 --threads 1

Each is `lit-project repeat`: the checkpoint that the config keeps (chosen on validation, or the last) is tested once.
Runs are kept in repeats/quality/; finished ones are not repeated and cut ones are resumed. Prints a table, writes
benchmarks/results/quality.json, where other seeds of before stay.
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
from torch.nn import functional as F

from lit_engine.tools.runs.differences import mean_sd
from lit_project.data.tables import Diabetes

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "quality.json"
BF16 = ["-c", "configs/overlays/bf16.yaml"]
MIXED = ["--trainer.precision=bf16-mixed"]
OTHER_WAY = ["--data.source=en", "--data.target=fr"]
FOLDS = 5
# name → config, options, metric of the test, target
TASKS: dict[str, tuple[str, list[str], str, float | None]] = {
    "quickstart": ("quickstart", [], "accuracy", 0.985),
    "mnist_mlp": ("mnist_mlp", [], "accuracy", 0.984),
    "fashion_mnist_mlp": ("fashion_mnist_mlp", [], "accuracy", 0.905),
    "mnist_cnn": ("mnist_cnn", [], "accuracy", 0.997),
    "fashion_mnist_cnn": ("fashion_mnist_cnn", [], "accuracy", 0.947),
    "fashion_mnist_resnet20": ("fashion_mnist_resnet20", BF16, "accuracy", 0.945),
    "fashion_mnist_resnet18": ("fashion_mnist_resnet18", BF16, "accuracy", 0.945),
    "regression_quickstart": ("regression_quickstart", ["--folds", str(FOLDS)], "r2", 0.48),
    "translation_quickstart": ("translation_quickstart", [], "bleu", 95.0),
    "tatoeba_fra_eng": ("tatoeba_fra_eng", [], "bleu", None),
    "tatoeba_eng_fra": ("tatoeba_fra_eng", OTHER_WAY, "bleu", None),
    "tatoeba_eng_fra_full": ("tatoeba_eng_fra_full", MIXED, "bleu", None),
    "multi30k_en_de": ("multi30k", [], "bleu_lowercase", 39.5),
    "multi30k_de_en": ("multi30k", ["--data.source=de", "--data.target=en"], "bleu_lowercase", 40.0),
    "multi30k_en_fr": ("multi30k", ["--data.target=fr"], "bleu_lowercase", 59.0),
}


def lit_project(arguments: Sequence[str], threads: int) -> None:
    """Runs the command line with so many threads."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-m", "lit_project", *arguments], cwd=ROOT, env=environment, check=True)


def repeated(
    config: str, more: Sequence[str], folder: Path, seeds: Sequence[int], options: argparse.Namespace
) -> dict[str, Any]:
    """Fits and tests a config with these seeds, unless that is done, in a folder; returns its summary.json."""
    command = ["repeat", "-c", f"configs/{config}.yaml", *more, "--seeds", *map(str, seeds), "--dir", str(folder)]
    lit_project([*command, "--workers", str(options.workers)], options.threads)
    return json.loads((folder / "summary.json").read_text())


def with_seeds(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds the options that all such benchmarks have."""
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=1, help="threads a run")
    return parser


def least_squares() -> dict[str, Any]:
    """R² of linear least squares on each fold of `Diabetes`, fitted to the rows that the net trains on."""
    values = {}
    for fold in range(FOLDS):
        splits = Diabetes(folds=FOLDS, fold=fold).splits
        x, y, test_x, test_y = (part.double() for part in (*splits["train"], *splits["test"]))
        weights = torch.linalg.lstsq(F.pad(x, (0, 1), value=1.0), y).solution
        error = (F.pad(test_x, (0, 1), value=1.0) @ weights - test_y).square().mean()
        values[f"fold-{fold}"] = (1 - error / test_y.var(correction=0)).item()
    mean, sd, n = mean_sd([*values.values()])
    return {"n": n, "mean": mean, "sd": sd, "values": values}


def entry(name: str, options: argparse.Namespace, before: dict[str, Any]) -> dict[str, Any]:
    """The entry of a task: of each metric of the test n, mean, standard deviation and values, with those of before."""
    config, more, _, target = TASKS[name]
    folder = ROOT / "repeats" / "quality" / name
    told = repeated(config, more, folder, options.seeds, options)
    before = before if before.get("options") == more else {}
    metrics = {}
    for metric, one in told["metrics"].items():
        if metric.startswith(("test/", "epochs", "seconds")):
            values = {**before.get("metrics", {}).get(metric, {}).get("values", {}), **one["values"]}
            mean, sd, n = mean_sd([*values.values()])
            metrics[metric] = {"n": n, "mean": mean, "sd": sd if n > 1 else None, "values": values}
    if name == "regression_quickstart":
        metrics["least squares, test/r2"] = least_squares()
    last = json.loads((folder / list(told["runs"].values())[-1]["path"] / "metrics.json").read_text())["test"]
    return {
        "options": more, "target": target, "threads": options.threads, "runs at a time": options.workers,
        **{key: told[key] for key in ("git", "versions", "devices")}, "metrics": metrics,
        **{key: last[key] for key in ("signatures",) if key in last},
    }  # fmt: skip


def results() -> dict[str, dict[str, Any]]:
    """What was measured so far."""
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    options = with_seeds(parser).parse_args()
    if unknown := set(options.tasks) - set(TASKS):
        parser.error(f"no task is called {', '.join(sorted(unknown))}; there are {', '.join(TASKS)}")
    for name in options.tasks:
        made = entry(name, options, results().get(name, {}))
        table = results() | {name: made}  # read again, as another process may have added to it
        # what holds no section is a line
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
