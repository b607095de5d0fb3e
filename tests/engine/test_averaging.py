"""The mean of the last epochs' weights."""

import torch

from lit_project.engine.checkpoints import read
from lit_project.engine.run import RunDir

QUICK = "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml"

KEEP = """
trainer:
  callbacks: # instead of those of the config
    - class_path: lit_project.engine.checkpoints.Checkpoint
      init_args: {monitor: val/loss, mode: min, keep_last: 2}
"""


def test_a_run_keeps_its_last_epochs_and_tests_their_mean(lit, workspace):
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
        # the counts of batch norm are not averaged
        expected = (one[name] + two[name]) / 2 if value.is_floating_point() else one[name]
        torch.testing.assert_close(value, expected)
    assert RunDir(fit.run).newest()[0].name == "last.ckpt"  # a resumed run does not begin at the mean
