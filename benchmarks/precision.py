"""Measure the speedup and accuracy of bfloat16 and the channels-last memory format.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/precision.py

Trains a CNN with `lit-project fit` in a terminal, in float32 and bf16-mixed, each with and without channels_last. The
four variants are interleaved. Each round uses one seed for a few epochs of 100 steps (12,800 images). The first epoch
is not timed. An epoch includes the validation on 5,000 images. Ratios are medians over the rounds. Accuracies are
validation accuracies after the last epoch. Each difference from float32 is between runs with the same seed, so that it
is not confused with the variation between seeds.

bfloat16 is fast only on some processors: see `configs/overlays/bf16.yaml`.
"""

import argparse
import statistics
from functools import partial

import torch
from common import ROOT, EpochClock, Times, fit, interleave, ratio, save, show_ratio, table

# A larger CNN on Fashion-MNIST (0.94 M weights).
LARGER_CNN = [
    "-c", str(ROOT / "configs" / "fashion_mnist_cnn.yaml"),
    "--model.net={class_path: CNN, init_args: {layers: [32, 32, pool, 64, 64, pool, 128], hidden: 128, norm: batch, "
    "dropout: 0.25, head_dropout: 0.5}}",
    "--data.batch_size=128",
    "--data.val_size=5000",
    "--data.train_transforms=[{class_path: RandomCrop, init_args: {padding: 2}}, {class_path: RandomHorizontalFlip}]",
]  # fmt: skip
STEPS = 100
BASE = "float32"
# The precision of each variant, and whether it uses the channels-last memory format.
VARIANTS = {
    BASE: ("32-true", "false"),
    "float32, channels last": ("32-true", "true"),
    "bf16-mixed": ("bf16-mixed", "false"),
    "bf16-mixed, channels last": ("bf16-mixed", "true"),
}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each with a different seed")
    parser.add_argument("--epochs", type=int, default=4, help="epochs per fit; the first is not timed")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; one is least affected by other jobs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    accuracies: dict[str, list[float]] = {name: [] for name in VARIANTS}

    def run(name: str) -> Times:
        precision, channels_last = VARIANTS[name]
        times = fit(
            *LARGER_CNN,
            "--test_after_fit=false",
            f"--seed_everything={1 + len(accuracies[name])}",
            f"--trainer.precision={precision}",
            f"--model.init_args.channels_last={channels_last}",
            "--trainer.accelerator=cpu",
            f"--trainer.limit_train_batches={STEPS}",
            f"--trainer.max_epochs={options.epochs}",
        )  # fmt: skip
        accuracies[name].append(100 * EpochClock.metrics["val/accuracy"])
        return times

    times = interleave({name: partial(run, name) for name in VARIANTS}, options.rounds)
    rows, result = [], {}
    for name, values in times.items():
        speedup, in_cpu_time = (ratio(times[BASE], values, clock) for clock in ("wall", "cpu"))
        differences = [a - b for a, b in zip(accuracies[name], accuracies[BASE], strict=True)]
        result[name] = {
            "seconds an epoch": [t.wall for t in values],
            "CPU seconds an epoch": [t.cpu for t in values],
            "faster than float32": speedup,
            "faster than float32, CPU": in_cpu_time,
            "validation accuracy %": accuracies[name],
            "difference to float32 of the same seed": differences,
        }
        rows.append([
            name,
            f"{statistics.median(t.wall for t in values):.1f}",
            show_ratio(speedup),
            show_ratio(in_cpu_time),
            f"{statistics.mean(accuracies[name]):.2f}",
            f"{statistics.mean(differences):+.2f} ({min(differences):+.2f} to {max(differences):+.2f})",
        ])  # fmt: skip
    header = ["", "s/epoch", "times faster", "in CPU time", "accuracy %", "difference"]
    table(f"CNN, {STEPS} steps of 128 images per epoch, {options.rounds} seeds", header, rows)
    save("precision", {"rounds": options.rounds, "epochs a fit": options.epochs, "steps an epoch": STEPS, **result})


if __name__ == "__main__":
    main()
