"""Averaged weights from the command line: what is tested after the training is the checkpoint that is kept."""

import json

import pytest


@pytest.mark.parametrize("overlay", ["ema", "swa"])
def test_the_test_after_a_fit_is_the_test_of_its_run(lit, overlay):
    # a constant rate, at which the average and the last weights are far apart
    result = lit(
        f"fit -c configs/quickstart.yaml -c configs/overlays/{overlay}.yaml --trainer.max_epochs=4",
        "--model.schedulers=null --run_name=averaged",
    )
    assert result.status == 0, result.err
    after_fit = json.loads((result.run / "metrics.json").read_text())["test"]
    assert lit(f"test --run {result.run}").status == 0
    assert json.loads((result.run / "metrics.json").read_text())["test"] == after_fit
    assert after_fit["test/accuracy"] > 0.8  # also in this short run, the average is not that of its first steps


def test_two_averages_are_an_error(lit):
    overlays = "-c configs/overlays/ema.yaml -c configs/overlays/swa.yaml"
    result = lit(f"fit -c configs/quickstart.yaml {overlays}")
    assert result.status == 2
    assert "only one average of the weights can be at work, and these are configured: EMA and SWA" in result.err
