"""Every shipped overlay runs on the quickstart."""

from pathlib import Path

import pytest
import yaml

OVERLAYS = sorted(path.name for path in (Path(__file__).parents[1] / "configs" / "overlays").glob("*.yaml"))
# what makes an overlay for other machines run here, in one process
ELSEWHERE = {
    "gpu.yaml": "--trainer.accelerator=cpu",
    **dict.fromkeys(("ddp.yaml", "fsdp2.yaml", "tensor_parallel.yaml"), "--trainer.devices=1 --trainer.strategy=auto"),
    "compile.yaml": "--model.compile=eager",  # without a C++ compiler
}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlay(lit, overlay):
    here = ELSEWHERE.get(overlay, "")
    result = lit(f"fit -c configs/quickstart.yaml -c configs/overlays/{overlay} -c configs/overlays/debug.yaml {here}")
    assert result.status == 0, result.err
    config = yaml.safe_load((result.run / "config.yaml").read_text())
    names = [callback["class_path"].rpartition(".")[2] for callback in config["trainer"]["callbacks"]]
    assert names[:2] == ["Checkpoint", "Figures"]  # those of the config are still there
