"""Small nets of every kind in float64, sentences for them, and what must hold to a millionth."""

from functools import cache
from itertools import product

import torch

from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq
from lit_project.text.vocabulary import BOS, EOS, PAD

V = 13  # both vocabularies
SIZES = {"embedding_size": 6, "hidden_size": 8, "dropout": 0.0, "max_source_length": 9}
# encoder layers, decoder layers, both ways, bridge
SHAPES = {
    "plain": (1, 1, False, "copy"),
    "deep": (2, 2, False, "copy"),
    "both ways": (1, 2, True, "linear"),
    "deep encoder": (2, 1, True, "linear"),
    "zero": (1, 1, True, "zero"),
}
OPTIONS = {
    "tied": {"tied_embeddings": True},
    "shared": {"shared_embeddings": True, "tied_embeddings": True},
    "norm": {"layer_norm": True},
    "max norm": {"embedding_max_norm": 0.5, "tied_embeddings": True},
    "all": {"shared_embeddings": True, "tied_embeddings": True, "layer_norm": True, "embedding_max_norm": 0.5},
}
TRANSFORMERS = {
    "transformer": {"tied_embeddings": False},
    "transformer, tied": {},
    "transformer, shared": {"shared_embeddings": True, "encoder_layers": 1, "decoder_layers": 3},
}
ATTENTIONS = ("none", "location", "additive", "dot", "general")


def _configurations():
    for cell, attention, (name, shape) in product(("gru", "lstm"), ATTENTIONS, SHAPES.items()):
        layers, decoder_layers, bidirectional, bridge = shape
        if (attention == "dot" and bidirectional) or (attention == "none" and bridge == "zero"):
            continue  # refused, see test_seq2seq_options
        yield f"{cell}, {attention}, {name}", {
            "cell": cell, "attention": attention, "encoder_layers": layers, "decoder_layers": decoder_layers,
            "bidirectional": bidirectional, "bridge": bridge,
        }  # fmt: skip
    for attention, (name, options) in product(("additive", "general"), OPTIONS.items()):
        yield f"gru, {attention}, {name}", {"attention": attention, **options}
    yield from TRANSFORMERS.items()


CONFIGURATIONS = dict(_configurations())
ALL = list(CONFIGURATIONS)
WITH_ATTENTION = [name for name in ALL if ", none" not in name]
# one of each way to decode
FEW = [*(f"gru, {attention}, plain" for attention in ATTENTIONS), "lstm, additive, both ways", "gru, general, all",
       "transformer"]  # fmt: skip


def make(name, vocabulary=V, seed=0):
    """A new net in evaluation mode, with weights that make its opinions strong."""
    torch.manual_seed(seed)
    options = CONFIGURATIONS[name]
    if "transformer" in name:
        net = TransformerSeq2Seq(
            vocabulary, vocabulary, size=8, heads=2,
            **{"encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0, **options},
        )  # fmt: skip
    else:
        net = RNNSeq2Seq(vocabulary, vocabulary, **SIZES, **options)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter *= 1.5
        net.output.bias.copy_(torch.randn(vocabulary) / 2)
        net.output.bias[EOS] += 1.5  # some translations end before their limit
    return net.double().eval()


shared = cache(make)  # for tests that leave the net as it is


def sources(*lengths, vocabulary=V, seed=1, width=None):
    """Random sources `(B, S)` that end with EOS, and their lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((len(lengths), width or max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        row[: length - 1] = torch.randint(EOS + 1, vocabulary, (length - 1,), generator=generator)
        row[length - 1] = EOS
    return rows, torch.tensor(lengths)


def inputs(count, steps, seed=2):
    """Random decoder inputs `(B, T)` that begin with BOS."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(EOS + 1, V, (count, steps), generator=generator)
    rows[:, 0] = BOS
    return rows


def close(a, b, tolerance=1e-6):
    """Same shape and equal to a millionth."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance)
