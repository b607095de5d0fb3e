"""Overlays on the quickstart of each family, and combinations of overlays."""

from pathlib import Path

import pytest
import yaml

from lit_engine.checkpoints.io import read

CONFIGS = sorted(path.name for path in (Path(__file__).parents[2] / "configs").glob("*.yaml"))


def test_overlays_of_the_trainer_fit_every_family(lit):
    overlays = ("accumulate", "bf16", "ddp", "debug", "early_stopping", "ema", "gpu", "nan_guard", "no_decay", "wandb")
    files = " ".join(f"-c configs/overlays/{name}.yaml" for name in overlays)
    for config in CONFIGS:
        if config.endswith("quickstart.yaml"):
            with pytest.raises(SystemExit) as ended:  # --print_config exits; errors would return 2
                lit(f"fit -c configs/{config} {files} --print_config")
            assert ended.value.code == 0


def test_mixup_and_cutmix_add_up(lit, capfd):
    overlays = "-c configs/overlays/mixup.yaml -c configs/overlays/cutmix.yaml"
    with pytest.raises(SystemExit):
        lit(f"fit -c configs/quickstart.yaml {overlays} --print_config")
    mixing = yaml.safe_load(capfd.readouterr().out)["model"]["init_args"]["mixing"]
    assert mixing["mixup_alpha"] == 0.2
    assert mixing["cutmix_alpha"] == 1.0


def test_tensorboard_gets_scalars_images_and_graph_and_loggers_add_up(lit):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overlays = "-c configs/overlays/tensorboard.yaml -c configs/overlays/wandb.yaml -c configs/overlays/debug.yaml"
    result = lit(f"fit -c configs/quickstart.yaml {overlays}")
    assert result.status == 0, result.err
    assert (result.run / "wandb").is_dir()
    events = EventAccumulator(str(result.run / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "val/accuracy", "lr"} <= set(tags["scalars"])
    assert {"train/images", "learning_curves", "test/confusion_matrix"} <= set(tags["images"])
    assert tags["graph"]


def test_tensorboard_moves_no_frozen_statistics_and_needs_no_graph(lit):
    unfreezing = "[{class_path: lit_engine.callbacks.freezing.Unfreezing, init_args: {schedule: {net.features: null}}}]"
    result = lit(
        "fit -c configs/quickstart.yaml",
        [f"--trainer.callbacks+={unfreezing}", "--model.compile=aot_eager"],
        "-c configs/overlays/tensorboard.yaml --trainer.max_epochs=1 --test_after_fit=false",
        "--trainer.limit_train_batches=2 --trainer.limit_val_batches=1",
    )
    assert result.status == 0, result.err
    assert "note: no model graph for TensorBoard" in result.out
    weights = read(result.run / "checkpoints" / "last.ckpt")["state_dict"]
    counts = [int(value) for name, value in weights.items() if name.endswith("num_batches_tracked")]
    assert counts
    assert not any(counts)


def test_fused_optimizers_are_clipped_in_bfloat16(lit):
    overlays = "-c configs/overlays/bf16.yaml -c configs/overlays/accumulate.yaml -c configs/overlays/debug.yaml"
    result = lit(f"fit -c configs/quickstart.yaml {overlays} --model.optimizer.fused=true")
    assert result.status == 0, result.err


def test_precision_without_autocast(lit):
    result = lit("fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml --trainer.precision=bf16-true")
    assert result.status == 0, result.err
