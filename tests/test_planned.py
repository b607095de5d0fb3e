"""The plan of the learning rate is the rate that the run then has."""

import csv
import re
from pathlib import Path

import pytest
import yaml

from tiny import TINY

RUN = (
    f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false --trainer.log_every_n_steps=1"
)
CONSTANT = "{class_path: torch.optim.lr_scheduler.ConstantLR, init_args: {factor: 0.5, total_iters: 4}}"
STEP = "{class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1, gamma: 0.1}}"
DOCS = (Path(__file__).parents[1] / "docs" / "training.md").read_text()
BLOCKS = re.findall(r"```yaml\n(schedulers:.*?)```", DOCS, re.DOTALL)
SCHEDULES = {
    "one cycle": "[{scheduler: lit_project.optim.OneCycleLR, interval: step}]",
    "two": f"[{{scheduler: {CONSTANT}, interval: step, frequency: 3}}, {{scheduler: {STEP}, interval: epoch}}]",
    "none": "null",
}


@pytest.mark.draws
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_is_what_happens(lit, name, accumulate):
    options = [f"--model.schedulers={SCHEDULES[name]}", f"--trainer.accumulate_grad_batches={accumulate}"]
    result = lit(RUN, options, "--plot_lr=true")
    assert result.status == 0, result.err
    assert (result.run / "figures" / "planned_learning_rate.png").stat().st_size > 5000
    assert not (result.run / "checkpoints").exists()
    real = lit(RUN, options)
    assert real.status == 0, real.err
    rows = csv.DictReader((real.run / "metrics.csv").open())
    rates = {int(row["step"]): float(row["lr"]) for row in rows if row["train/loss_step"]}
    with (result.run / "figures" / "planned_learning_rate.csv").open() as file:
        planned = {int(row["step"]): float(row["lr"]) for row in csv.DictReader(file)}
    assert planned == pytest.approx(rates, rel=1e-5)
    assert len(rates) == 3 * -(-10 // accumulate)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_schedules_of_the_documentation(lit, block):
    result = lit(RUN, [f"--model.schedulers={yaml.safe_load(block)['schedulers']}"], "--plot_lr=true")
    assert result.status == 0, result.err


def test_each_group_has_its_line(lit):
    groups = "--model.parameter_groups={layer_decay: 0.5}"
    result = lit(RUN, [groups], "--plot_lr=true")
    assert result.status == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("lr/")]
    assert len(lines) == 2


def test_a_run_without_end_has_no_plan(lit):
    result = lit(RUN, "--trainer.max_epochs=-1 --model.schedulers=null --plot_lr=true")
    assert result.status == 2
    assert "has no plan" in result.err


# family: translation
def test_the_plan_of_several_optimizers(lit):
    result = lit("fit -c configs/translation_two_optimizers.yaml --model.accumulate=4 --plot_lr=true")
    assert result.status == 0, result.err
    lines = [line for line in result.out.splitlines() if line.startswith("lr/")]
    assert len(lines) == 2
