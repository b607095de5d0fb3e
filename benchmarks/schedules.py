"""Draws the schedules of docs/optimisation.md, as `--plot_lr` plans them: docs/figures/schedules.png.

python benchmarks/schedules.py
"""

import argparse
import csv
import os
import re
import tempfile
from pathlib import Path

import yaml
from common import ROOT

from lit_project.__main__ import main as lit_project
from lit_project.engine.callbacks.figures import new_figure

RUN = [
    "fit", "-c", str(ROOT / "configs" / "quickstart.yaml"), "--trainer.max_epochs=3",
    "--trainer.limit_train_batches=100", "--data.batch_size=12", "--plot_lr=true", "--model.optimizer.lr=0.1",
]  # fmt: skip


def main() -> None:
    """Draws."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    text = (ROOT / "docs" / "optimisation.md").read_text()
    blocks = re.findall(r"([^\n]+):\n\n```yaml\n(schedulers:.*?)```", text, re.DOTALL)
    figure = new_figure(10, 5)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, (title, block) in enumerate(blocks):
            lit_project([*RUN, f"--model.schedulers={yaml.safe_load(block)['schedulers']}", f"--run_name={number}"])
            with (Path("runs") / "quickstart" / str(number) / "figures" / "planned_learning_rate.csv").open() as file:
                points = [(int(row["step"]), float(row["lr"])) for row in csv.DictReader(file)]
            columns = -(-len(blocks) // 2)
            axes = figure.add_subplot(2, columns, number + 1)
            axes.plot(*zip(*points, strict=True))
            axes.set_title(title.partition(" (")[0], fontsize=8)
            axes.set(ylim=(0, 0.105), xlabel="optimizer step")
            if number % columns == 0:
                axes.set_ylabel("learning rate")
            axes.grid(alpha=0.3)
    figure.savefig(ROOT / "docs" / "figures" / "schedules.png")


if __name__ == "__main__":
    main()
