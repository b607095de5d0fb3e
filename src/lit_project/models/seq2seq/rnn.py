"""Recurrent encoder and decoder with attention."""

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from lit_project.models.dropout import Dropout
from lit_project.models.seq2seq.attention import (
    AdditiveAttention,
    Attention,
    DotAttention,
    GeneralAttention,
    LocationAttention,
    attention_weights,
)
from lit_project.models.seq2seq.base import Decoded, Memory, Seq2Seq, TokenEmbedding
from lit_project.models.seq2seq.repeated import Repeated
from lit_project.text.tokens import PAD

Cell = Literal["gru", "lstm"]


def recurrent(cell: Cell, input_size: int, hidden_size: int, layers: int, dropout: float, **kwargs: Any) -> nn.RNNBase:
    """`nn.GRU` or `nn.LSTM`, batch first; dropout between layers only where there is a between."""
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
    return kind(input_size, hidden_size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0, **kwargs)


def recurrence(rnn: Any, x: Any, *state: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    """Outputs and last states of the layers, in float32 where CUDA's autocast to bfloat16 would take float16.

    `x` may be packed. A state is hidden, beside it the cell of an LSTM, each `(layers, B, H)`.
    """
    given = (state if len(state) > 1 else state[0],) if state else ()
    device = x.data.device.type
    if device == "cuda" and torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16:
        with torch.autocast(device, enabled=False):
            outputs, last = rnn(x.float(), *given)
    else:
        outputs, last = rnn(x, *given)
    return outputs, last if isinstance(last, tuple) else (last,)


class RNNEncoder(nn.Module):
    """GRU or LSTM over packed sequences, so that padding never changes a result.

    Its states have D = 2 × `hidden_size` numbers if it reads both ways, otherwise `hidden_size`. Arguments: see
    `RNNSeq2Seq`.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        hidden_size: int,
        layers: int,
        bidirectional: bool,
        cell: Cell,
        dropout: float,
        layer_norm: bool,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.dropout = Dropout(dropout)
        self.directions = 2 if bidirectional else 1
        self.size = hidden_size * self.directions
        self.rnn = recurrent(cell, embedding.embedding_dim, hidden_size, layers, dropout, bidirectional=bidirectional)
        self.norm = nn.LayerNorm(self.size) if layer_norm else nn.Identity()

    def forward(self, source_BS: Tensor, lengths_B: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """States `(B, S, D)`, and the last hidden one of each layer `(B, layers, D)`, beside it the cell of an LSTM."""
        embedded_BSE = self.dropout(self.embedding(source_BS) * self.embedding.embedding_dim**0.5)
        packed = pack_padded_sequence(embedded_BSE, lengths_B.cpu(), batch_first=True, enforce_sorted=False)
        states, final = recurrence(self.rnn, packed)
        states_BSD = pad_packed_sequence(states, batch_first=True, total_length=source_BS.shape[1])[0]
        return self.norm(states_BSD), tuple(map(self._batch_first, final))

    def _batch_first(self, final: Tensor) -> Tensor:
        """`(layers × directions, B, H)` → `(B, layers, D)`, directions side by side."""
        by_layer = final.view(-1, self.directions, *final.shape[1:])
        return torch.cat(by_layer.unbind(1), dim=-1).transpose(0, 1).contiguous()


def recurrent_step(x_BG: Tensor, h_BG: Tensor, hidden_BH: Tensor, *cell_BH: Tensor) -> tuple[Tensor, ...]:
    """One step of a layer of `nn.GRU`, or of `nn.LSTM` if there is a cell: the new hidden state, and the new cell.

    Args:
        x_BG: weight_ih x + bias_ih, all gates side by side.
        h_BG: weight_hh h + bias_hh.
        hidden_BH: h.
        cell_BH: of an LSTM.
    """
    if cell_BH:
        enter, keep, new, show = (x_BG + h_BG).chunk(4, dim=-1)
        cell = keep.sigmoid() * cell_BH[0] + enter.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell
    (x_reset, x_update, x_new), (h_reset, h_update, h_new) = x_BG.chunk(3, dim=-1), h_BG.chunk(3, dim=-1)
    new = torch.addcmul(x_new, (x_reset + h_reset).sigmoid(), h_new).tanh()
    return (new.lerp(hidden_BH.to(new.dtype), (x_update + h_update).sigmoid()),)


class RNNDecoder(nn.Module):
    """What the recurrent decoders share: the recurrence, and the layer that combines what it has seen.

    Sizes: embedding E, hidden H, source states D, and O of what the output layer gets.
    """

    FEEDS: ClassVar[bool]  # whether context goes into each step of the recurrence, and the input into the combination

    def __init__(
        self,
        attention: Attention | None,
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
        self.dropout = Dropout(dropout)

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
        first = tuple(part.transpose(0, 1).contiguous() for part in state)  # nn.GRU wants (layers, B, H)
        hidden_BTH, last = recurrence(self.rnn, embedded_BTE, *first)
        state = tuple(part.transpose(0, 1).contiguous() for part in last)
        weights = None
        if self.attention is not None:
            assert memory.keys is not None
            context_BTD, weights = self.attention(hidden_BTH, memory.keys, memory.states, memory.mask)
            hidden_BTH = torch.cat([context_BTD, hidden_BTH], dim=-1)
        return self.read_out(hidden_BTH), state, weights


class AttentionBefore(RNNDecoder):
    """Attention from the state before gives the context that goes into each step: one of the RNN per target token.

    With additive attention that of Bahdanau et al. 2015; with location attention that of the classic PyTorch tutorial,
    whose query is the embedded input next to the hidden state. The steps are written out, with the weights of
    `self.rnn`: in a step is only what depends on the step before, and the gradient of no large matrix.
    """

    FEEDS = True

    def forward(self, embedded_BTE: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any, Tensor]:
        """Outputs `(B, T, O)`, the state after the last token, and weights `(B, T, S)`."""
        assert memory.keys is not None
        assert self.attention is not None
        states = [tuple(part[:, layer] for part in state) for layer in range(self.rnn.num_layers)]
        autocast = torch.is_autocast_enabled(embedded_BTE.device.type)
        dtype = torch.get_autocast_dtype(embedded_BTE.device.type) if autocast else embedded_BTE.dtype
        layers = [[weight.to(dtype) for weight in layer] for layer in self.rnn.all_weights]  # once, not in each step
        # the products of the first layer with the embedded tokens wait for nothing
        size = embedded_BTE.shape[2]
        tokens_TBG = F.linear(embedded_BTE.transpose(0, 1), layers[0][0][:, :size], layers[0][2])
        below = [Repeated(w.mT) for w in (layers[0][0][:, size:], *(layer[0] for layer in layers[1:]))]
        before = [Repeated(layer[1].mT) for layer in layers]
        mean = Repeated(memory.states.to(dtype))
        hiddens, contexts, weights = [], [], []
        for embedded_BE, added_BG in zip(embedded_BTE.unbind(1), tokens_TBG.unbind(0), strict=True):
            query_BH = states[-1][0]
            if isinstance(self.attention, LocationAttention):
                query_BH = torch.cat([embedded_BE, query_BH], dim=-1)
            weight_B1S = attention_weights(self.attention.scores(query_BH[:, None], memory.keys), memory.mask[:, None])
            context_B1D = mean(weight_B1S)
            input_BX = context_B1D[:, 0]
            for number, (_, _, bias_ih_G, bias_hh_G) in enumerate(layers):
                x_BG = below[number](input_BX) + (bias_ih_G if number else added_BG)
                h_BG = before[number](states[number][0]) + bias_hh_G
                states[number] = recurrent_step(x_BG, h_BG, *states[number])
                input_BX = F.dropout(states[number][0], self.rnn.dropout, self.training)
            hiddens.append(states[-1][0])
            contexts.append(context_B1D)
            weights.append(weight_B1S)
        seen_BTX = torch.cat([torch.stack(hiddens, dim=1), torch.cat(contexts, dim=1), embedded_BTE], dim=-1)
        last = tuple(torch.stack(part, dim=1) for part in zip(*states, strict=True))
        return self.read_out(seen_BTX), last, torch.cat(weights, dim=1)


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
        if attention == "none" and bridge == "zero":
            raise ValueError("attention 'none' with bridge 'zero' leaves the decoder without the source")
        self.shared_embeddings = shared_embeddings
        self.bridge_kind = bridge
        self.decoder_shape = decoder_layers, hidden_size
        self.target_embedding = TokenEmbedding(target_size, embedding_size, embedding_max_norm)
        source_embedding = self.target_embedding
        if not shared_embeddings:
            source_embedding = TokenEmbedding(source_size, embedding_size, embedding_max_norm)
        self.dropout = Dropout(dropout)
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
        attention_layer: Attention | None = None
        if attention == "location":
            attention_layer = LocationAttention(embedding_size + hidden_size, max_source_length)
        elif attention != "none":
            kinds = {"additive": AdditiveAttention, "dot": DotAttention, "general": GeneralAttention}
            attention_layer = kinds[attention](hidden_size, state_size)
        kind = AttentionBefore if attention in ("location", "additive") else AttentionAfter
        self.decoder = kind(
            attention_layer, embedding_size, hidden_size, state_size, output_size, decoder_layers, cell, dropout
        )
        self.norm = nn.LayerNorm(output_size) if layer_norm else nn.Identity()
        self.output = nn.Linear(output_size, target_size)
        if tied_embeddings:
            self.output.weight = self.target_embedding.weight

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """States of the source, and the final one for the decoder to begin with."""
        states_BSD, final = self.encoder(source_BS, lengths_B)
        keys = self.decoder.attention.keys(states_BSD) if self.decoder.attention is not None else None
        return Memory(states_BSD, source_BS != PAD, keys, final)

    def start(self, memory: Memory) -> Any:
        """The decoder's first hidden state `(B, layers, H)`, beside it the cell of an LSTM."""
        finals = memory.final
        if self.bridge_kind == "linear":  # from the top layer
            parts = [torch.tanh(layer(final[:, -1])) for layer, final in zip(self.bridge, finals, strict=True)]
            finals = tuple(part.unflatten(1, self.decoder_shape) for part in parts)
        elif self.bridge_kind == "zero":
            finals = tuple(final.new_zeros(final.shape[0], *self.decoder_shape) for final in finals)
        # autocast computes the bridge in half precision and leaves the recurrence in float32
        return tuple(final.to(memory.states.dtype) for final in finals)

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        embedded_BTE = self.dropout(self.target_embedding(tokens_BT) * self.target_embedding.embedding_dim**0.5)
        output_BTO, state, weights_BTS = self.decoder(embedded_BTE, state, memory)
        return Decoded(self.output(self.norm(output_BTO)), state, weights_BTS)
