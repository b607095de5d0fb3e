"""Measure how much common recipe ingredients improve Fashion-MNIST accuracy with a fixed number of epochs.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/ablation.py
    OMP_WAIT_POLICY=PASSIVE python benchmarks/ablation.py --depth 20 --epochs 30 --workers 2 --only mixup --seeds 1 2

The baseline is `configs/fashion_mnist_resnet20.yaml` with width 16 and depth 8 (77 thousand parameters) or 20 (0.27 M)
in bfloat16, without label smoothing or test-time flips. It uses random crops and flips, SGD with a one-cycle schedule,
and weight decay. Ingredients are added or removed one at a time. Test-time ingredients are evaluated on the baseline's
weights. Gains are differences in test accuracy between runs with the same seed, using the best checkpoint by
validation. Their spread indicates which gains are significant. Runs are stored in repeats/ablation/.
The script prints a table and writes benchmarks/results/ablation.json.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, stored
from quality import BF16, lit_project, repeated, with_seeds

CONFIG = "fashion_mnist_resnet20"
FILE = RESULTS / "ablation.json"
OVERLAY = "configs/overlays"
PLAIN = ["--model.net.width=16", "--model.label_smoothing=0", "--model.test_time_flips=[]"]
CROP = "{class_path: lit_project.data.augmentation.RandomCrop, init_args: {padding: 2}}"
SGD = "--model.optimizer"
# Options that each ingredient adds to the baseline.
INGREDIENTS: dict[str, list[str]] = {
    "base": [],
    "no crop, no mirror": ["--data.train_transforms=null"],
    "no mirror": [f"--data.train_transforms=[{CROP}]"],
    "no weight decay": [f"{SGD}.weight_decay=0"],
    "no decay on norms and biases": ["-c", f"{OVERLAY}/no_decay.yaml"],
    "L2 penalty for weight decay": [f"{SGD}.weight_decay=0", "--model.penalty.l2=0.00025"],
    "L1 penalty 1e-5": ["--model.penalty.l1=0.00001"],
    "label smoothing 0.1": ["--model.label_smoothing=0.1"],
    "mixup": ["-c", f"{OVERLAY}/mixup.yaml"],
    "cutmix": ["-c", f"{OVERLAY}/cutmix.yaml"],
    "random erasing": ["-c", f"{OVERLAY}/erasing.yaml"],
    "TrivialAugment + erasing": ["-c", f"{OVERLAY}/augment.yaml"],
    "bilinear pooling": ["--model.net.pooling=bilinear"],
    "clipping by norm 1": ["--trainer.gradient_clip_val=1"],
    "EMA": ["-c", f"{OVERLAY}/ema.yaml"],
    "SWA": ["-c", f"{OVERLAY}/swa.yaml"],
}
# Options for testing the baseline's weights.
AT_TEST: dict[str, list[str]] = {
    "mirrored at test time": ["--model.test_time_flips=[horizontal]"],
    "mirrored and shifted at test time": ["--model.test_time_flips=[horizontal]", "--model.test_time_shift=1"],
}


def tested(source: Path, folder: Path, options: list[str], threads: int) -> float:
    """Copy a run, test its best checkpoint with different options, and return the test accuracy."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    lit_project(["test", "--run", str(folder), *options], threads)
    return json.loads((folder / "metrics.json").read_text())["test"]["test/accuracy"]


def table(accuracy: dict[tuple[str, int], float]) -> dict[str, dict[str, Any]]:
    """Return each ingredient's accuracies and their mean, and the mean and std of the gain over the baseline."""
    rows: dict[str, dict[str, Any]] = {}
    for name in [*INGREDIENTS, *AT_TEST]:
        mine = {seed: value for (other, seed), value in accuracy.items() if other == name}
        done = {seed: value for seed, value in mine.items() if ("base", seed) in accuracy}
        if done:
            gains = [value - accuracy["base", seed] for seed, value in done.items()]
            rows[name] = {
                "test accuracy %": {seed: round(value, 2) for seed, value in sorted(done.items())},
                "mean": round(statistics.mean(done.values()), 2),
                "gain": round(statistics.mean(gains), 2),
                "std of gain": round(statistics.stdev(gains), 2) if len(gains) > 1 else None,
            }
    return rows


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*INGREDIENTS, *AT_TEST], help="ingredients to test")
    parser.add_argument("--depth", type=int, default=8, help="depth of the residual network")
    parser.add_argument("--epochs", type=int, default=10, help="training epochs of each run")
    parser.add_argument("--again", action="store_true", help="discard stored results")
    options = with_seeds(parser).parse_args()
    budget = f"ResNet-{options.depth}, {options.epochs} epochs"
    net = [f"--model.net.depth={options.depth}", *PLAIN]
    before = stored("ablation").get(budget, {})
    rows = before["ingredients"] if before.get("net") == net and not options.again else {}
    accuracy = {(name, int(seed)): value for name, row in rows.items()
                for seed, value in row["test accuracy %"].items()}  # fmt: skip
    folder = ROOT / "repeats" / "ablation" / budget.replace(", ", "-").replace(" ", "-")
    for name in sorted(dict.fromkeys(["base", *options.only]), key=lambda name: name in AT_TEST):
        seeds, place = [seed for seed in options.seeds if (name, seed) not in accuracy], folder / name.replace(" ", "_")
        if not seeds:
            continue
        if name in AT_TEST:
            found = {seed: tested(folder / "base" / CONFIG / f"seed-{seed}", place / f"seed-{seed}", AT_TEST[name],
                                  options.threads) for seed in seeds}  # fmt: skip
        else:
            more = [*BF16, *net, *INGREDIENTS[name], f"--trainer.max_epochs={options.epochs}"]
            values = repeated(CONFIG, more, place, seeds, options)["metrics"]["test/accuracy"]["values"]
            found = {seed: values[f"seed-{seed}"] for seed in seeds}
        accuracy |= {(name, seed): 100 * value for seed, value in found.items()}
        measured = {budget: {"net": net, "ingredients": table(accuracy)}}
        FILE.write_text(json.dumps(stored("ablation") | measured, indent=2) + "\n")
    print(f"{'ingredient':<34}{'seeds':>6}{'accuracy %':>11}{'gain':>16}")
    for name, row in sorted(table(accuracy).items(), key=lambda item: -item[1]["gain"]):
        count = len(row["test accuracy %"])
        print(f"{name:<34}{count:>6}{row['mean']:>11.2f}{row['gain']:>+9.2f} ± {row['std of gain'] or 0:.2f}")


if __name__ == "__main__":
    main()
