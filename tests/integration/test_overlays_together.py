"""Tests that overlays can be combined with each other and with the quickstart of each family."""

from pathlib import Path

import pytest
import yaml

CONFIGS = sorted(path.name for path in (Path(__file__).parents[2] / "configs").glob("*.yaml"))


def test_trainer_overlays_combine_with_every_quickstart(lit):
    overlays = ("accumulate", "bf16", "ddp", "debug", "early_stopping", "ema", "gpu", "nan_guard", "no_decay", "wandb")
    files = " ".join(f"-c configs/overlays/{name}.yaml" for name in overlays)
    for config in CONFIGS:
        if config.endswith("quickstart.yaml"):
            with pytest.raises(SystemExit) as ended:  # --print_config exits; errors would return 2
                lit(f"fit -c configs/{config} {files} --print_config")
            assert ended.value.code == 0


def test_mixup_and_cutmix_overlays_can_be_combined(lit, capfd):
    overlays = "-c configs/overlays/mixup.yaml -c configs/overlays/cutmix.yaml"
    with pytest.raises(SystemExit):
        lit(f"fit -c configs/quickstart.yaml {overlays} --print_config")
    mixing = yaml.safe_load(capfd.readouterr().out)["model"]["init_args"]["mixing"]
    assert mixing["mixup_alpha"] == 0.2
    assert mixing["cutmix_alpha"] == 1.0
