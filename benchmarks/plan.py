"""Compare the time that `fit --plan` predicts with the time of the fit, for the shipped configs.

    python benchmarks/plan.py [CONFIG …]        an hour on two cores; writes results/plan.json

Each round plans a fit and then runs it, in separate processes. Epochs or batches are limited, and the plan has the same
limits. Times are CPU seconds of one thread, because wall-clock times on a shared machine mostly reflect its load.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import DATA, ROOT, save, stored, table

# Config → options that limit the fit.
CONFIGS = {
    "quickstart": "",
    "regression_quickstart": "",
    "translation_quickstart": "--epochs 2",
    "translation_two_optimizers": "--epochs 2",
    "mnist_mlp": "--epochs 1",
    "fashion_mnist_mlp": "--epochs 2",
    "mnist_cnn": "--epochs 2 --trainer.limit_train_batches=60",
    "fashion_mnist_cnn": "--epochs 2 --trainer.limit_train_batches=60",
    "fashion_mnist_resnet20": "--epochs 2 --trainer.limit_train_batches=12 --trainer.limit_val_batches=2",
    "fashion_mnist_resnet18": "--epochs 2 --trainer.limit_train_batches=12 --trainer.limit_val_batches=2",
    "multi30k": "--epochs 2 --trainer.limit_train_batches=30",
    "tatoeba_fra_eng": "--epochs 2 --trainer.limit_train_batches=60",
}
PROGRAM = """
import time
time.perf_counter = time.process_time
import sys, torch
from lit_project.__main__ import main
torch.set_num_threads(1)
sys.exit(main(sys.argv[1:]))
"""


def run(folder: Path, *words: str) -> str:
    """Run a command in a folder and return its output. Raise RuntimeError if the command fails."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"lit-project {' '.join(words)}: {done.stderr}")
    return done.stdout


def main() -> None:
    """Print and save the ratios of predicted and measured time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=list(CONFIGS), metavar="CONFIG")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    found = stored("plan")  # keeps the results of other configs
    found.pop("machine", None)
    for name in args.configs:
        words = ["fit", "-c", str(ROOT / "configs" / f"{name}.yaml"), *CONFIGS[name].split(), "--test_after_fit=false"]
        rounds = []
        for _ in range(args.rounds):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "data").symlink_to(DATA)
                load = os.getloadavg()[0]
                plan = json.loads(run(Path(folder), *words, "--plan", "--json"))
                run(Path(folder), *words, "--run_name=fit")
                metrics = json.loads((Path(folder) / "runs" / name / "fit" / "metrics.json").read_text())
            rounds.append({"predicted": plan["seconds"], "measured": metrics["fit"]["seconds"], "load": load})
            print(name, rounds[-1], file=sys.stderr, flush=True)
        ratios = [one["predicted"] / one["measured"] for one in rounds]
        found[name] = {"limits": CONFIGS[name], "rounds": rounds, "ratio": statistics.median(ratios)}
        save("plan", found)
    columns = ("predicted", "measured")
    table("predicted ÷ measured time", ["config", *columns, "ratio"], [
        [name, *(f"{statistics.median(one[key] for one in entry['rounds']):.1f} s" for key in columns),
         f"{entry['ratio']:.2f}"]
        for name, entry in found.items()
    ])  # fmt: skip


if __name__ == "__main__":
    main()
