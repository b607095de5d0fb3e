"""Recurrent sequence-to-sequence nets: encoder, bridge, attention, decoder."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from lit_project.models.seq2seq.attention import (
    AdditiveAttention,
    DotAttention,
    GeneralAttention,
    LocationAttention,
)
from lit_project.models.seq2seq.decoder import AttentionAfter, AttentionBefore
from lit_project.models.seq2seq.encoder import Cell, RNNEncoder
from lit_project.models.seq2seq.interface import Decoded, Memory, Seq2Seq
from lit_project.text import PAD


class RNNSeq2Seq(Seq2Seq):
    """Encoder and decoder are GRUs or LSTMs.

    Args:
        source_size: of the source vocabulary; from the data.
        target_size: of the target vocabulary, V; from the data.
        max_source_length: the longest source in tokens; only location attention needs it; from the data.
        embedding_size: E.
        hidden_size: H of the decoder, and of each direction of the encoder.
        encoder_layers: stacked.
        decoder_layers: stacked.
        bidirectional: the encoder reads both ways.
        cell: `gru` or `lstm`.
        attention: `none`; `location` (classic tutorial) or `additive` (Bahdanau), which feed each step and are computed
            step by step; `dot` (needs `bidirectional` false) or `general` (Luong), which compute the whole target at
            once and are faster.
        bridge: how the decoder begins: `linear` (tanh of a linear map of the encoder's final state), `copy` (that state
            itself; sizes and layers must agree) or `zero`.
        tied_embeddings: the output layer shares the weights of the target embedding (Press & Wolf 2017).
        shared_embeddings: source and target share one embedding; for a joint vocabulary.
        layer_norm: normalise encoder states and decoder outputs.
        dropout: of embeddings, between layers, and before the output layer.
        embedding_max_norm: embeddings longer than this (before they are multiplied by √E) are scaled back to it when
            they are looked up; the weights themselves, which a tied output layer uses, stay as they are.

    Raises:
        ValueError: options that contradict each other.
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        max_source_length: int = 101,
        embedding_size: int = 256,
        hidden_size: int = 256,
        encoder_layers: int = 1,
        decoder_layers: int = 1,
        bidirectional: bool = True,
        cell: Cell = "gru",
        attention: Literal["none", "location", "additive", "dot", "general"] = "general",
        bridge: Literal["linear", "copy", "zero"] = "linear",
        tied_embeddings: bool = False,
        shared_embeddings: bool = False,
        layer_norm: bool = False,
        dropout: float = 0.1,
        embedding_max_norm: float | None = None,
    ) -> None:
        super().__init__()
        if shared_embeddings and source_size != target_size:
            raise ValueError(
                f"shared_embeddings needs one joint vocabulary, but the source has {source_size} tokens and the target "
                f"{target_size}"
            )
        if attention == "none" and bridge == "zero":
            raise ValueError("attention 'none' with bridge 'zero' leaves the decoder without the source")
        self.shared_embeddings = shared_embeddings
        self.cell, self.bridge_kind = cell, bridge
        self.decoder_shape = decoder_layers, hidden_size
        self.target_embedding = ClippedEmbedding(target_size, embedding_size, embedding_max_norm)
        source_embedding: nn.Embedding = self.target_embedding
        if not shared_embeddings:
            source_embedding = ClippedEmbedding(source_size, embedding_size, embedding_max_norm)
        self.dropout = nn.Dropout(dropout)
        self.encoder = RNNEncoder(
            source_embedding, hidden_size, encoder_layers, bidirectional, cell, dropout, layer_norm
        )
        state_size = self.encoder.size
        if bridge == "linear":
            parts = 2 if cell == "lstm" else 1
            self.bridge = nn.ModuleList(nn.Linear(state_size, decoder_layers * hidden_size) for _ in range(parts))
        elif bridge == "copy" and (encoder_layers, state_size) != self.decoder_shape:
            raise ValueError(
                f"bridge 'copy' needs equal states: the encoder gives {encoder_layers} layer(s) of {state_size}, the "
                f"decoder has {decoder_layers} of {hidden_size}; take 'linear', or bidirectional: false"
            )
        output_size = embedding_size if tied_embeddings else hidden_size
        sizes = embedding_size, hidden_size, state_size, output_size, decoder_layers
        self.decoder: AttentionAfter | AttentionBefore
        if attention == "location":
            location = LocationAttention(embedding_size + hidden_size, max_source_length)
            self.decoder = AttentionBefore(location, *sizes, cell, dropout)
        elif attention == "additive":
            self.decoder = AttentionBefore(AdditiveAttention(hidden_size, state_size), *sizes, cell, dropout)
        else:
            kinds = {"none": None, "dot": DotAttention, "general": GeneralAttention}
            kind = kinds[attention]
            self.decoder = AttentionAfter(kind(hidden_size, state_size) if kind else None, *sizes, cell, dropout)
        self.norm = nn.LayerNorm(output_size) if layer_norm else nn.Identity()
        self.output = nn.Linear(output_size, target_size)
        if tied_embeddings:
            self.output.weight = self.target_embedding.weight

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """States of the source, and the final one for the decoder to begin with."""
        encoded = self.encoder(source_BS, lengths_B)
        keys = self.decoder.attention.keys(encoded.states) if self.decoder.attention is not None else None
        return Memory(encoded.states, source_BS != PAD, keys, encoded.final)

    def start(self, memory: Memory) -> Any:
        """The decoder's first state `(B, layers, H)`; a pair of them for an LSTM."""
        finals = memory.final if isinstance(memory.final, tuple) else (memory.final,)
        if self.bridge_kind == "linear":  # from the top layer
            parts = [torch.tanh(layer(final[:, -1])) for layer, final in zip(self.bridge, finals, strict=True)]
            finals = tuple(part.unflatten(1, self.decoder_shape) for part in parts)
        elif self.bridge_kind == "zero":
            finals = tuple(final.new_zeros(len(final), *self.decoder_shape) for final in finals)
        # autocast computes the bridge in half precision and leaves the recurrence in float32
        finals = tuple(final.to(memory.states.dtype) for final in finals)
        return finals if self.cell == "lstm" else finals[0]

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        """Goes on with T tokens; see `Seq2Seq.decode`."""
        embedded_BTE = self.dropout(self.target_embedding(tokens_BT) * self.target_embedding.embedding_dim**0.5)
        output_BTO, state, weights_BTS = self.decoder(embedded_BTE, state, memory)
        return Decoded(self.output(self.norm(output_BTO)), state, weights_BTS)


class ClippedEmbedding(nn.Embedding):
    """An embedding whose vectors are at most `max_length` long.

    `nn.Embedding(max_norm=...)` rewrites the weights of the tokens that it looks up, in place: training step by step
    with tied weights then fails, results depend on the rest of the batch, and processes drift apart.

    Args:
        size: number of tokens.
        embedding_size: E.
        max_length: Euclidean; None for any.
    """

    def __init__(self, size: int, embedding_size: int, max_length: float | None) -> None:
        super().__init__(size, embedding_size, padding_idx=PAD)
        if max_length is not None and max_length <= 0:
            raise ValueError(f"embedding_max_norm must be positive, got {max_length}")
        self.max_length = max_length
        # variance 1 / E, so that a tied output layer begins with logits of variance about 1
        nn.init.normal_(self.weight, std=embedding_size**-0.5)
        with torch.no_grad():
            self.weight[PAD].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """Vectors `(..., E)` of tokens `(...)`."""
        embedded = super().forward(tokens)
        if self.max_length is None:
            return embedded
        return embedded * (self.max_length / embedded.norm(dim=-1, keepdim=True).clamp(min=self.max_length))
