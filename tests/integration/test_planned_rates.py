"""Tests `--plot_lr` with the schedules in docs/training.md, and all planning options with several optimizers."""

import re
from pathlib import Path

import pytest
import yaml

from translation_run import NET, SIZES

DOCS = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
BLOCKS = re.findall(r"```yaml\n(schedulers:.*?)```", DOCS, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_documented_schedules_can_be_plotted(lit, block):
    result = lit(
        "fit quickstart --epochs 3", [f"--model.schedulers={yaml.safe_load(block)['schedulers']}"], "--plot_lr"
    )
    assert result.status == 0, result.err


def test_lr_plot_has_one_line_per_optimizer(lit):
    result = lit("fit translation_two_optimizers --model.accumulate=4 --plot_lr")
    assert result.status == 0, result.err
    assert len([line for line in result.out.splitlines() if line.startswith("lr/")]) == 2


@pytest.mark.parametrize(("option", "line"), [
    ("--find batch_size", "suggested: --data.batch_size="),
    ("--plan", "time: "),
])  # fmt: skip
def test_planning_options_work_with_several_optimizers(lit, option, line):
    result = lit(f"fit translation_two_optimizers {SIZES} {NET} {option}")
    assert result.status == 0, result.err
    assert line in result.out
