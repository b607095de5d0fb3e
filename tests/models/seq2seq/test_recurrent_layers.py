"""Explicit recurrent steps match the layers of torch, also in bfloat16."""

import pytest
import torch
from seq2seq_nets import close, inputs, make, sources
from torch._subclasses.fake_tensor import FakeTensorMode

from lit_project.models.seq2seq.rnn import recurrence


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_recurrent_layers_match_torch(cell, layers):
    """With the context as input, the explicit steps give the same results as `nn.GRU` and `nn.LSTM`."""
    net = make(f"{cell}, additive, {'both ways' if layers == 2 else 'zero'}")
    source, lengths = sources(4, 6)
    memory = net.encode(source, lengths)
    state = net.start(memory)
    embedded = torch.randn(2, 1, 6).double()
    _, last, weights = net.decoder(embedded, state, memory)
    context = weights @ memory.states
    first = tuple(part.transpose(0, 1).contiguous() for part in state)
    _, expected = net.decoder.rnn(torch.cat([embedded, context], dim=-1), first if cell == "lstm" else first[0])
    for ours, theirs in zip(last, expected if cell == "lstm" else (expected,), strict=True):
        assert close(ours, theirs.transpose(0, 1), 1e-12)


@pytest.mark.parametrize(
    "name", ["gru, additive, deep", "lstm, additive, both ways", "gru, location, zero", "transformer"]
)
def test_bfloat16_gradients_approximate_float32_gradients(name):
    net = make(name).float()
    gradients = []
    for enabled in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            logits = net(*sources(3, 5), inputs(2, 4))
        parameters = list(net.parameters())
        gradients.append(torch.autograd.grad(logits.float().square().sum(), parameters))
    for full, half in zip(*gradients, strict=True):
        assert half.dtype == torch.float32
        assert (full - half).norm() <= (0.15 if name == "transformer" else 0.1) * full.norm() + 1e-3


def test_bfloat16_autocast_on_cuda_does_not_run_recurrences_in_float16():
    """Autocast always runs cuDNN's recurrent layers in float16. Fake tensors test the dtypes without a GPU."""
    with FakeTensorMode():
        inputs, state, *weights = (
            torch.empty(*size, device="cuda") for size in ((2, 3, 4), (1, 2, 5), (15, 4), (15, 5), (15,), (15,))
        )

        def gru(x):
            return torch.ops.aten._cudnn_rnn(
                x, weights, 4, None, state, None, 3, 5, 0, 1, True, 0.0, True, False, [], None
            )[:2]

        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            assert recurrence(gru, inputs)[0].dtype == torch.float32
        finally:
            torch.set_autocast_enabled("cuda", False)
