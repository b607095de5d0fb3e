"""Tests the effects of the nets' options, and that contradictory options are rejected."""

import re

import pytest
import torch
from seq2seq_nets import SIZES, V, close, inputs, make, sources
from torch import nn
from torch.nn import functional as F

from lit_project.models.seq2seq.base import Memory, TokenEmbedding
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.models.seq2seq.search import Decoding
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq, sinusoids


def rnn(**options):
    return RNNSeq2Seq(V, V, **{**SIZES, **options})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: rnn(attention="dot"), "'dot' .* got 8 and 16"),
        (lambda: rnn(bridge="copy"), r"1 layer\(s\) of size 16, but the decoder has 1 of size 8"),
        (lambda: rnn(attention="none", bridge="zero"), "hide the source"),
        (lambda: TransformerSeq2Seq(V, V, size=10, heads=4), "got 10 and 4"),
        (lambda: Decoding(beam_size=0), "beam_size must be between 1 and 1000, got 0"),
        (lambda: Decoding(beam_size=2, n_best=3), "between 1 and beam_size 2, got 3"),
        (lambda: Decoding(max_length_ratio=float("inf")), "max_length_ratio must be finite and not negative, got inf"),
    ],
)
def test_contradictory_options_are_rejected(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_length_limits_are_computed_in_double_precision_without_overflow():
    limits = {ratio: Decoding(max_length_ratio=ratio).limits(torch.tensor([100])).item() for ratio in (0.0, 0.29, 1e20)}
    assert limits[0.29] - limits[0.0] == int(100 * 0.29) == 28
    assert limits[1e20] > 1e9


def test_transformer_layers_have_independent_initial_weights():
    net = TransformerSeq2Seq(V, V, size=8, heads=2, encoder_layers=3, decoder_layers=3)
    for layers in (net.encoder, net.decoder):
        first, *others = [[weight for weight in layer.parameters() if weight.ndim > 1] for layer in layers]
        assert not any(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))


def test_location_attention_rejects_sources_longer_than_its_positions():
    net = make("gru, location, plain")  # 9 positions
    net(*sources(9), inputs(1, 2))
    with pytest.raises(ValueError, match=re.escape("a source of 10 tokens is longer than the 9 positions")):
        net(*sources(10), inputs(1, 2))


def transformer(**options):
    return TransformerSeq2Seq(V, V, size=8, heads=2, **options)


@pytest.mark.parametrize("kind", [rnn, transformer])
def test_tied_and_shared_embeddings_are_one_parameter(kind):
    for shared, tied in ((False, True), (True, False)):
        net = kind(shared_embeddings=shared, tied_embeddings=tied)
        source = net.encoder.embedding if kind is rnn else net.source_embedding
        assert (source.weight is net.target_embedding.weight) == shared
        assert (net.output.weight is net.target_embedding.weight) == tied


@pytest.mark.parametrize("name", ["gru, general, deep", "lstm, general, deep encoder"])
@torch.no_grad()
def test_final_encoder_states_match_torch(name):
    net = make(name)
    source, lengths = sources(6, 6)
    ours_states, ours_final = net.encoder(source, lengths)
    embedded = net.encoder.embedding(source) * SIZES["embedding_size"] ** 0.5
    states, final = net.encoder.rnn(embedded)  # not packed, because nothing is padded here
    assert close(ours_states, states)
    both = net.encoder.rnn.bidirectional
    for ours, theirs in zip(ours_final, final if "lstm" in name else (final,), strict=True):
        for layer in range(2):
            ends = [theirs[2 * layer], theirs[2 * layer + 1]] if both else [theirs[layer]]
            assert close(ours[:, layer], torch.cat(ends, dim=-1))


@torch.no_grad()
def test_bridges_set_the_initial_decoder_state():
    source, lengths = sources(4, 6)
    net = make("lstm, additive, both ways")  # two decoder layers
    memory = net.encode(source, lengths)
    for state, final, layer in zip(net.start(memory), memory.final, net.bridge, strict=True):
        expected = (final[:, -1] @ layer.weight.T + layer.bias).tanh()
        assert close(torch.cat([state[:, 0], state[:, 1]], dim=-1), expected)
    net = make("gru, additive, deep")
    memory = net.encode(source, lengths)
    assert torch.equal(net.start(memory)[0], memory.final[0])
    net = make("gru, additive, zero")
    assert torch.equal(net.start(net.encode(source, lengths))[0], torch.zeros(2, 1, 8).double())


@torch.no_grad()
def test_max_norm_scales_long_embeddings_without_changing_the_weights():
    embedding = rnn(embedding_max_norm=0.5).target_embedding
    embedding.weight[5] = 3 * embedding.weight[5] / embedding.weight[5].norm()
    embedding.weight[6] = 0.2 * embedding.weight[6] / embedding.weight[6].norm()
    before = embedding.weight.clone()
    found = embedding(torch.tensor([[5, 6, 0]]))[0]
    assert close(found[0], before[5] / 6)
    assert close(found[1], before[6])
    assert (found[2] == 0).all()
    assert torch.equal(embedding.weight, before)


def test_a_model_with_max_norm_and_tied_weights_trains_without_teacher_forcing():
    net = make("gru, general, all").train()
    net(*sources(3, 5), inputs(2, 4), 0.0).sum().backward()  # nn.Embedding(max_norm) raises an error here


