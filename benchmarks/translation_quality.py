"""BLEU and chrF of the shipped translation configs over several seeds, beside the baselines.

    python benchmarks/translation_quality.py translation_quickstart tatoeba_fra_eng tatoeba_eng_fra
    python benchmarks/translation_quality.py multi30k_en_fr --seeds 1 2 --workers 2 --threads 1

Each run is `lit-project fit`; the checkpoint is chosen by BLEU on validation and tested once. Runs are kept in runs/;
finished ones are not repeated and cut ones are resumed. Prints a table, writes
benchmarks/results/translation_quality.json, where other seeds of before stay.
"""

import argparse
import json
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import RESULTS
from quality import merged, run

OTHER_WAY = ["--data.source=en", "--data.target=fr"]
BF16 = ["--trainer.precision=bf16-mixed"]
# name → config, further options, metric of the target, target
TASKS: dict[str, tuple[str, list[str], str, float | None]] = {
    "translation_quickstart": ("translation_quickstart", [], "bleu", 95.0),
    "tatoeba_fra_eng": ("tatoeba_fra_eng", [], "bleu", None),
    "tatoeba_eng_fra": ("tatoeba_fra_eng", OTHER_WAY, "bleu", None),
    "tatoeba_eng_fra_full": ("tatoeba_eng_fra_full", BF16, "bleu", None),
    "multi30k_en_fr": ("multi30k_en_fr", BF16, "bleu_lowercase", 55.0),
    "multi30k_en_de": ("multi30k_en_de", BF16, "bleu_lowercase", 36.0),
    "multi30k_de_en": ("multi30k_de_en", BF16, "bleu_lowercase", 32.0),
}
METRICS = ("test/bleu", "test/chrf", "test/perplexity")


def entry(
    task: str, results: dict[int, dict[str, Any]], before: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """The entry of a task: its seeds of `before` that were not run now, and those of now."""
    rows = {
        seed: {name.removeprefix("test/"): score for name, score in metrics["test"].items() if name.startswith(METRICS)}
        | {name: metrics["fit"][name] for name in ("epochs", "seconds")}
        for seed, metrics in results.items()
    }
    columns = merged(rows, {**before, **before.get("test", {})})
    seeds, epochs, seconds = (columns.pop(name) for name in ("seeds", "epochs", "seconds"))
    last = list(results.values())[-1]["test"]
    _, more, metric, target = TASKS[task]
    return {
        "options": more,
        "seeds": seeds,
        "target": None if target is None else {metric: target},
        "mean": {name: round(statistics.mean(values), 2) for name, values in columns.items()},
        "std": {name: round(statistics.stdev(values), 2) if len(values) > 1 else None
                for name, values in columns.items()},
        "test": columns,
        "signatures": last["signatures"],
        "test pairs": last["test/samples"],
        "epochs": epochs,
        "seconds": seconds,
        "threads": options.threads,
        "runs at a time": options.workers,
    }  # fmt: skip


def main() -> None:
    """Runs what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", default=list(TASKS), help=f"of {', '.join(TASKS)}")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads a run")
    options = parser.parse_args()
    jobs = [(task, seed) for task in options.tasks for seed in options.seeds]

    def one(job: tuple[str, int]) -> dict[str, Any]:
        task, seed = job
        config, more, _, _ = TASKS[task]
        return run(config, seed, options.threads, more, f"quality-{task}-seed{seed}")

    with ThreadPoolExecutor(options.workers) as pool:
        done = list(pool.map(one, jobs))
    file = RESULTS / "translation_quality.json"
    table = json.loads(file.read_text()) if file.exists() else {}
    for task in options.tasks:
        results = {job[1]: metrics for job, metrics in zip(jobs, done, strict=True) if job[0] == task}
        table[task] = entry(task, results, table.get(task, {}), options)
    file.write_text(json.dumps(table, indent=2) + "\n")
    print(f"{'task':<24}{'metric':<16}{'mean ± std':>14}{'target':>8}{'seeds':>7}")
    for task, row in table.items():
        for name, mean in row["mean"].items():
            goal = (row["target"] or {}).get(name)
            spread = f"{mean:.2f} ± {row['std'][name] or 0:.2f}"
            print(f"{task:<24}{name:<16}{spread:>14}{'' if goal is None else goal:>8}{len(row['seeds']):>7}")


if __name__ == "__main__":
    main()
