"""Compare the speed of a full-featured `lit-project fit` to a hand-written loop and the standard Lightning pipeline.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py            about six minutes
    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py --where    break down the overhead of a step

All variants train on Fashion-MNIST in one process, interleaved over several rounds. Results are the median, minimum and
maximum of all rounds. An epoch is timed from its start to the start of the next epoch, and includes training and
validation on 5,000 images. Start-up and the first epoch of each fit are not timed. CPU seconds of the process vary less
than wall-clock seconds on a shared machine; with one thread on an idle machine, both are similar.

- template: `lit-project fit` in a terminal, with progress bar, metrics.csv, best and last checkpoints, and figures.
- barebones: a minimal module and loader with Lightning's `Trainer(barebones=True)`, without optional features.
- plain: a hand-written loop over the same tensors (`plain.Plain`), which records only loss and accuracy.
- standard: torchvision transforms per sample, DataLoader, `self.log` in each step (`baselines.standard_pipeline`).

The optimizer is Adam with default settings. "fused" adds `fused: true`, as in the configs. All variants reuse freed
memory, as the command line does. Comparisons with the standard pipeline use epochs of 400 steps to save time. The
template and the hand-written loop are compared on full epochs (860 steps).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch
from baselines import standard_pipeline
from common import DATA, Times, as_the_program, fit, interleave, machine, ratio, save, show_ratio, stored, table
from overhead import Bare, Batches, barebones, measure

from lit_project.data.mnist import FashionMNIST
from lit_project.models.mlp import MLP
from plain import EVAL_BATCH, Plain

SHORT = 400  # steps per epoch in comparisons with the standard pipeline
LARGE: dict[str, Any] = {"hidden_sizes": [512, 512]}
SMALL: dict[str, Any] = {"hidden_sizes": [64, 128, 64], "norm": "batch"}
# Title, net, batch size, steps per epoch (None for all), and whether to include the standard pipeline.
PARTS: dict[str, tuple[str, dict[str, Any], int, int | None, bool]] = {
    "full": ("784-512-512-10, batch 64", LARGE, 64, None, False),
    "large": ("784-512-512-10, batch 64", LARGE, 64, SHORT, True),
    "small": ("784-64-128-64-10 with batch norm, batch 128", SMALL, 128, SHORT, True),
}
OVERHEAD = [("template", "of plain"), ("template, fused", "of plain, fused"), ("template, fused", "of plain")]
FEATURES = [("template", "of barebones"), ("template, fused", "of barebones, fused")]
CLAIMS = {
    "full": [*((*claim, "at most 1.1") for claim in OVERHEAD), *((*claim, "at most 1") for claim in FEATURES)],
    "large": [("standard, 0 workers", "of template", "at least 1.4"), ("standard, 2 workers", "of template", "")],
    "small": [*((*claim, "at most 1.35") for claim in OVERHEAD), *((*claim, "at most 1") for claim in FEATURES),
              ("standard, 0 workers", "of template", "at least 4"), ("standard, 2 workers", "of template", "")],
}  # fmt: skip


def template(net: dict[str, Any], batch_size: int, epochs: int, steps: int | None, fused: bool = False) -> Times:
    """Return the mean time of `epochs` epochs of `lit-project fit`, after a warm-up epoch."""
    model = {
        "class_path": "lit_project.tasks.classification.ImageClassifier",
        "init_args": {
            "net": {"class_path": "lit_project.models.mlp.MLP", "init_args": net},
            "optimizer": {"class_path": "torch.optim.Adam", "init_args": {"lr": 0.001, "fused": fused}},
        },
    }
    data = {"class_path": "lit_project.data.mnist.FashionMNIST", "init_args": {"batch_size": batch_size}}
    callbacks = [{"class_path": f"lit_engine.callbacks.{name}"} for name in ("Checkpoint", "Figures")]
    trainer = {
        "accelerator": "cpu",
        "max_epochs": epochs + 1,
        "limit_train_batches": steps,
        "callbacks": callbacks,
    }
    return fit(*(f"--{name}={json.dumps(value)}" for name, value in
                 (("model", model), ("data", data), ("trainer", trainer))))  # fmt: skip


def compare(title: str, net: dict[str, Any], batch_size: int, steps: int | None, options: argparse.Namespace,
            with_standard: bool) -> dict[str, Any]:  # fmt: skip
    """Measure one net, print a table and return the results."""
    data = FashionMNIST(root=DATA)
    data.prepare_data()
    data.setup("fit")

    def new_net() -> MLP:
        torch.manual_seed(42)
        return MLP((1, 28, 28), 10, **net)

    def plain(fused: bool = False) -> Times:
        loop = Plain(new_net(), data.splits["train"], data.splits["val"], batch_size, steps, fused)
        return loop.times(options.epochs)

    def bare(fused: bool = False) -> Times:
        train, val = data.splits["train"], data.splits["val"]
        loaders = Batches(train[0], train[1], batch_size, True), Batches(val[0], val[1], EVAL_BATCH, False)
        return barebones(Bare(new_net(), fused), loaders, options.epochs, steps)

    ours = partial(template, net, batch_size, options.epochs, steps)
    variants: dict[str, Callable[[], Times]] = {"plain": plain, "barebones": bare, "template": ours}
    variants |= {f"{name}, fused": partial(run, True) for name, run in variants.items()}  # type: ignore[call-arg]
    if with_standard:
        for workers in (0, 2):
            variants[f"standard, {workers} workers"] = partial(
                standard_pipeline, new_net, batch_size, workers, options.epochs, steps
            )
    times = interleave(variants, options.rounds)
    count = steps or -(-data.size_of("train") // batch_size)
    result: dict[str, Any] = {"steps": count, "batch size": batch_size}
    rows = []
    for name, values in times.items():
        alone = not name.endswith("2 workers")  # `cpu` excludes child processes
        result[name] = {
            "seconds an epoch": [t.wall for t in values],
            "CPU seconds an epoch": [t.cpu for t in values] if alone else None,
            "of plain": ratio(values, times["plain"]),
            "of plain, CPU": ratio(values, times["plain"], "cpu") if alone else None,
            **{
                f"of {other}": ratio(values, times[other])
                for other in ("plain, fused", "barebones", "barebones, fused")
            },
            "of template": ratio(values, times["template"]),
        }
        seconds = statistics.median(t.wall for t in values)
        ratios = [result[name][key] for key in ("of plain", "of plain, CPU", "of plain, fused", "of template")]
        rows.append(
            [
                name,
                f"{seconds:.2f}",
                f"{seconds / count * 1e6:.0f}",
                *("" if r is None else show_ratio(r) for r in ratios),
            ]
        )
    table(
        f"{title}, {count} steps per epoch",
        ["", "s/epoch", "µs/step", "of plain", "of plain, CPU", "of plain, fused", "of template"],
        rows,
    )
    for other, kind, clock in product(("plain", "barebones"), ("", ", fused"), ("wall", "cpu")):
        pairs = zip(times[f"template{kind}"], times[f"{other}{kind}"], strict=True)
        extra = [getattr(a - b, clock) / count * 1e6 for a, b in pairs]
        median, spread = statistics.median(extra), f"({min(extra):.0f} to {max(extra):.0f})"
        result[f"template - {other}, µs a step, {clock}{kind}"] = median
        print(f"  template - {other}{kind}, {clock}: {median:.0f} µs per step {spread}")
    return result


def claims(results: dict[str, Any]) -> dict[str, Any]:
    """Return the claimed and measured ratios for these parts."""
    promised = {}
    for part, found in results.items():
        name, _, threads = part.partition(", ")
        for variant, of, target in CLAIMS[name]:
            if of in found.get(variant, ()):
                promised[", ".join([f"{variant}, {of}: {PARTS[name][0]}", *filter(None, [threads])])] = {
                    "target": target, **found[variant][of]
                }  # fmt: skip
    return promised


def main() -> None:
    """Run the benchmark as requested on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="only break down the overhead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs per fit")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; one is least affected by other jobs")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="parts to update")
    options = parser.parse_args()
    as_the_program(options.threads)
    if options.where:
        measure(options.rounds)
        return
    results = stored("speed").get("parts", {})
    for part in options.parts:
        title, net, batch_size, steps, with_standard = PARTS[part]
        measured = compare(title, net, batch_size, steps, options, with_standard)
        results[part if options.threads == 1 else f"{part}, {options.threads} threads"] = {
            "machine": machine(),
            "rounds": options.rounds,
            "timed epochs a fit": options.epochs,
            **measured,
        }
        save("speed", {"claims": claims(results), "parts": results})  # in case the script is interrupted
    rows = [[name, row["target"], show_ratio(row)] for name, row in claims(results).items()]
    table("Claims", ["", "target", "measured"], rows)


if __name__ == "__main__":
    main()
