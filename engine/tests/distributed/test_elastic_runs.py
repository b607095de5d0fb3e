"""Runs with `data.global_batch_size` that are resumed with different numbers of processes and micro-batches."""

import signal

import pytest

from helpers import TINY, TOY, difference, run_in
from killing import at_call
from toy.tasks import ImageClassifier

# Batch norm, dropout and augmentation are disabled, because they depend on the batch or the process.
FIT = (
    f"fit -c {TOY}/configs/quickstart.yaml {TINY} --data.train_transforms=null "
    "--test_after_fit=false --trainer.accelerator=cpu"
)
DOUBLE = """--trainer.precision=64-true --trainer.callbacks=[{"class_path":"Checkpoint"}]"""


@pytest.mark.slow
def test_a_run_can_resume_from_any_step_with_different_micro_batches(lit, monkeypatch):
    """The last step has fewer samples. Runs stop in training or validation, and the schedule spans the whole run."""
    command = f"{FIT} {DOUBLE} --trainer.max_epochs=2 --data.eval_batch_size=60"
    whole = lit(f"{command} --data.batch_size=120 --run_name=whole")
    assert whole.status == 0, whole.err
    command += " --run_name=parts --data.batch_size=120"
    for windows, step, call in ((1, "training_step", 4), (60, "evaluation_step", 2), (3, "training_step", 5)):
        with monkeypatch.context() as patch:
            at_call(patch, ImageClassifier, step, call, signal.SIGTERM)
            cut = lit(f"{command} --trainer.accumulate_grad_batches={windows}")
            assert cut.status == 128 + signal.SIGTERM, cut.err
        command = f"fit --run {cut.run} --data.batch_size=null --data.global_batch_size=120"
    resumed = lit(f"{command} --trainer.accumulate_grad_batches=2")
    assert resumed.status == 0, resumed.err
    assert difference(whole.run, cut.run) < 1e-13


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("precision", "largest"), [(DOUBLE, 1e-12), ("", 1e-6)])
def test_resuming_with_2_4_and_1_processes_matches_a_single_process_run(tmp_path, precision, largest):
    """Steps have 8 samples, or 1 at the end of an epoch, in up to four micro-batches. Runs stop mid-epoch."""
    steps = "--model.schedulers=null --data.batch_size=null --data.global_batch_size=8 --trainer.max_epochs=4"
    fit = f"{FIT} {precision} {steps}"
    run_in(tmp_path, *fit.split(), "--run_name=whole")
    runs = tmp_path / "runs" / "quickstart"
    command = f"{fit} --run_name=parts"
    for processes, accumulate, steps in ((1, 1, 100), (2, 2, 300), (4, 1, 500), (1, 4, -1)):
        launch = f"--trainer.strategy={'ddp' if processes > 1 else 'auto'} --trainer.devices={processes}"
        limits = f"--trainer.accumulate_grad_batches={accumulate} --trainer.max_steps={steps}"
        run_in(tmp_path, *f"{command} {launch} {limits}".split())
        command = f"fit --run {runs / 'parts'}"
    found = difference(runs / "whole", runs / "parts")
    print(f"largest difference of a weight {precision[:27]}: {found:.1e}")
    assert found < largest


@pytest.mark.slow
def test_gradients_of_layers_unfrozen_later_are_averaged_over_processes(lit, tmp_path):
    """DDP averages only the parameters that required gradients when it wrapped the model."""
    unfreeze = '{"class_path":"Unfreezing","init_args":{"schedule":{"net.layers.1":1}}}'
    fit = (
        f'{FIT} --trainer.callbacks=[{{"class_path":"Checkpoint"}},{unfreeze}] --trainer.precision=64-true '
        "--data.batch_size=null --data.global_batch_size=64 --trainer.max_epochs=2"
    )
    one = lit(f"{fit} --run_name=one")
    assert one.status == 0, one.err
    run_in(tmp_path, *f"{fit} --run_name=two --trainer.strategy=ddp --trainer.devices=2".split())
    assert difference(one.run, tmp_path / "runs/quickstart/two") < 1e-12


@pytest.mark.parametrize(("options", "message"), [
    ("--data.global_batch_size=64", "set either batch_size or global_batch_size, got 128 and 64: --data.batch_size="),
    ('--data.batch_size=null --data.global_batch_size=64 --trainer.callbacks=[{"class_path":'
     '"lightning.pytorch.callbacks.GradientAccumulationScheduler","init_args":{"scheduling":{"0":2}}}]',
     "GradientAccumulationScheduler does not support global_batch_size"),
    ("--data.batch_size=null --data.global_batch_size=64 --find batch_size", "no batch_size to tune: set batch_size"),
])  # fmt: skip
def test_contradictory_batch_sizes_cause_a_one_line_error(lit, options, message):
    result = lit(f"{FIT} {options}")
    assert (result.status, len(result.err.splitlines())) == (2, 1)
    assert message in result.err
