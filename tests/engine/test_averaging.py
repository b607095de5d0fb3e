"""The mean of the last epochs' weights."""

import torch

from lit_project.engine.checkpoints import average, read
from lit_project.engine.run import RunDir

QUICK = "fit -c configs/translation_quickstart.yaml -c configs/overlays/debug.yaml --model.net.hidden_size=16"

KEEP = """
trainer:
  callbacks: # instead of those of the config
    - class_path: lit_project.engine.checkpoints.Checkpoint
      init_args: {monitor: val/loss, mode: min, keep_last: 2}
"""


def save(path, **weights):
    torch.save({"state_dict": weights, "hyper_parameters": {"a": 1}, "optimizer_states": [1]}, path)
    return path


def test_floats_are_averaged_and_counts_are_not(tmp_path):
    one = save(tmp_path / "1.ckpt", w=torch.tensor([1.0, 2.0]), n=torch.tensor(3))
    two = save(tmp_path / "2.ckpt", w=torch.tensor([2.0, 6.0]), n=torch.tensor(5))
    content = read(average([one, two], tmp_path / "average.ckpt"))
    assert content["state_dict"]["w"].tolist() == [1.5, 4.0]
    assert content["state_dict"]["w"].dtype == torch.float32
    assert content["state_dict"]["n"] == 3
    assert content["averaged"] == ["1.ckpt", "2.ckpt"]
    assert "optimizer_states" not in content


def test_a_run_keeps_its_last_epochs_and_tests_their_mean(lit, workspace):
    workspace.joinpath("keep.yaml").write_text(KEEP)
    fit = lit(f"{QUICK} -c keep.yaml --trainer.max_epochs=3 --run_name=kept")
    assert fit.status == 0, fit.err
    folder = fit.run / "checkpoints"
    assert sorted(path.name for path in folder.glob("epoch*")) == ["epoch001.ckpt", "epoch002.ckpt"]
    result = lit(f"test --run {fit.run} --ckpt_path average")
    assert result.status == 0, result.err
    means = read(folder / "average.ckpt")["state_dict"]
    one, two = (read(folder / f"epoch00{n}.ckpt")["state_dict"] for n in (1, 2))
    for name, value in means.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (one[name] + two[name]) / 2)
    assert RunDir(fit.run).newest()[0].name == "last.ckpt"  # a resumed run does not begin at the mean
