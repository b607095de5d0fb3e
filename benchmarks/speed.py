"""Speed of a full-featured `lit-project fit`: against a loop by hand, and against the customary Lightning pipeline.

    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py             about six minutes
    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py --where     where the overhead of a step comes from
    OMP_WAIT_POLICY=PASSIVE python benchmarks/speed.py --processes    two processes against one

All on Fashion-MNIST in one process, in turns, several rounds; a number is the median of the ratios of the rounds, with
the least and the greatest beside it. What is timed is whole epochs, training and validation of 5,000 images, from the
start of one to the start of the next; start-up and the first epoch of every fit are left out. CPU seconds, those of the
process, vary less than seconds on a machine that others use too; with one thread on an idle machine the two are alike.

- template: `lit-project fit` on a terminal: progress bar, metrics.csv, best and last checkpoint each epoch, figures.
- plain: a loop by hand over the same tensors (`plain.Plain`), which keeps loss and accuracy and nothing else.
- customary: torchvision transforms a sample, DataLoader, `self.log` at each step (`baselines.customary`).

The optimizer is Adam with its defaults; "fused" is with `fused: true`, as in the configs. All reuse freed memory, as
the command line does. The customary pipeline and what it is compared with run epochs of 400 steps, for time; template
and plain are compared on full epochs (860 steps).
"""

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from baselines import customary
from common import DATA, RESULTS, Times, as_the_program, fit, interleave, machine, ratio, save, show_ratio, table

from lit_project.data.mnist import FashionMNIST
from lit_project.models.mlp import MLP
from plain import Plain

SHORT = 400  # steps of an epoch where the customary pipeline takes part
LARGE: dict[str, Any] = {"hidden_sizes": [512, 512]}
SMALL: dict[str, Any] = {"hidden_sizes": [64, 128, 64], "norm": "batch"}
# title, net, batch size, steps of an epoch (None: all), whether the customary pipeline takes part
PARTS: dict[str, tuple[str, dict[str, Any], int, int | None, bool]] = {
    "full": ("784-512-512-10, batch 64", LARGE, 64, None, False),
    "large": ("784-512-512-10, batch 64", LARGE, 64, SHORT, True),
    "small": ("784-64-128-64-10 with batch norm, batch 128", SMALL, 128, SHORT, True),
}
OVERHEAD = [("template", "of plain"), ("template, fused", "of plain, fused"), ("template, fused", "of plain")]
CLAIMS = {
    "full": [(*claim, "at most 1.05") for claim in OVERHEAD],
    "large": [("customary, 0 workers", "of template", "at least 1.4"), ("customary, 2 workers", "of template", "")],
    "small": [*((*claim, "at most 1.2") for claim in OVERHEAD), ("customary, 0 workers", "of template", "at least 4"),
              ("customary, 2 workers", "of template", "")],
}  # fmt: skip


def template(net: dict[str, Any], batch_size: int, epochs: int, steps: int | None, fused: bool = False) -> Times:
    """Times of the mean of `epochs` epochs of `lit-project fit`, after one to warm up."""
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
            with_customary: bool) -> dict[str, Any]:  # fmt: skip
    """Measures one net; prints a table and returns the numbers."""
    data = FashionMNIST(root=DATA)
    data.prepare_data()
    data.setup("fit")

    def new_net() -> MLP:
        torch.manual_seed(42)
        return MLP((1, 28, 28), 10, **net)

    def plain(fused: bool = False) -> Times:
        loop = Plain(new_net(), data.splits["train"], data.splits["val"], batch_size, steps, fused)
        return loop.times(options.epochs)

    ours = partial(template, net, batch_size, options.epochs, steps)
    variants: dict[str, Callable[[], Times]] = {"plain": plain, "template": ours}
    variants |= {"plain, fused": partial(plain, True), "template, fused": partial(ours, True)}
    if with_customary:
        for workers in (0, 2):
            variants[f"customary, {workers} workers"] = partial(
                customary, new_net, batch_size, workers, options.epochs, steps
            )
    times = interleave(variants, options.rounds)
    count = steps or -(-data.size_of("train") // batch_size)
    result: dict[str, Any] = {"steps": count, "batch size": batch_size}
    rows = []
    for name, values in times.items():
        alone = not name.endswith("2 workers")  # no child processes, whose computing is not in `cpu`
        result[name] = {
            "seconds an epoch": [t.wall for t in values],
            "CPU seconds an epoch": [t.cpu for t in values] if alone else None,
            "of plain": ratio(values, times["plain"]),
            "of plain, CPU": ratio(values, times["plain"], "cpu") if alone else None,
            "of plain, fused": ratio(values, times["plain, fused"]),
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
        f"{title}, {count} steps an epoch",
        ["", "s/epoch", "µs/step", "of plain", "of plain, CPU", "of plain, fused", "of template"],
        rows,
    )
    for clock in ("wall", "cpu"):
        pairs = zip(times["template"], times["plain"], strict=True)
        extra = [getattr(a - b, clock) / count * 1e6 for a, b in pairs]
        median, spread = statistics.median(extra), f"({min(extra):.0f} to {max(extra):.0f})"
        result[f"template - plain, µs a step, {clock}"] = median
        print(f"  template - plain, {clock}: {median:.0f} µs a step {spread}")
    return result


def claims(results: dict[str, Any]) -> dict[str, Any]:
    """The promised ratios of the parts that were measured."""
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
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--where", action="store_true", help="break the overhead down instead")
    parser.add_argument("--processes", action="store_true", help="what a second process costs and gives instead")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=2, help="timed epochs of each fit")
    parser.add_argument("--threads", type=int, default=1, help="of torch; one is least disturbed by other programs")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="others stay in the file")
    options = parser.parse_args()
    as_the_program(options.threads)
    if options.where or options.processes:
        from overhead import measure, processes

        return measure(options.rounds) if options.where else processes(options.rounds)
    file = RESULTS / "speed.json"
    results = json.loads(file.read_text()).get("parts", {}) if file.exists() else {}
    for part in options.parts:
        title, net, batch_size, steps, with_customary = PARTS[part]
        measured = compare(title, net, batch_size, steps, options, with_customary)
        results[part if options.threads == 1 else f"{part}, {options.threads} threads"] = {
            "machine": machine(),
            "rounds": options.rounds,
            "timed epochs a fit": options.epochs,
            **measured,
        }
        save("speed", {"claims": claims(results), "parts": results})  # at once, for a run that is cut short
    rows = [[name, row["target"], show_ratio(row)] for name, row in claims(results).items()]
    table("Claims", ["", "target", "measured"], rows)
    return None


if __name__ == "__main__":
    main()
