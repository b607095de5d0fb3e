"""Tests the decoder's training inputs: true tokens, its own predictions, or a random choice for each token."""

import pytest
import torch
from seq2seq_nets import ALL, close, inputs, make, shared, sources

from lit_project.text.vocabulary import UNK


@pytest.mark.parametrize("name", ALL)
@torch.no_grad()
def test_ratio_0_feeds_back_predictions_and_ratio_1_feeds_the_true_tokens(name):
    net = shared(name)
    source, lengths = sources(3, 8, 5)
    tokens = inputs(3, 6)
    memory = net.encode(source, lengths)
    state, fed, expected = net.start(memory), tokens[:, :1], []
    for _ in range(6):
        decoded = net.decode(fed, state, memory)
        state, fed = decoded.state, decoded.logits.argmax(dim=-1)
        expected.append(decoded.logits)
    assert close(net(source, lengths, tokens, 0.0), torch.cat(expected, dim=1))
    expected = net.decode(tokens, net.start(memory), memory).logits
    assert torch.equal(net(source, lengths, tokens, 1.0), expected)
    assert close(net(source, lengths, tokens, 0.999_999), expected)  # step by step, but always with the true tokens


@torch.no_grad()
def test_fractional_ratio_draws_independently_for_each_token():
    ratio = 0.25
    net = make("gru, dot, plain")
    net.output.bias[UNK] += 1000  # always predicts UNK, which is never the true token
    seen, decode = [], net.decode
    net.decode = lambda tokens, *args: seen.append(tokens) or decode(tokens, *args)
    count, steps = 200, 21
    source, lengths = sources(*[4] * count)
    tokens = inputs(count, steps)
    torch.manual_seed(3)
    net(source, lengths, tokens, ratio)
    fed = torch.cat(seen, dim=1)
    assert (fed[:, 0] == tokens[:, 0]).all()
    true = fed[:, 1:] == tokens[:, 1:]
    assert (fed[:, 1:][~true] == UNK).all()
    assert abs(true.double().mean() - ratio) < 0.03  # 4 standard deviations for 4000 draws
    for dim in (0, 1):  # the choice is not made for whole steps or sentences
        assert true.double().mean(dim=dim).std() < 0.2  # it would be 0.43 to 0.5 otherwise
    pairs = (true[:, 1:] & true[:, :-1]).double().mean()  # and neighbours are independent
    assert abs(pairs - ratio**2) < 0.03
