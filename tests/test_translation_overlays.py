"""Tests overlays applied to a translation run."""

import pytest


@pytest.mark.slow
def test_tensorboard_receives_scalars_and_attention_maps(lit):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    overlays = "-c configs/overlays/tensorboard.yaml -c configs/overlays/debug.yaml"
    result = lit(f"fit -c configs/translation_quickstart.yaml {overlays}")
    assert result.status == 0, result.err
    events = EventAccumulator(str(result.run / "tensorboard"))
    events.Reload()
    tags = events.Tags()
    assert {"train/loss", "val/bleu", "lr"} <= set(tags["scalars"])
    assert {"attention_1", "learning_curves", "test/bleu_by_length"} <= set(tags["images"])
