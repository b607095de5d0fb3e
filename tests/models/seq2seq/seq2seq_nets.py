"""Helpers that create small float64 nets of every kind and sentences for them, and compare tensors within 1e-6."""

from functools import cache

import torch

from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq
from lit_project.text.vocabulary import BOS, EOS, PAD

V = 13  # size of both vocabularies
SIZES = {"embedding_size": 6, "hidden_size": 8, "dropout": 0.0, "max_source_length": 9}
OPTIONS = {
    "plain": {"bidirectional": False, "bridge": "copy"},
    "deep": {"bidirectional": False, "bridge": "copy", "encoder_layers": 2, "decoder_layers": 2},
    "both ways": {"decoder_layers": 2},
    "deep encoder": {"encoder_layers": 2},
    "zero": {"bridge": "zero"},
    "all": {"shared_embeddings": True, "tied_embeddings": True, "layer_norm": True, "embedding_max_norm": 0.5},
}
TRANSFORMERS = {
    "transformer": {"tied_embeddings": False},
    "transformer, shared": {"shared_embeddings": True, "encoder_layers": 1, "decoder_layers": 3},
}
FEW = ["gru, dot, plain", "lstm, additive, both ways", "transformer"]  # one per decoding method
# These cover each cell, attention, shape, bridge and option of recurrent nets, and the transformers.
ALL = [
    *FEW, "gru, none, deep", "gru, location, zero", "lstm, general, deep encoder", "gru, additive, all",
    "transformer, shared",
]  # fmt: skip


def make(name, vocabulary=V, seed=0):
    """Return a new net in evaluation mode, with weights that lead to confident predictions."""
    torch.manual_seed(seed)
    if name in TRANSFORMERS:
        options = {"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, **TRANSFORMERS[name]}
        net = TransformerSeq2Seq(vocabulary, vocabulary, size=8, heads=2, **options)
    else:
        cell, attention, kind = name.split(", ")
        net = RNNSeq2Seq(vocabulary, vocabulary, **SIZES, cell=cell, attention=attention, **OPTIONS[kind])
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= 1.5
        net.output.bias.copy_(torch.randn(vocabulary) / 2)
        net.output.bias[EOS] += 1.5  # so that some translations end before the limit
    return net.double().eval()


shared = cache(make)  # for tests that do not change the net


def sources(*lengths, vocabulary=V, seed=1, width=None):
    """Return random sources `(B, S)` that end with EOS, and their lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((len(lengths), width or max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[: length - 1] = torch.randint(EOS + 1, vocabulary, (length - 1,), generator=generator)
        row[length - 1] = EOS
    return rows, torch.tensor(lengths)


def inputs(count, steps, seed=2):
    """Return random decoder inputs `(B, T)` that start with BOS."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(EOS + 1, V, (count, steps), generator=generator)
    rows[:, 0] = BOS
    return rows


def close(a, b, tolerance=1e-6):
    """Return whether two tensors have the same shape and equal values within the tolerance."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance)
