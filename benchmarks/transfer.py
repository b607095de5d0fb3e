"""MNIST with what a ResNet-18 has learned on Fashion-MNIST: scratch, frozen, gradual and full at the same budget.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/transfer.py
    OMP_WAIT_POLICY=PASSIVE python benchmarks/transfer.py --steps 10 30 --seeds 1 2

One run of `configs/fashion_mnist_resnet18.yaml` (a few epochs are enough) gives the weights. Each way of fine-tuning is
`configs/mnist_resnet18_from_fashion.yaml` with three epochs of so many steps of 128 images, and another schedule of
unfreezing; scratch begins with random weights and trains everything. Rates are the same for all ways but scratch, whose
parameters all learn at the full rate. Test accuracy on all 10,000 images of the checkpoint that validation chose.
Prints a table, writes benchmarks/results/transfer.json and docs/figures/transfer.png.
"""

import argparse
import json
import statistics

from common import RESULTS, ROOT
from quality import BF16, run

from lit_project.viz.figures import new_figure

WAYS: dict[str, tuple[str, list[str]]] = {  # → schedule of unfreezing, further options
    "scratch": ("{net.backbone: 0}", ["--model.parameter_groups=null"]),
    "frozen": ("{net.backbone: null}", []),
    "gradual": ("{net.backbone: 2, net.backbone.layer4: 1}", []),
    "full": ("{net.backbone: 0}", []),
}


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", nargs="+", type=int, default=[3, 10, 30, 100], help="of each of three epochs")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--pretraining_epochs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    before = [*BF16, f"--trainer.max_epochs={options.pretraining_epochs}"]
    first = run("fashion_mnist_resnet18", 1, options.threads, before, "transfer-first")
    source = ROOT / "runs" / "fashion_mnist_resnet18" / "transfer-first"
    accuracy: dict[str, dict[int, list[float]]] = {way: {steps: [] for steps in options.steps} for way in WAYS}
    for steps in options.steps:
        for seed in options.seeds:
            for way, (schedule, more) in WAYS.items():
                weights = ["--init_from", str(source), "--init_prefixes", '{"net.head.": null}']
                metrics = run(
                    "mnist_resnet18_from_fashion",
                    seed,
                    options.threads,
                    [
                        *BF16,
                        *more,
                        *([] if way == "scratch" else weights),
                        "--trainer.callbacks.schedule",
                        schedule,
                        f"--trainer.limit_train_batches={steps}",
                    ],
                    f"transfer-{way}-{steps}-seed{seed}",
                )
                accuracy[way][steps].append(100 * metrics["test"]["test/accuracy"])
    result = {
        "pretraining": {"epochs": options.pretraining_epochs, "test accuracy": first["test"]["test/accuracy"]},
        "seeds": options.seeds,
        "images seen": {steps: 3 * 128 * steps for steps in options.steps},
        "test accuracy %": accuracy,
    }
    (RESULTS / "transfer.json").write_text(json.dumps(result, indent=2) + "\n")
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    print(f"{'images seen':<12}" + "".join(f"{384 * steps:>16}" for steps in options.steps))
    for way, by_steps in accuracy.items():
        means = [statistics.mean(values) for values in by_steps.values()]
        spreads = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in by_steps.values()]
        print(f"{way:<12}" + "".join(f"{m:>9.2f} ± {s:.2f}" for m, s in zip(means, spreads, strict=True)))
        seen = [384 * steps for steps in options.steps]
        axes.errorbar(seen, [100 - m for m in means], yerr=spreads, marker="o", capsize=3, label=way)
    axes.set(xscale="log", yscale="log", xlabel="training images seen", ylabel="test error in %",
             title="MNIST from Fashion-MNIST weights")  # fmt: skip
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(ROOT / "docs" / "figures" / "transfer.png")


if __name__ == "__main__":
    main()