def test_transformer_layers_match_torch():
    """Outputs and gradients are equal, with padding in the source."""
    net = transformer(dropout=0.0).double()
    sizes = {"d_model": 8, "nhead": 2, "dim_feedforward": 32, "dropout": 0.0, "batch_first": True, "norm_first": True}
    encoder, decoder = nn.TransformerEncoderLayer(**sizes).double(), nn.TransformerDecoderLayer(**sizes).double()
    for ours, theirs in ((net.encoder[0], encoder), (net.decoder[0], decoder)):
        # in torch's order of names: self-attention, cross-attention, feed-forward, norms
        theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    source, target = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 4, 8, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    none_yet = source.new_zeros(2, 0, 16)
    ours_in, theirs_in = source.clone().requires_grad_(), source.clone().requires_grad_()
    states = net.encoder[0](ours_in, ~padding)
    ours = net.decoder[0](target, none_yet, Memory(states, ~padding), False)[0]
    past = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    states = encoder(theirs_in, src_key_padding_mask=padding)
    theirs = decoder(target, states, past, memory_key_padding_mask=padding)
    assert close(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    assert close(ours_in.grad, theirs_in.grad)
    for mine, torchs in zip([net.encoder[0], net.decoder[0]], [encoder, decoder], strict=True):
        for one, other in zip(mine.parameters(), torchs.parameters(), strict=True):
            assert close(one.grad, other.grad)


@pytest.mark.parametrize("kind", [rnn, transformer])
def test_dropout_applies_only_during_training(kind):
    net = kind(dropout=0.5)
    source, lengths = sources(3, 5)
    tokens = inputs(2, 4)
    assert not torch.equal(net(source, lengths, tokens), net(source, lengths, tokens))
    net.eval()
    assert torch.equal(net(source, lengths, tokens), net(source, lengths, tokens))


@pytest.mark.parametrize(("name", "autocast"), [("lstm, general, both ways", True), ("transformer", False)])
def test_bfloat16_logits_approximate_float32(name, autocast):
    if "lstm" in name and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("torch has no autocast LSTM in bfloat16 for CPUs without AVX-512")
    net = make(name).float()
    source, lengths = sources(3, 5)
    expected = net(source, lengths, inputs(2, 4))
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = (net if autocast else net.bfloat16())(source, lengths, inputs(2, 4))
        found = Decoding(beam_size=2).search(net, source, lengths)
    assert (logits.float() - expected).abs().max() < 0.2
    assert all(len(one) == 1 for one in found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_positions_are_exact_if_the_default_dtype_is_half_precision(dtype):
    expected = sinusoids(torch.arange(200), 16)
    torch.set_default_dtype(dtype)  # as with the precision bf16-true
    try:
        assert torch.equal(sinusoids(torch.arange(200), 16), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_initial_embeddings_have_a_variance_suitable_for_tied_logits():
    embedding = TokenEmbedding(4000, 64)
    assert embedding.weight[1:].std().item() == pytest.approx(64**-0.5, rel=0.02)
    assert embedding.weight[0].count_nonzero() == 0


@pytest.mark.parametrize("layers", [1, 2])
def test_dropout_follows_every_decoder_layer_except_the_last(layers, monkeypatch):
    net = RNNSeq2Seq(9, 9, 8, 8, decoder_layers=layers, attention="additive", dropout=0.5).train()
    masks, dropout = [], F.dropout
    monkeypatch.setattr(F, "dropout", lambda *args: masks.append(args) or dropout(*args))
    tokens, lengths = torch.randint(4, 9, (2, 5)), torch.tensor([5, 5])
    net.decode(tokens, net.start(memory := net.encode(tokens, lengths)), memory)
    assert len(masks) == 5 * (layers - 1)


def naive_attention(query, key, value, mask=None, is_causal=False):
    """Compute attention as in Vaswani et al. 2017, with a loop over the tokens for a causal mask."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    for token in range(scores.shape[2] if is_causal else 0):
        scores[:, :, token, token + 1 :] = float("-inf")
    return scores.softmax(dim=-1) @ value


def test_transformer_gradients_match_the_attention_formula(monkeypatch):
    net = make("transformer").train()
    gradients = []
    for _ in range(2):
        loss = net(*sources(3, 5, 4), inputs(3, 6)).logsumexp(dim=-1).square().sum()
        gradients.append([loss, *torch.autograd.grad(loss, [*net.parameters()])])
        monkeypatch.setattr(F, "scaled_dot_product_attention", naive_attention)
    assert all(close(ours, naive, 1e-9) for ours, naive in zip(*gradients, strict=True))


def test_additive_decoder_applies_dropout_between_its_layers():
    """If everything between the layers is dropped, the first layer does not affect the output."""
    torch.manual_seed(0)
    net = RNNSeq2Seq(9, 9, 8, 8, decoder_layers=2, attention="additive", dropout=0.0).train()
    net.decoder.rnn.dropout = 1.0
    tokens, lengths = torch.randint(4, 9, (2, 5)), torch.tensor([5, 5])
    before = net(tokens, lengths, tokens)
    with torch.no_grad():
        net.decoder.rnn.weight_ih_l0.add_(1.0)
    assert torch.equal(net(tokens, lengths, tokens), before)
