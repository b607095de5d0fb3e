"""Tests that, in all nets, padding has no effect, T tokens at once match T steps, and future tokens are masked."""

import pytest
import torch
from seq2seq_nets import ALL, close, inputs, make, shared, sources
from torch.nn import functional as F

from lit_project.models.seq2seq.base import select
from lit_project.text.vocabulary import PAD

LENGTHS = (4, 9, 1, 6)


def both_ways_through(net, source, lengths, tokens):
    memory = net.encode(source, lengths)
    return memory, net.decode(tokens, net.start(memory), memory, attention=True)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_single_sentence_matches_the_same_sentence_in_a_padded_batch(name):
    net = shared(name)
    source, lengths = sources(*LENGTHS)
    tokens = inputs(len(LENGTHS), 5)
    memory, decoded = both_ways_through(net, source, lengths, tokens)
    for i, length in enumerate(LENGTHS):
        alone = source[i : i + 1, :length], lengths[i : i + 1], tokens[i : i + 1]
        memory_1, decoded_1 = both_ways_through(net, *alone)
        assert close(memory.states[i, :length], memory_1.states[0])
        assert memory.mask[i].tolist() == [True] * length + [False] * (9 - length)
        assert close(decoded.logits[i], decoded_1.logits[0])
        assert close(net(*alone)[0], net(source, lengths, tokens)[i])
        assert (decoded.attention is None) == (", none" in name)
        if decoded.attention is not None:
            weights = decoded.attention[i]
            assert close(weights[:, :length], decoded_1.attention[0])
            assert close(weights.sum(dim=-1), torch.ones(5, dtype=weights.dtype))
            assert (weights[:, length:] == 0).all()


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_decoding_all_tokens_at_once_matches_decoding_in_pieces(name):
    net = shared(name)
    source, lengths = sources(3, 7)
    tokens = inputs(2, 6)
    memory, whole = both_ways_through(net, source, lengths, tokens)
    for pieces in ([1] * 6, [2, 1, 3]):
        state, logits, weights = net.start(memory), [], []
        for piece in tokens.split(pieces, dim=1):
            decoded = net.decode(piece, state, memory, attention=True)
            state = decoded.state
            logits.append(decoded.logits)
            weights.append(decoded.attention)
        assert close(torch.cat(logits, dim=1), whole.logits)
        if whole.attention is not None:
            assert close(torch.cat(weights, dim=1), whole.attention)
        last, last_whole = (net.decode(tokens[:, 1:2], s, memory).logits for s in (state, whole.state))
        assert close(last, last_whole)


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_tokens_affect_later_logits_but_not_earlier_ones(name):
    net = shared(name)
    source, lengths = sources(3, 7)
    tokens = inputs(2, 6)
    logits = net(source, lengths, tokens)
    for t in range(1, 6):
        changed = tokens.clone()
        changed[:, t:] = inputs(2, 6, seed=7)[:, t:]
        changed[:, t] = torch.where(tokens[:, t] == 5, 6, 5)
        other = net(source, lengths, changed)
        assert close(other[:, :t], logits[:, :t])
        assert ((other[:, t] - logits[:, t]).abs().amax(dim=-1) > 1e-4).all()


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_selected_sentences_decode_the_same_as_in_the_full_batch(name):
    net = shared(name)
    source, lengths = sources(*LENGTHS)
    tokens = inputs(len(LENGTHS), 4)
    memory, whole = both_ways_through(net, source, lengths, tokens)
    first = net.decode(tokens[:, :2], net.start(memory), memory)
    rows = torch.tensor([2, 2, 0])
    after = net.decode(tokens[rows, 2:], select(first.state, rows), select(memory, rows))
    assert close(after.logits, whole.logits[rows, 2:])


@pytest.mark.parametrize("name", ALL)
def test_all_parameters_except_padding_have_finite_nonzero_gradients(name):
    net = make(name).train()
    source, lengths = sources(*LENGTHS)
    tokens = inputs(len(LENGTHS), 5)
    tokens[0, 3:] = PAD  # like the end of a shorter target
    labels = tokens.roll(-1, dims=1)
    labels[:, -1] = PAD
    logits = net(source, lengths, tokens, 0.5)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD).backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    source_embedding = net.source_embedding if "transformer" in name else net.encoder.embedding
    for embedding in (source_embedding, net.target_embedding):
        assert (embedding.weight[PAD] == 0).all()
        if embedding.weight is not net.output.weight:  # tied weights also produce the logit for padding
            assert (embedding.weight.grad[PAD] == 0).all()
