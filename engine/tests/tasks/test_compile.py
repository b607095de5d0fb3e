"""`model.compile` and `trainer.precision`."""

import pytest
import torch

from lit_engine.checkpoints.io import read


def test_a_missing_compiler_is_one_line(lit, workspace, monkeypatch):
    for name, value in {"PATH": str(workspace), "CXX": "", "TORCHINDUCTOR_CACHE_DIR": str(workspace / "cache")}.items():
        monkeypatch.setenv(name, value)
    result = lit("fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml --model.compile=inductor")
    assert result.status == 2
    assert result.err == "error: torch.compile needs a C++ compiler: install g++, or set model.compile to null\n"


def test_compiled_training_leaves_no_trace_in_the_checkpoint(lit):
    fit = "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml"
    runs = [lit(fit, *option).run for option in ([], ["--model.compile=aot_eager"])]
    plain, compiled = (read(run / "checkpoints" / "last.ckpt")["state_dict"] for run in runs)
    assert plain.keys() == compiled.keys()
    assert all(torch.allclose(plain[name].float(), compiled[name].float(), atol=1e-5) for name in plain)


@pytest.mark.parametrize("options", [
    "--trainer.precision=bf16-mixed --trainer.accumulate_grad_batches=2 --model.optimizer.fused=true "
    "--trainer.gradient_clip_val=1.0",
    "--trainer.precision=bf16-true",
])  # fmt: skip
def test_precision(lit, options):
    result = lit(f"fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml {options}")
    assert result.status == 0, result.err
