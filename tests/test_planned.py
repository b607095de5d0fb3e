"""The plan of the learning rate is the rate that the run then has."""

import csv

import pytest

from tiny import TINY

RUN = (
    f"fit -c configs/quickstart.yaml {TINY} --trainer.max_epochs=3 --test_after_fit=false --trainer.log_every_n_steps=1"
)
CONSTANT = "{class_path: torch.optim.lr_scheduler.ConstantLR, init_args: {factor: 0.5, total_iters: 4}}"
STEP = "{class_path: torch.optim.lr_scheduler.StepLR, init_args: {step_size: 1, gamma: 0.1}}"
SCHEDULES = {
    "one cycle": "[{scheduler: lit_project.optim.OneCycleLR, interval: step}]",
    "two": f"[{{scheduler: {CONSTANT}, interval: step, frequency: 3}}, {{scheduler: {STEP}, interval: epoch}}]",
    "none": "null",
}


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_is_what_happens(lit, monkeypatch, name, accumulate):
    drawn = {}
    options = [f"--model.schedulers={SCHEDULES[name]}", f"--trainer.accumulate_grad_batches={accumulate}"]
    with monkeypatch.context() as patch:
        from lit_project import planned

        original = planned.learning_rates
        patch.setattr(planned, "learning_rates", lambda curves: drawn.update(curves) or original(curves))
        result = lit(RUN, options, "--plot_lr=true")
    assert result.status == 0, result.err
    assert (result.run / "figures" / "planned_learning_rate.png").stat().st_size > 5000
    assert not (result.run / "checkpoints").exists()
    real = lit(RUN, options)
    assert real.status == 0, real.err
    rows = csv.DictReader((real.run / "metrics.csv").open())
    rates = {int(row["step"]): float(row["lr"]) for row in rows if row["train/loss_step"]}
    assert dict(drawn["lr"]) == pytest.approx(rates, rel=1e-5)
    assert len(rates) == 3 * -(-10 // accumulate)


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
