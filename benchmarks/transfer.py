"""Compare strategies (scratch, frozen, gradual, full) for fine-tuning a Fashion-MNIST ResNet-18 on MNIST at equal cost.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/transfer.py
    OMP_WAIT_POLICY=PASSIVE python benchmarks/transfer.py --steps 10 30 --seeds 1 2 --workers 2
    OMP_WAIT_POLICY=PASSIVE python benchmarks/transfer.py --source RUN --workers 2

The weights come from `--source`, a completed run of `configs/fashion_mnist_resnet18.yaml`, or by default from a new run
of three epochs. Each strategy uses `configs/mnist_resnet18_from_fashion.yaml` for three epochs of `--steps` steps with
128 images, and a different unfreezing schedule. "scratch" trains everything from random weights, with the full learning
rate for all parameters. All other strategies share the same learning rates. The best checkpoint, by validation on
1,000 images, is tested on all 10,000 images. Runs are stored in repeats/transfer/. The script prints a table, writes
docs/figures/transfer.png, and updates benchmarks/results/transfer.json. Earlier results for the same weights are kept.
"""

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

from common import RESULTS, ROOT, stored
from quality import BF16, repeated, with_seeds

from lit_engine.callbacks.figures import new_figure

FILE = RESULTS / "transfer.json"
WAYS: dict[str, tuple[str, list[str]]] = {  # unfreezing schedule and other options
    "scratch": ("{net.backbone: 0}", ["--model.parameter_groups=null"]),
    "frozen": ("{net.backbone: null}", []),
    "gradual": ("{net.backbone: 2, net.backbone.layer4: 1}", []),
    "full": ("{net.backbone: 0}", []),
}
EPOCHS, BATCH = 3, 128  # as in the config
Job = tuple[str, int, int]  # strategy, steps per epoch, seed


def known(pretraining: dict[str, Any]) -> dict[Job, float]:
    """Return the stored test accuracies, or {} if they were measured with different pretrained weights."""
    before = stored("transfer")
    if before.get("pretraining") != pretraining:
        return {}
    return {
        (way, int(steps), int(seed)): value
        for way, by_steps in before["test accuracy %"].items()
        for steps, by_seed in by_steps.items()
        for seed, value in by_seed.items()
    }


def nested(accuracy: dict[Job, float]) -> dict[str, dict[int, dict[int, float]]]:
    """Return test accuracies in percent, nested by strategy, steps per epoch and seed."""
    found: dict[str, dict[int, dict[int, float]]] = {}
    for way, steps, seed in sorted(accuracy, key=lambda job: (list(WAYS).index(job[0]), *job[1:])):
        found.setdefault(way, {}).setdefault(steps, {})[seed] = round(accuracy[way, steps, seed], 2)
    return found


def draw(accuracy: dict[Job, float]) -> None:
    """Print the table, and plot the test error against the number of images seen."""
    budgets = sorted({steps for _, steps, _ in accuracy})
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    print(f"{'images seen':<12}" + "".join(f"{EPOCHS * BATCH * steps:>16}" for steps in budgets))
    for way, by_steps in nested(accuracy).items():
        means = {steps: statistics.mean(by_seed.values()) for steps, by_seed in by_steps.items()}
        spreads = {steps: statistics.stdev(by_seed.values()) if len(by_seed) > 1 else 0.0
                   for steps, by_seed in by_steps.items()}  # fmt: skip
        cells = [f"{means[steps]:>9.2f} ± {spreads[steps]:.2f}" if steps in means else f"{'':>16}" for steps in budgets]
        print(f"{way:<12}" + "".join(cells))
        seen = [EPOCHS * BATCH * steps for steps in means]
        errors = [100 - mean for mean in means.values()]
        axes.errorbar(seen, errors, yerr=list(spreads.values()), marker="o", capsize=3, label=way)
    axes.set(xscale="log", yscale="log", xlabel="training images seen", ylabel="test error in %",
             title="MNIST from Fashion-MNIST weights")  # fmt: skip
    seen = [EPOCHS * BATCH * steps for steps in budgets]
    axes.set_xticks(seen, labels=[f"{count:,}" for count in seen])
    axes.set_xticks([], minor=True)
    axes.set_yticks([2, 5, 10, 20, 50, 100], labels=["2", "5", "10", "20", "50", "100"])
    axes.set_yticks([], minor=True)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(ROOT / "docs" / "figures" / "transfer.png")


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", type=int, default=[3, 10, 30], help="steps per epoch, for three epochs")
    parser.add_argument("--source", type=Path, help="run that provides the weights")
    options = with_seeds(parser).parse_args()
    folder = ROOT / "repeats" / "transfer"
    source = (options.source or folder / "first" / "fashion_mnist_resnet18" / "seed-1").resolve()
    if options.source is None:
        repeated("fashion_mnist_resnet18", [*BF16, "--trainer.max_epochs=3"], folder / "first", [1], options)
    first = json.loads((source / "metrics.json").read_text())
    pretraining = {"epochs": first["fit"]["epochs"], "test accuracy %": round(100 * first["test"]["test/accuracy"], 2)}
    accuracy = known(pretraining)
    for steps, way in product(options.steps, WAYS):
        seeds, (schedule, more) = [seed for seed in options.seeds if (way, steps, seed) not in accuracy], WAYS[way]
        if not seeds:
            continue
        if way != "scratch":
            more = [*more, "--init_from", str(source), "--init_prefixes", '{"net.head.": null}']
        more = [*BF16, *more, "--trainer.callbacks.schedule", schedule, f"--trainer.limit_train_batches={steps}",
                "--trainer.limit_val_batches=1"]  # fmt: skip
        told = repeated("mnist_resnet18_from_fashion", more, folder / f"{way}-{steps}", seeds, options)
        values = told["metrics"]["test/accuracy"]["values"]
        accuracy |= {(way, steps, seed): 100 * values[f"seed-{seed}"] for seed in seeds}
        result = {"pretraining": pretraining, "epochs": EPOCHS, "batch size": BATCH,
                  "test accuracy %": nested(accuracy)}  # fmt: skip
        FILE.write_text(json.dumps(result, indent=2) + "\n")
    draw(accuracy)


if __name__ == "__main__":
    main()
