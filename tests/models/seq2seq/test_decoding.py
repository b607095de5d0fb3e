"""Compares beam search with brute force and a plain implementation, and tests its options."""

import math
from collections import defaultdict
from itertools import product

import pytest
import torch
from seq2seq_nets import FEW, make, shared, sources

from lit_project.models.seq2seq.base import Decoded, Memory, Seq2Seq
from lit_project.models.seq2seq.search import Decoding, beam_search
from lit_project.text.vocabulary import BOS, EOS, PAD

SMALL = 6  # special tokens and two words; only UNK and the two words can be generated
LENGTHS = (5, 2, 9, 1)
SHORT = {"max_length_ratio": 1.0, "max_length_extra": 5}


@torch.no_grad()
def log_probability(net, source, lengths, tokens):
    """Return the log-probability of one translation of one source, computed with `forward`."""
    logits = net(source, lengths, torch.tensor([[BOS, *tokens]]))
    labels = torch.tensor([*tokens, EOS])
    return logits[0].log_softmax(dim=-1).gather(1, labels[:, None]).sum().item()


def near(value):
    return pytest.approx(value, rel=0, abs=1e-10)


def same(found, expected):
    """Check that tokens are equal, and probabilities and scores are close."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert [h.tokens for h in ours] == [h.tokens for h in theirs]
        for a, b in zip(ours, theirs, strict=True):
            assert a.log_probability == near(b.log_probability)
            assert a.score == near(b.score)


@torch.no_grad()
def search(net, source, lengths, options, limits=None):
    """Return the results of beam search without sorting the sentences by length."""
    limits = options.limits(lengths) if limits is None else limits
    return beam_search(net, net.encode(source, lengths), limits, options)


@pytest.mark.parametrize(("name", "penalty"), [(FEW[0], 0.0), (FEW[1], 0.6), (FEW[2], 0.6)])
def test_exhaustive_beam_matches_brute_force(name, penalty):
    net = shared(name, SMALL)
    source, lengths = sources(4, 2, 6, vocabulary=SMALL)
    limits = torch.tensor([4, 1, 3])
    words = [t for t in range(SMALL) if t not in (PAD, BOS, EOS)]
    everything = 1 + 3 + 9 + 27
    options = Decoding(beam_size=everything, n_best=everything, length_penalty=penalty)
    found = search(net, source, lengths, options, limits)
    for i, limit in enumerate(limits.tolist()):
        alone = source[i : i + 1, : lengths[i]], lengths[i : i + 1]
        expected = {}
        for length in range(limit):  # EOS counts toward the limit
            for tokens in product(words, repeat=length):
                total = log_probability(net, *alone, tokens)
                expected[tokens] = total, total / (length + 1) ** penalty
        assert len(found[i]) == len(expected) == {4: 40, 3: 13, 1: 1}[limit]
        ranked = sorted(expected.values(), key=lambda pair: -pair[1])
        assert [h.score for h in found[i]] == near([score for _, score in ranked])
        for h in found[i]:
            assert (h.log_probability, h.score) == near(expected[tuple(h.tokens)])
        few = Decoding(beam_size=everything, n_best=3, length_penalty=penalty)
        if limit == 4:
            same(search(net, source, lengths, few, limits)[:1], [found[i][:3]])


@torch.no_grad()
def plain_beam(net, source, length, limit, options):
    """Perform beam search for one sentence with Python lists. Returns `[(score, tokens)]`, best first."""
    live, finished, size = [(0.0, [])], [], options.beam_size
    while live and len(finished) < size:
        candidates = []
        for total, tokens in live:
            logits = net(source, length, torch.tensor([[BOS, *tokens]]))[0, -1].log_softmax(dim=-1).tolist()
            allowed = [t for t in range(len(logits)) if t not in (PAD, BOS)] if len(tokens) + 1 < limit else [EOS]
            candidates += [(total + logits[token], [*tokens, token]) for token in allowed]
        candidates.sort(reverse=True)
        ended = [(total, tokens) for total, tokens in candidates[:size] if tokens[-1] == EOS]
        finished += [(total / len(tokens) ** options.length_penalty, tokens[:-1]) for total, tokens in ended]
        live = [(total, tokens) for total, tokens in candidates if tokens[-1] != EOS][:size]
    return sorted(finished[:size], reverse=True)


@pytest.mark.parametrize(("name", "size"), [(FEW[0], 1), (FEW[0], 2), (FEW[1], 5), (FEW[2], 1)])
def test_small_beam_matches_a_plain_per_sentence_implementation(name, size):
    options = Decoding(beam_size=size, n_best=size, length_penalty=0.8, max_length_ratio=0.5, max_length_extra=4)
    net = shared(name)
    source, lengths = sources(*LENGTHS, seed=size)
    for i, found in enumerate(options.search(net, source, lengths)):
        expected = plain_beam(net, source[i : i + 1], lengths[i : i + 1], LENGTHS[i] // 2 + 4, options)
        assert [h.tokens for h in found] == [tokens for _, tokens in expected]
        assert [h.score for h in found] == near([score for score, _ in expected])


@pytest.mark.parametrize("options", [Decoding(), Decoding(beam_size=4, n_best=4, no_repeat_ngram=2, **SHORT)])
@pytest.mark.parametrize("name", FEW)
def test_batch_matches_single_sentences_and_scores_match_forward(name, options):
    net = shared(name)
    source, lengths = sources(*LENGTHS)
    found = options.search(net, source, lengths)
    for i, length in enumerate(LENGTHS):
        alone = source[i : i + 1, :length], lengths[i : i + 1]
        same(options.search(net, *alone), [found[i]])
        assert [h.score for h in found[i]] == sorted((h.score for h in found[i]), reverse=True)
        assert len({tuple(h.tokens) for h in found[i]}) == len(found[i]) == options.n_best
        for h in found[i]:
            assert h.log_probability == near(log_probability(net, *alone, h.tokens))
            assert h.score == near(h.log_probability / (len(h.tokens) + 1))


def repeats(tokens, n):
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) < len(grams)


@pytest.mark.parametrize(("name", "n"), [(FEW[0], 1), (FEW[1], 2), (FEW[2], 3)])
def test_no_ngram_occurs_twice(name, n):
    net = make(name)
    with torch.no_grad():
        net.output.bias[EOS] -= 50  # never ends by itself
    source, lengths = sources(*LENGTHS)
    for beams in (1, 3):
        free, blocked = (Decoding(beam_size=beams, n_best=beams, no_repeat_ngram=k, **SHORT) for k in (0, n))
        # otherwise, the test would prove nothing
        assert any(repeats(h.tokens, n) for found in search(net, source, lengths, free) for h in found)
        assert not any(repeats(h.tokens, n) for found in search(net, source, lengths, blocked) for h in found)


def test_ngram_blocking_does_not_change_translations_without_repeats():
    changed = 0
    for seed in range(8):
        net = make(FEW[1], seed=seed)
        source, lengths = sources(*LENGTHS, seed=seed)
        free, blocked = (Decoding(no_repeat_ngram=n, **SHORT).search(net, source, lengths) for n in (0, 2))
        for a, b in zip(free, blocked, strict=True):
            if repeats(a[0].tokens, 2):
                changed += 1
            else:
                same([a], [b])
    assert 4 < changed < 28


@pytest.mark.parametrize("name", FEW)
def test_finished_sentences_are_not_computed_further(name, monkeypatch):
    net, rows = make(name), []
    with torch.no_grad():
        net.output.bias[EOS] -= 1.5  # so that sentences end neither immediately nor all at the limit
    decode = net.decode
    monkeypatch.setattr(net, "decode", lambda tokens, *rest: rows.append(len(tokens)) or decode(tokens, *rest))
    source, lengths = sources(*LENGTHS, 3, 9, 2)
    found = Decoding().search(net, source, lengths)
    assert sum(rows) == sum(len(best.tokens) + 1 for (best,) in found)
    assert rows[0] > rows[-1]
    rows.clear()
    Decoding(beam_size=3).search(net, source, lengths)
    assert rows[0] == len(lengths)  # one hypothesis per sentence in the first step, then three
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert 3 * len(lengths) >= rows[1] > rows[-1]


@pytest.mark.parametrize("beam_size", [1, 3])
def test_results_keep_the_input_order_for_any_chunk_size(beam_size, monkeypatch):
    net, options = shared(FEW[2]), Decoding(beam_size=beam_size, **SHORT)
    source, lengths = sources(*LENGTHS, 3, 9, 2)
    whole = options.search(net, source, lengths)
    monkeypatch.setattr("lit_project.models.seq2seq.search.ROWS_ON_CPU", 2 * beam_size)
    same(options.search(net, source, lengths), whole)


class Table(Seq2Seq):
    """Net with a table of next-token probabilities for each prefix. All other tokens are impossible."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def start(self, memory):
        return (torch.zeros(len(memory.states), 0, dtype=torch.long),)

    def decode(self, tokens_BT, state, memory, attention=False):
        before = torch.cat([state[0], tokens_BT], dim=1)
        logits = torch.full((len(before), 1, 7), -1e9)
        for row, tokens in enumerate(before[:, 1:].tolist()):
            for token, probability in self.table[tuple(tokens)].items():
                logits[row, 0, token] = math.log(probability)
        return Decoded(logits, (before,), None)


def test_finished_hypotheses_do_not_reduce_the_beam():
    """Two hypotheses finish early. Of the three that continue, the third one wins over the other two."""
    a, b, c, rest = 4, 5, 6, 1
    table = {
        (): {a: 0.4, b: 0.35, c: 0.25},
        (a,): {EOS: 0.6, a: 0.3, rest: 0.1},
        (b,): {EOS: 0.6, b: 0.3, rest: 0.1},
        (c,): {EOS: 0.05, c: 0.4, rest: 0.19, a: 0.18, b: 0.18},
        **{(token, token): {EOS: 0.1, rest: 0.9} for token in (a, b)},
        (c, c): {EOS: 1.0},
    }
    memory = Memory(torch.zeros(1, 1, 1), torch.ones(1, 1, dtype=torch.bool))
    options = Decoding(beam_size=3, n_best=3, length_penalty=0.0)
    (found,) = beam_search(Table(defaultdict(lambda: {EOS: 0.01, 1: 0.99}, table)), memory, torch.tensor([4]), options)
    assert [h.tokens for h in found] == [[a], [b], [c, c]]
