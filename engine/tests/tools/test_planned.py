"""The planned learning rates match the learning rates of the run."""

import csv

import pytest

from helpers import TINY
from lit_engine.tools import lr_finder

RUN = (
    f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false --trainer.log_every_n_steps=1"
)
CONSTANT = "{class_path: torch.optim.lr_scheduler.ConstantLR, init_args: {factor: 0.5, total_iters: 4}}"
STEP = "{class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1, gamma: 0.1}}"
SCHEDULES = {
    "one cycle": "[{scheduler: lit_engine.training.schedules.OneCycleLR, interval: step}]",
    "two": f"[{{scheduler: {CONSTANT}, interval: step, frequency: 3}}, {{scheduler: {STEP}, interval: epoch}}]",
    "none": "null",
}


@pytest.fixture
def plans(monkeypatch):
    """Return a list that collects the plotted curves."""
    found, draw = [], lr_finder.draw_rates
    monkeypatch.setattr(lr_finder, "draw_rates", lambda curves: found.append(curves) or draw(curves))
    return found


@pytest.mark.draws
@pytest.mark.parametrize(("name", "accumulate"), [("one cycle", 1), ("two", 3), ("none", 1)])
def test_planned_learning_rates_match_the_run(lit, plans, name, accumulate):
    options = [f"--model.schedulers={SCHEDULES[name]}", f"--trainer.accumulate_grad_batches={accumulate}"]
    result = lit(RUN, options, "--plot_lr=true")
    assert result.status == 0, result.err
    assert (result.run / "figures" / "planned_learning_rate.png").stat().st_size > 5000
    assert not (result.run / "checkpoints").exists()
    real = lit(RUN, options)
    assert real.status == 0, real.err
    rows = csv.DictReader((real.run / "metrics.csv").open())
    rates = {int(row["step"]): float(row["lr"]) for row in rows if row["train/loss_step"]}
    assert dict(plans[0]["lr"]) == pytest.approx(rates, rel=1e-5)
    assert len(rates) == 3 * -(-10 // accumulate)


def test_plot_lr_rejects_a_run_without_an_end(lit):
    result = lit(RUN, "--trainer.max_epochs=-1 --model.schedulers=null --plot_lr=true")
    assert result.status == 2
    assert "cannot plan the learning rates of an unlimited run" in result.err


def test_plot_lr_prints_one_line_per_parameter_group(lit):
    result = lit(f"{RUN} --model.parameter_groups.layer_decay=0.5 --plot_lr=true")
    assert result.status == 0, result.err
    assert len([line for line in result.out.splitlines() if line.startswith("lr/")]) == 2
