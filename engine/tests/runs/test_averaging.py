"""Tests weight averaging on the command line, including the test of the averaged weights after training."""

import json

import pytest
import torch
from lightning.pytorch import Callback

from helpers import TINY
from lit_engine.checkpoints.average import average
from lit_engine.checkpoints.choose import choose_checkpoint
from lit_engine.checkpoints.io import SafeCheckpointIO, read
from lit_engine.errors import RunError
from lit_engine.run.directory import RunDir

QUICK = "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml"

KEEP = """
trainer:
  callbacks:
    - class_path: lit_engine.checkpoints.callback.Checkpoint
      init_args: {monitor: val/loss, mode: min, keep_last: 2}
"""


def test_keep_last_saves_the_last_epochs_and_test_can_average_them(lit, workspace):
    workspace.joinpath("keep.yaml").write_text(KEEP)
    fit = lit(f"{QUICK} -c keep.yaml --trainer.max_epochs=3 --run_name=kept")
    assert fit.status == 0, fit.err
    folder = fit.run / "checkpoints"
    assert sorted(path.name for path in folder.glob("epoch*")) == ["epoch001.ckpt", "epoch002.ckpt"]
    result = lit(f"test --run {fit.run} --ckpt_path average")
    assert result.status == 0, result.err
    content = read(folder / "average.ckpt")
    assert content["averaged"] == ["epoch001.ckpt", "epoch002.ckpt"]
    assert "optimizer_states" not in content
    one, two = (read(folder / f"epoch00{n}.ckpt")["state_dict"] for n in (1, 2))
    for name, value in content["state_dict"].items():
        # Batch norm's counts are not averaged.
        expected = (one[name] + two[name]) / 2 if value.is_floating_point() else one[name]
        torch.testing.assert_close(value, expected)


class Start(Callback):
    """Records the weights at the start of training."""

    weights = None

    def on_train_start(self, trainer, pl_module):
        Start.weights = {name: value.clone() for name, value in pl_module.state_dict().items()}


def test_a_run_continued_without_its_average_starts_with_the_trained_weights(lit):
    run = lit(f"{QUICK} -c ema --trainer.max_epochs=2 --model.schedulers=null").run
    trained = read(run / "checkpoints" / "last.ckpt")["current_model_state"]
    swa = "--trainer.callbacks=[{class_path: SWA, init_args: {start: 1}}]"
    forked = lit(f"fit --fork {run} --epochs 3 --name forked", [swa])
    assert forked.status == 0, forked.err
    content = read(forked.run / "checkpoints" / "last.ckpt")
    # the average of a single epoch
    torch.testing.assert_close(content["state_dict"], content["current_model_state"])
    resumed = lit(f"fit {run} --epochs 3", ["--trainer.callbacks=[{class_path: test_averaging.Start}]"])
    assert resumed.status == 0, resumed.err
    torch.testing.assert_close(Start.weights, trained, rtol=0, atol=0)


def test_complex_weights_are_averaged_and_extra_state_is_kept(tmp_path):
    files = [tmp_path / "a.ckpt", tmp_path / "b.ckpt"]
    for file, value in zip(files, (2j, 1), strict=True):
        weights = {"weight": torch.tensor([value], dtype=torch.cfloat), "_extra_state": {"names": ["a"]}}
        SafeCheckpointIO().save_checkpoint({"state_dict": weights}, file)
    found = read(average(files, tmp_path / "average.ckpt"))["state_dict"]
    assert (found["weight"].dtype, found["weight"].tolist()) == (torch.cfloat, [0.5 + 1j])
    assert found["_extra_state"] == {"names": ["a"]}


def test_average_ignores_checkpoints_not_saved_by_keep_last(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "epoch=3-step=400.ckpt").touch()  # saved by Lightning's ModelCheckpoint
    with pytest.raises(RunError, match="no checkpoints to average: set keep_last"):
        choose_checkpoint(RunDir(tmp_path), "average")


@pytest.mark.parametrize("overlay", ["ema", "swa"])
def test_the_test_after_fit_matches_a_separate_test_of_the_run(lit, overlay, recwarn):
    # With a constant learning rate, the average and the last weights are very different.
    result = lit(
        f"fit -c configs/quickstart.yaml -c configs/overlays/{overlay}.yaml {TINY} --trainer.max_epochs=4",
        "--model.schedulers=null --run_name=averaged --data.batch_size=16",
    )
    assert result.status == 0, result.err
    after_fit = json.loads((result.run / "metrics.json").read_text())["test"]
    assert lit(f"test --run {result.run}").status == 0
    assert json.loads((result.run / "metrics.json").read_text())["test"] == after_fit
    assert not [warning for warning in recwarn if "ckpt_path" in str(warning.message)]  # a warning would be wrong
    assert after_fit["test/accuracy"] > 0.8  # even in a short run, the average is not dominated by the first steps


def test_a_run_cannot_use_two_weight_averages(lit):
    overlays = "-c configs/overlays/ema.yaml -c configs/overlays/swa.yaml"
    result = lit(f"fit -c configs/quickstart.yaml {overlays}")
    assert result.status == 2
    assert "a run can use only one weight average: remove one of the callbacks EMA and SWA" in result.err
