"""Sequence-to-sequence nets in plain PyTorch: recurrent with several attentions, a Transformer, and how to decode."""

from lit_project.models.seq2seq.decoding import NOTHING, Decoding, Hypothesis, beam_search, greedy
from lit_project.models.seq2seq.interface import Decoded, Memory, Seq2Seq, full, select
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.models.seq2seq.transformer import TransformerSeq2Seq

__all__ = [
    "NOTHING",
    "Decoded",
    "Decoding",
    "Hypothesis",
    "Memory",
    "RNNSeq2Seq",
    "Seq2Seq",
    "TransformerSeq2Seq",
    "beam_search",
    "full",
    "greedy",
    "select",
]
