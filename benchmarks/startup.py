"""Time of `lit-project fit --help` against that of importing LightningCLI, which every Lightning command line does.

    python benchmarks/startup.py

Both are started as processes in turns; the claim is the median of the ratios of the rounds, at most 1.2. CPU seconds
are those of the started process; they vary less than seconds on a machine that others use too.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common import Times, interleave, ratio, save, show_ratio, table


def process(*command: str) -> Callable[[], Times]:
    """Times a process from its start to its end."""

    def now() -> Times:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Times(time.perf_counter(), children.ru_utime + children.ru_stime)

    def run() -> Times:
        start = now()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return now() - start

    return run


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    variants = {
        "import lightning.pytorch.cli": process(sys.executable, "-c", "import lightning.pytorch.cli"),
        "lit-project fit --help": process(str(Path(sys.executable).with_name("lit-project")), "fit", "--help"),
    }
    for run in variants.values():
        run()  # fills the disk cache
    times = interleave(variants, options.rounds)
    base = times["import lightning.pytorch.cli"]
    result, rows = {}, []
    for name, values in times.items():
        ratios = {clock: ratio(values, base, clock) for clock in ("wall", "cpu")}
        seconds, cpu_seconds = [t.wall for t in values], [t.cpu for t in values]
        result[name] = {"seconds": seconds, "CPU seconds": cpu_seconds, "of the import": ratios}
        medians = [f"{statistics.median(seconds):.2f}", f"{statistics.median(cpu_seconds):.2f}"]
        rows.append([name, *medians, show_ratio(ratios["wall"]), show_ratio(ratios["cpu"])])
    table("Start-up", ["", "seconds", "CPU seconds", "of the import", "of the import, CPU"], rows)
    save("startup", {"rounds": options.rounds, "target of lit-project fit --help": "at most 1.2", **result})


if __name__ == "__main__":
    main()
