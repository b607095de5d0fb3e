"""Measure how many label errors `doubts` finds in Fashion-MNIST after 5 % of its 60,000 training labels are flipped.

    OMP_NUM_THREADS=1 nice -n 10 python benchmarks/doubts.py

3,000 labels are replaced by a different class, drawn uniformly with a fixed seed. Five folds of `fashion_mnist_mlp` are
trained for eight epochs on the flipped labels, and the first samples that `doubts` lists are compared with the flipped
ones. Other listed samples may be errors in the original dataset. The official test split is not used. Runs are stored
in repeats/doubts/ and reused. The script prints precision and recall and writes benchmarks/results/doubts.json.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lit_engine.data.module import Split, random_split
from lit_project.data.mnist import FashionMNIST

ROOT = Path(__file__).parents[1]
FILE = ROOT / "benchmarks" / "results" / "doubts.json"
FLIPPED = 3000
FIRST = (500, 1000, 2000, 3000)


class FlippedFashion(FashionMNIST):
    """The 60,000 training images of Fashion-MNIST in folds, with a fixed set of `FLIPPED` wrong labels."""

    official_test = False

    def originals(self) -> tuple[Tensor, Tensor]:
        """Return all images `(N, 1, 28, 28)` and their original classes `(N,)`."""
        data = self._read(train=True)
        return data.data[:, None], data.targets.long()

    def load(self, split: Split) -> tuple[Tensor, Tensor]:
        images, targets = self.originals()
        targets = flipped(targets, self.num_classes)
        rest, test = self.hold_out(len(targets), 10_000, targets)
        train, val = random_split(len(rest), self.val_size)
        chosen = {"train": rest[train], "val": rest[val], "test": test}[split]
        return images[chosen], targets[chosen]


def flipped(targets: Tensor, classes: int, seed: int = 1) -> Tensor:
    """Return the targets, `FLIPPED` of which are replaced by a different class drawn uniformly."""
    generator = torch.Generator().manual_seed(seed)
    wrong = torch.randperm(len(targets), generator=generator)[:FLIPPED]
    shift = torch.randint(1, classes, (FLIPPED,), generator=generator)
    return targets.index_put((wrong,), (targets[wrong] + shift) % classes)


def lit_project(*arguments: str) -> str:
    """Run the command line in this repository and return its standard output."""
    command = [sys.executable, "-m", "lit_project", *arguments, "--json"]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def errors_by_fold(folds: int) -> dict[tuple[int, int], bool]:
    """Return whether the label of each sample was flipped, by fold and index."""
    found: dict[tuple[int, int], bool] = {}
    for fold in range(folds):
        data = FlippedFashion(folds=folds, fold=fold, root=ROOT / "data")
        _, original = data.originals()
        wrong = flipped(original, data.num_classes) != original
        _, test = data.hold_out(len(original), 0, flipped(original, data.num_classes))
        found |= {(fold, index): bool(wrong[place]) for index, place in enumerate(test.tolist())}
    return found


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8, help="training epochs of each fold")
    options = parser.parse_args()
    folder = ROOT / "repeats" / "doubts" / f"{options.folds}-folds-{options.epochs}-epochs"
    told = json.loads(lit_project(
        "repeat", "fashion_mnist_mlp", "--data=benchmarks.doubts.FlippedFashion", "--folds", str(options.folds),
        f"--trainer.max_epochs={options.epochs}", "--dir", str(folder)
    ))  # fmt: skip
    found = json.loads(lit_project("doubts", str(folder), "--first", str(2 * FLIPPED)))
    wrong = errors_by_fold(options.folds)
    hits = [wrong[row["fold"], row["index"]] for row in found["doubts"] if row["reason"] == "label"]
    sizes = [*FIRST, found["estimated_errors"]]  # the last one is the default length of the list
    result: dict[str, Any] = {
        "config": "fashion_mnist_mlp", "epochs": options.epochs, "folds": options.folds, "flipped": FLIPPED,
        "estimated errors": found["estimated_errors"],
        "out-of-fold accuracy on flipped labels": round(told["metrics"]["test/accuracy"]["pooled"]["value"], 4),
        "first": {n: {"precision": round(sum(hits[:n]) / n, 4), "recall": round(sum(hits[:n]) / FLIPPED, 4)}
                  for n in sizes},
        **{key: told[key] for key in ("seconds", "git", "versions", "devices")},
    }  # fmt: skip
    FILE.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
