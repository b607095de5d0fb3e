"""Tests `model.compile`, `trainer.matmul_precision` and `trainer.precision`."""

import pytest
import torch
from torch import nn

from lit_engine.checkpoints.io import read
from lit_engine.errors import UserError
from lit_engine.training.layout import compile_in_place

# If the first backward pass came after torch.compile, torch would reject backward passes in forked processes, in which
# other tests train.
torch.ones((), requires_grad=True).backward()


@pytest.fixture
def _no_compiler(workspace, monkeypatch):
    for name, value in {"PATH": str(workspace), "CXX": "", "TORCHINDUCTOR_CACHE_DIR": str(workspace / "cache")}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("_no_compiler")
def test_a_missing_compiler_causes_a_one_line_error(lit):
    result = lit("fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml --model.compile=inductor")
    assert result.status == 2
    assert result.err == "error: torch.compile needs a C++ compiler: install g++, or set model.compile to null\n"


@pytest.mark.usefixtures("_no_compiler")
def test_compiled_runs_are_exported_without_a_compiler(lit, trained):
    config = (trained / "config.yaml").read_text()
    (trained / "config.yaml").write_text(config.replace("compile: null", "compile: inductor"))
    result = lit(f"export {trained} --format safetensors")
    assert result.status == 0, result.err


def test_checkpoints_of_compiled_and_uncompiled_training_match(lit):
    fit = "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml"
    runs = [lit(fit, *option).run for option in ([], ["--model.compile=aot_eager"])]
    plain, compiled = (read(run / "checkpoints" / "last.ckpt")["state_dict"] for run in runs)
    assert plain.keys() == compiled.keys()
    assert all(torch.allclose(plain[name].float(), compiled[name].float(), atol=1e-5) for name in plain)


def test_compile_options_are_passed_to_torch_compile(lit, monkeypatch):
    given = []
    monkeypatch.setattr(nn.Module, "compile", lambda net, **options: given.append(options))
    fit = "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml"
    assert lit(fit, "--model.compile.mode=max-autotune --model.compile.fullgraph=true").status == 0
    assert given[0] == {"mode": "max-autotune", "fullgraph": True}


@pytest.mark.parametrize(("net", "options", "error"), [
    (nn.Linear(2, 2), {"backend": "indctor"}, "no backend 'indctor'; did you mean inductor"),
    (nn.Sequential(nn.GRU(2, 2)), {"fullgraph": True}, "nn.GRU or nn.LSTM: set fullgraph to false"),
])  # fmt: skip
def test_rejects_invalid_compile_options(net, options, error):
    with pytest.raises(UserError, match=error):
        compile_in_place(net, options)


def test_compiling_a_recurrent_network_prints_a_note(capsys):
    for net, lines in ((nn.Linear(2, 2), 0), (nn.LSTM(2, 2), 1)):
        compile_in_place(net, {"backend": "eager"})
        assert capsys.readouterr().err.count("so only the rest of LSTM is compiled") == lines
    with pytest.raises(torch._dynamo.exc.Unsupported, match="does not support RNN"):  # the reason for the note
        torch.compile(nn.Sequential(nn.LSTM(2, 2)), backend="eager", fullgraph=True)(torch.zeros(1, 1, 2))


def test_matmul_precision_is_applied_in_fit_and_test(lit, monkeypatch):
    given = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", given.append)
    fit = "fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml"
    run = lit(fit).run
    assert given == []  # torch's default is unchanged
    assert lit(fit, "--trainer.matmul_precision=high --run_name=high").status == 0
    lit("test --run runs/quickstart/high")
    assert given == ["high", "high"]
    assert "matmul_precision: null" in (run / "config.yaml").read_text()


@pytest.mark.parametrize("options", [
    "--trainer.precision=bf16-mixed --trainer.accumulate_grad_batches=2 --model.optimizer.fused=true "
    "--trainer.gradient_clip_val=1.0",
    "--trainer.precision=bf16-true",
])  # fmt: skip
def test_fit_succeeds_in_bf16_mixed_and_bf16_true(lit, options):
    result = lit(f"fit -c configs/quickstart.yaml -c configs/overlays/debug.yaml {options}")
    assert result.status == 0, result.err
