"""The recurrent encoder: source tokens in, a state for each of them and a final one out."""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Cell = Literal["gru", "lstm"]


def recurrent(cell: Cell, input_size: int, hidden_size: int, layers: int, dropout: float, **kwargs: Any) -> nn.RNNBase:
    """`nn.GRU` or `nn.LSTM`, batch first; dropout between layers only where there is a between."""
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
    return kind(input_size, hidden_size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0, **kwargs)


class Encoded(NamedTuple):
    """What the encoder gives: states `(B, S, D)`, and the last state of each layer, batch first `(B, layers, D)`: a
    pair of them (hidden, cell) for an LSTM.
    """

    states: Tensor
    final: Any


class RNNEncoder(nn.Module):
    """GRU or LSTM over packed sequences, so that padding never changes a result.

    Args:
        embedding: source embedding, tokens to `(B, S, E)`.
        hidden_size: H of each direction.
        layers: stacked.
        bidirectional: reads both ways; D is then 2 H, otherwise H.
        cell: `gru` or `lstm`.
        dropout: of the embedded source and between layers.
        layer_norm: normalise the states.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        hidden_size: int,
        layers: int = 1,
        bidirectional: bool = True,
        cell: Cell = "gru",
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = nn.Dropout(dropout)
        self.directions = 2 if bidirectional else 1
        self.size = hidden_size * self.directions
        self.rnn = recurrent(cell, embedding.embedding_dim, hidden_size, layers, dropout, bidirectional=bidirectional)
        self.norm = nn.LayerNorm(self.size) if layer_norm else nn.Identity()

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> Encoded:
        """Reads sources `(B, S)` of `lengths_B` tokens."""
        embedded_BSE = self.dropout(self.embedding(source_BS) * self.embedding.embedding_dim**0.5)
        packed = pack_padded_sequence(embedded_BSE, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        states, final = self.rnn(packed)
        states_BSD = pad_packed_sequence(states, batch_first=True, total_length=source_BS.shape[1])[0]
        if isinstance(final, tuple):
            return Encoded(self.norm(states_BSD), tuple(self._batch_first(part) for part in final))
        return Encoded(self.norm(states_BSD), self._batch_first(final))

    def _batch_first(self, final: Tensor) -> Tensor:
        """`(layers × directions, B, H)` → `(B, layers, D)`, directions side by side."""
        by_layer = final.view(-1, self.directions, *final.shape[1:])
        return torch.cat(by_layer.unbind(1), dim=-1).transpose(0, 1).contiguous()
