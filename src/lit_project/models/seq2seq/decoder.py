"""The recurrent decoders: the whole target in one call, or step by step where the attention feeds the next step."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lit_project.models.seq2seq.attention import AdditiveAttention, DotAttention, LocationAttention
from lit_project.models.seq2seq.encoder import Cell, recurrent
from lit_project.models.seq2seq.interface import Memory


def _layers_first(state: Any) -> Any:
    """States are kept batch first, `(B, layers, H)`; `nn.GRU` wants `(layers, B, H)`."""
    if isinstance(state, tuple):
        return tuple(_layers_first(part) for part in state)
    return state.transpose(0, 1).contiguous()


def _hidden(state: Any) -> Tensor:
    """Top layer's hidden state `(B, H)`; an LSTM's state is (hidden, cell)."""
    return (state[0] if isinstance(state, tuple) else state)[:, -1]


class RNNDecoder(nn.Module):
    """What the recurrent decoders share: the recurrence, and the layer that combines what it has seen.

    Args:
        attention: how it looks at the source; None for not at all.
        embedding_size: E.
        hidden_size: H.
        state_size: D of the source states.
        output_size: O of what is given to the output layer.
        layers: stacked.
        cell: `gru` or `lstm`.
        dropout: between layers, and of the output.
    """

    FEEDS: ClassVar[bool]  # whether context goes into each step of the recurrence, and the input into the combination

    def __init__(
        self,
        attention: DotAttention | AdditiveAttention | LocationAttention | None,
        embedding_size: int,
        hidden_size: int,
        state_size: int,
        output_size: int,
        layers: int,
        cell: Cell,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention = attention
        context_size = state_size if attention is not None else 0
        feeds_context, feeds_input = (context_size, embedding_size) if self.FEEDS else (0, 0)
        self.rnn = recurrent(cell, embedding_size + feeds_context, hidden_size, layers, dropout)
        self.combine = nn.Linear(hidden_size + context_size + feeds_input, output_size)
        self.dropout = nn.Dropout(dropout)

    def read_out(self, seen_BTX: Tensor) -> Tensor:
        """States, contexts and inputs side by side → `(B, T, O)`."""
        return self.dropout(torch.tanh(self.combine(seen_BTX)))


class AttentionAfter(RNNDecoder):
    """Luong et al. 2015: the recurrence runs over the target alone, and attention looks at the source from each state.

    Nothing of the attention goes into the next step, so that the teacher-forced target is one call of the RNN.
    Without attention it is the decoder of Sutskever et al. 2014. Dot or general attention.
    """

    FEEDS = False

    def forward(self, embedded_BTE: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any, Tensor | None]:
        """Outputs `(B, T, O)`, the state after the last token, and weights `(B, T, S)`."""
        hidden_BTH, state = self.rnn(embedded_BTE, _layers_first(state))
        state = _layers_first(state)
        weights = None
        if self.attention is not None:
            assert memory.keys is not None
            context_BTD, weights = self.attention(hidden_BTH, memory.keys, memory.states, memory.mask)
            hidden_BTH = torch.cat([context_BTD, hidden_BTH], dim=-1)
        return self.read_out(hidden_BTH), state, weights


class AttentionBefore(RNNDecoder):
    """Attention from the state before goes into each step (input feeding): one step of the RNN a target token.

    With additive attention that of Bahdanau et al. 2015; with location attention that of the classic PyTorch tutorial,
    whose query is the embedded input next to the hidden state.
    """

    FEEDS = True

    def forward(self, embedded_BTE: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any, Tensor]:
        """Outputs `(B, T, O)`, the state after the last token, and weights `(B, T, S)`."""
        assert memory.keys is not None
        assert self.attention is not None
        hiddens, contexts, weights = [], [], []
        for embedded_BE in embedded_BTE.unbind(1):
            query_BH = _hidden(state)
            if isinstance(self.attention, LocationAttention):
                query_BH = torch.cat([embedded_BE, query_BH], dim=-1)
            context_B1D, weight_B1S = self.attention(query_BH[:, None], memory.keys, memory.states, memory.mask)
            step_B1I = torch.cat([embedded_BE[:, None], context_B1D.to(embedded_BE.dtype)], dim=-1)
            hidden_B1H, state = self.rnn(step_B1I, _layers_first(state))
            state = _layers_first(state)
            hiddens.append(hidden_B1H)
            contexts.append(context_B1D)
            weights.append(weight_B1S)
        seen = torch.cat([torch.cat(hiddens, dim=1), torch.cat(contexts, dim=1), embedded_BTE], dim=-1)
        return self.read_out(seen), state, torch.cat(weights, dim=1)
