"""Tests decoder steps against the formula of each attention type in NumPy."""

import numpy as np
import pytest
import torch
from seq2seq_nets import close, inputs, make, sources

from lit_project.models.seq2seq.attention import DotAttention, attention_weights
from lit_project.models.seq2seq.transformer import attend, project
from lit_project.text.vocabulary import PAD


def arrays(module):
    return {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def score(kind, w, query, states):
    """Return the scores `(S,)` of a query and the states `(S, D)` of a sentence, computed as in the papers."""
    if kind == "dot":
        return np.array([query @ state for state in states])
    if kind == "general":
        return np.array([query @ w["project.weight"] @ state for state in states])
    if kind == "additive":
        inner = [w["query.weight"] @ query + w["key.weight"] @ state + w["key.bias"] for state in states]
        return np.array([w["score.weight"][0] @ np.tanh(x) for x in inner])
    return (w["positions.weight"] @ query + w["positions.bias"])[: len(states)]


def test_huge_and_equal_scores_give_exact_weights():
    states = torch.eye(3)[None]
    mask = torch.tensor([[True, True, False]])
    scores = torch.tensor([[[1e30, -1e30, 1e38], [0.0, 0.0, 5.0]]])
    contexts, weights = DotAttention(3, 3)(scores, states, states, mask)  # the states are unit vectors
    assert weights[0].tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    assert contexts[0].tolist() == [[1, 0, 0], [0.5, 0.5, 0]]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(w, x, h):
    """Return the result of one `nn.GRU` step. The gates are in the order reset, update, new."""
    xr, xz, xn = np.split(w["rnn.weight_ih_l0"] @ x + w["rnn.bias_ih_l0"], 3)
    hr, hz, hn = np.split(w["rnn.weight_hh_l0"] @ h + w["rnn.bias_hh_l0"], 3)
    update = sigmoid(xz + hz)
    return (1 - update) * np.tanh(xn + sigmoid(xr + hr) * hn) + update * h


@pytest.mark.parametrize("kind", ["none", "location", "additive", "dot", "general"])
@torch.no_grad()
def test_decoder_steps_match_the_attention_formulas(kind):
    net = make(f"gru, {kind}, plain")
    source, lengths = sources(4, 6)
    tokens = inputs(2, 4)
    memory = net.encode(source, lengths)
    logits = net.decode(tokens, net.start(memory), memory).logits.numpy()
    w, output = arrays(net.decoder), arrays(net.output)
    own = arrays(net.decoder.attention) if kind != "none" else {}
    embedding = net.target_embedding.weight.numpy() * net.target_embedding.embedding_dim**0.5
    for b in range(2):
        states = memory.states[b][source[b] != PAD].numpy()
        hidden = memory.final[0][b, 0].numpy()  # the bridge copies the state
        for t, token in enumerate(tokens[b].tolist()):
            x = embedding[token]
            if kind in ("location", "additive"):  # attention comes first, and its context is an input of the step
                query = np.concatenate([x, hidden]) if kind == "location" else hidden
                context = softmax(score(kind, own, query, states)) @ states
                hidden = gru(w, np.concatenate([x, context]), hidden)
                seen = np.concatenate([hidden, context, x])
            else:
                hidden = seen = gru(w, x, hidden)
                if kind != "none":
                    seen = np.concatenate([softmax(score(kind, own, hidden, states)) @ states, hidden])
            shown = np.tanh(w["combine.weight"] @ seen + w["combine.bias"])
            expected = output["weight"] @ shown + output["bias"]
            assert np.allclose(logits[b, t], expected, rtol=0, atol=1e-9)


def test_transformer_attention_matches_torch():
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).double()
    query, seen = torch.randn(3, 4, 8).double(), torch.randn(3, 5, 8).double()
    mask = torch.arange(5) < torch.tensor([[5], [2], [1]])
    expected, expected_weights = theirs(query, seen, seen, key_padding_mask=~mask)
    ours = project(theirs, query, 0, 1), project(theirs, seen, 1, 3), mask[:, None, None]
    found, weights = attend(theirs, *ours, need_weights=True)
    assert close(found, expected)
    assert close(weights, expected_weights)


def test_transformer_logits_match_with_and_without_precomputed_keys():
    net, (source, lengths) = make("transformer"), sources(5, 2)
    logits = net(source, lengths, inputs(2, 3))
    assert net.encode(source, lengths).keys is not None
    assert close(net.train()(source, lengths, inputs(2, 3)), logits)
    assert net.encode(source, lengths).keys is None


def test_attention_weights_of_bfloat16_scores_are_float32():
    scores = torch.zeros(1, 1, 300, dtype=torch.bfloat16)
    weights = attention_weights(scores, torch.ones(1, 1, 300, dtype=torch.bool))
    assert weights.dtype == torch.float32
    assert weights.sum().item() == pytest.approx(1, abs=1e-6)
