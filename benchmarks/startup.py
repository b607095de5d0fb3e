"""Time of `lit-project --help` against that of importing LightningCLI, which every Lightning command line does.

    python benchmarks/startup.py

Both are started as processes in turns; the claim is the median of the ratios of the rounds, at most 1.2.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from common import interleave, ratio, save, show_ratio, table


def seconds(*command: str) -> Callable[[], float]:
    """Times a process from its start to its end."""

    def run() -> float:
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    return run


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    script = str(Path(sys.executable).with_name("lit-project"))
    variants = {
        "import lightning.pytorch.cli": seconds(sys.executable, "-c", "import lightning.pytorch.cli"),
        "lit-project --help": seconds(script, "--help"),
        "lit-project fit --help": seconds(script, "fit", "--help"),
    }
    for run in variants.values():
        run()  # fills the disk cache
    values = interleave(variants, options.rounds)
    base = values["import lightning.pytorch.cli"]
    ratios = {name: ratio(times, base) for name, times in values.items()}
    rows = [[name, f"{statistics.median(times):.2f}", show_ratio(ratios[name])] for name, times in values.items()]
    table("Start-up", ["", "seconds", "of the import"], rows)
    save("startup", {"rounds": options.rounds, "target of --help": "at most 1.2", "seconds": values, "ratios": ratios})


if __name__ == "__main__":
    main()
