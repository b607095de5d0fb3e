"""Recurrent sequence-to-sequence models with attention."""

from typing import Any, ClassVar, Literal, NamedTuple

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
from lit_project.text.tokens import PAD

Cell = Literal["gru", "lstm"]


def recurrent(cell: Cell, input_size: int, hidden_size: int, layers: int, dropout: float, **kwargs: Any) -> nn.RNNBase:
    """Create a batch-first `nn.GRU` or `nn.LSTM`, which uses dropout only if there are several layers."""
    kind = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
    return kind(input_size, hidden_size, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0, **kwargs)


def recurrence(rnn: Any, x: Any, *state: Tensor) -> tuple[Any, tuple[Tensor, ...]]:
    """Run an RNN and return its outputs and final states. `x` may be a packed sequence.

    A state consists of the hidden state and, for an LSTM, the cell state. Each has shape `(layers, B, H)`. If CUDA
    autocast is set to bfloat16, the RNN runs in float32, because autocast would run it in float16.
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
    """A GRU or LSTM that packs sequences so that padding never affects results. See `RNNSeq2Seq` for the arguments.

    The states have size D = `hidden_size`, or 2 × `hidden_size` if the encoder is bidirectional.
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
        """Return the states `(B, S, D)` and the final hidden (and LSTM cell) states of each layer `(B, layers, D)`."""
        embedded_BSE = self.dropout(self.embedding(source_BS) * self.embedding.embedding_dim**0.5)
        # Sort here, because `pack_padded_sequence` would block while it copies the order to the GPU.
        sorted_B, order_B = lengths_B.cpu().sort(descending=True)
        order_B, places_B = (x.to(source_BS.device, non_blocking=True) for x in (order_B, order_B.argsort()))
        packed = pack_padded_sequence(embedded_BSE.index_select(0, order_B), sorted_B, batch_first=True)
        states, final = recurrence(self.rnn, packed)
        states_BSD = pad_packed_sequence(states, batch_first=True, total_length=source_BS.shape[1])[0]
        final = tuple(self._batch_first(part.index_select(1, places_B)) for part in final)
        return self.norm(states_BSD.index_select(0, places_B)), final

    def _batch_first(self, final: Tensor) -> Tensor:
        """Reshape `(layers × directions, B, H)` to `(B, layers, D)`, with the directions concatenated."""
        by_layer = final.view(-1, self.directions, *final.shape[1:])
        return torch.cat(by_layer.unbind(1), dim=-1).transpose(0, 1).contiguous()


def recurrent_step(x_BG: Tensor, h_BG: Tensor, hidden_BH: Tensor, *cell_BH: Tensor) -> tuple[Tensor, ...]:
    """Return the new state after one step of an `nn.GRU` layer, or of an `nn.LSTM` layer if there is a cell state.

    Args:
        x_BG: weight_ih x + bias_ih for all gates, concatenated.
        h_BG: weight_hh h + bias_hh.
        hidden_BH: previous hidden state h.
        cell_BH: previous cell state of an LSTM.
    """
    if cell_BH:
        enter, keep, new, show = (x_BG + h_BG).chunk(4, dim=-1)
        cell = keep.sigmoid() * cell_BH[0] + enter.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell
    (x_reset, x_update, x_new), (h_reset, h_update, h_new) = x_BG.chunk(3, dim=-1), h_BG.chunk(3, dim=-1)
    new = torch.addcmul(x_new, (x_reset + h_reset).sigmoid(), h_new).tanh()
    return (new.lerp(hidden_BH.to(new.dtype), (x_update + h_update).sigmoid()),)


class RNNDecoder(nn.Module):
    """Base class for recurrent decoders, with an RNN and a layer that combines states, contexts and inputs.

    The sizes are E for embeddings, H for hidden states, D for source states, and O for the output layer's input.
    """

    FEEDS: ClassVar[bool]  # whether to feed contexts to the RNN, and embedded tokens to `combine`

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
        """Map concatenated states, contexts and inputs to `(B, T, O)`."""
        return self.dropout(torch.tanh(self.combine(seen_BTX)))


class AttentionAfter(RNNDecoder):
    """Decoder whose RNN only processes the target. Each RNN state then attends to the source (Luong et al., 2015).

    The attention does not affect the next step, so a teacher-forced target needs a single RNN call. The decoder
    supports dot and general attention, or no attention (Sutskever et al., 2014).
    """

    FEEDS = False

    def forward(self, embedded_BTE: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any, Tensor | None]:
        """Return outputs `(B, T, O)`, the state after the last token, and attention weights `(B, T, S)`."""
        first = tuple(part.transpose(0, 1).contiguous() for part in state)  # `nn.GRU` expects `(layers, B, H)`.
        hidden_BTH, last = recurrence(self.rnn, embedded_BTE, *first)
        state = tuple(part.transpose(0, 1).contiguous() for part in last)
        weights = None
        if self.attention is not None:
            assert memory.keys is not None
            context_BTD, weights = self.attention(hidden_BTH, memory.keys, memory.states, memory.mask)
            hidden_BTH = torch.cat([context_BTD, hidden_BTH], dim=-1)
        return self.read_out(hidden_BTH), state, weights


class LayerWeights(NamedTuple):
    """The parameters of one RNN layer, in the order of `nn.RNNBase.all_weights`. The G rows contain all gates."""

    input_GX: Tensor
    hidden_GH: Tensor
    input_bias_G: Tensor
    hidden_bias_G: Tensor


class AttentionBefore(RNNDecoder):
    """Decoder in which the previous state attends to the source, and the context is an input to the next RNN step.

    With additive attention, it resembles the decoder of Bahdanau et al., 2015. With location attention, the query
    also includes the embedded input, as in PyTorch's tutorial. The loop uses the weights of
    `self.rnn` and only computes values that depend on previous steps.
    """

    FEEDS = True

    def forward(self, embedded_BTE: Tensor, state: Any, memory: Memory) -> tuple[Tensor, Any, Tensor]:
        """Return outputs `(B, T, O)`, the state after the last token, and attention weights `(B, T, S)`."""
        dtype = self._product_dtype(embedded_BTE)
        layers = [LayerWeights(*(weight.to(dtype) for weight in weights)) for weights in self.rnn.all_weights]
        # The first layer's input is an embedded token and a context. Only the context depends on previous steps, so the
        # products with all tokens are computed at once.
        token_GE, context_GD = layers[0].input_GX.tensor_split([embedded_BTE.shape[2]], dim=1)
        tokens_TBG = F.linear(embedded_BTE.transpose(0, 1), token_GE, layers[0].input_bias_G)
        source_BSD = memory.states.to(dtype)

        states = [tuple(part[:, number] for part in state) for number in range(len(layers))]  # one state per layer
        hiddens, contexts, weights = [], [], []
        for embedded_BE, token_BG in zip(embedded_BTE.unbind(1), tokens_TBG.unbind(0), strict=True):
            weight_B1S = self._attend(embedded_BE, states[-1][0], memory)
            context_B1D = weight_B1S.to(dtype) @ source_BSD
            x_BG = token_BG + F.linear(context_B1D[:, 0], context_GD)
            for number, layer in enumerate(layers):
                if number > 0:
                    below_BH = F.dropout(states[number - 1][0], self.rnn.dropout, self.training)
                    x_BG = F.linear(below_BH, layer.input_GX, layer.input_bias_G)
                h_BG = F.linear(states[number][0].to(dtype), layer.hidden_GH, layer.hidden_bias_G)
                states[number] = recurrent_step(x_BG, h_BG, *states[number])
            hiddens.append(states[-1][0])
            contexts.append(context_B1D)
            weights.append(weight_B1S)
        seen_BTX = torch.cat([torch.stack(hiddens, dim=1), torch.cat(contexts, dim=1), embedded_BTE], dim=-1)
        last = tuple(torch.stack(part, dim=1) for part in zip(*states, strict=True))
        return self.read_out(seen_BTX), last, torch.cat(weights, dim=1)

    def _product_dtype(self, x: Tensor) -> torch.dtype:
        """Return the dtype of matrix products, to cast weights once instead of in every step."""
        device = x.device.type
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype

    def _attend(self, embedded_BE: Tensor, hidden_BH: Tensor, memory: Memory) -> Tensor:
        """Return the attention weights `(B, 1, S)` of one step."""
        query_BQ = hidden_BH
        if isinstance(self.attention, LocationAttention):
            query_BQ = torch.cat([embedded_BE, hidden_BH], dim=-1)
        assert self.attention is not None
        assert memory.keys is not None
        scores_B1S = self.attention.scores(query_BQ[:, None], memory.keys)
        return attention_weights(scores_B1S, memory.mask[:, None])


class RNNSeq2Seq(Seq2Seq):
    """A sequence-to-sequence model whose encoder and decoder are GRUs or LSTMs.

    Args:
        source_size: size of the source vocabulary; set from the data.
        target_size: size of the target vocabulary, V; set from the data.
        max_source_length: maximum source length in tokens, set from the data. Only location attention uses this limit.
        embedding_size: size of the embeddings, E.
        hidden_size: hidden size H of the decoder and of each direction of the encoder.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        bidirectional: use a bidirectional encoder.
        cell: `gru` or `lstm`.
        attention: `none`, `location` (classic tutorial), `additive` (Bahdanau), `dot` or `general` (Luong). `dot`
            and `general` train faster, as they process all tokens at once. `dot` requires a unidirectional encoder.
        bridge: initial decoder state, `linear` (tanh of a linear map of the encoder's final state), `copy` (the final
            state itself, which requires the same sizes and number of layers) or `zero`.
        tied_embeddings: share the weights between the output layer and the target embedding (Press & Wolf, 2017).
        shared_embeddings: share one embedding between source and target. Requires a joint vocabulary.
        layer_norm: normalize encoder states and decoder outputs.
        dropout: dropout probability for embeddings, between layers, and before the output layer.
        embedding_max_norm: maximum norm of embeddings before they are multiplied by √E. Longer embeddings are scaled
            down on lookup. The weights, which a tied output layer also uses, stay unchanged.

    Raises:
        ValueError: options contradict each other.
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
            raise ValueError("attention 'none' and bridge 'zero' hide the source from the decoder: change one of them")
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
                f"bridge 'copy' requires equal sizes: the encoder has {encoder_layers} layer(s) of size {state_size}, "
                f"but the decoder has {decoder_layers} of size {hidden_size}. Use 'linear' or bidirectional: false"
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
        """Return the source states, and the final state from which the decoder starts."""
        states_BSD, final = self.encoder(source_BS, lengths_B)
        keys = self.decoder.attention.keys(states_BSD) if self.decoder.attention is not None else None
        return Memory(states_BSD, source_BS != PAD, keys, final)

    def start(self, memory: Memory) -> Any:
        """Return the decoder's initial hidden (and LSTM cell) state `(B, layers, H)`."""
        finals = memory.final
        if self.bridge_kind == "linear":  # Only the top layer of the encoder is used.
            parts = [torch.tanh(layer(final[:, -1])) for layer, final in zip(self.bridge, finals, strict=True)]
            finals = tuple(part.unflatten(1, self.decoder_shape) for part in parts)
        elif self.bridge_kind == "zero":
            finals = tuple(final.new_zeros(final.shape[0], *self.decoder_shape) for final in finals)
        # With autocast, the bridge runs in half precision, but the RNN may run in float32.
        return tuple(final.to(memory.states.dtype) for final in finals)

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        embedded_BTE = self.dropout(self.target_embedding(tokens_BT) * self.target_embedding.embedding_dim**0.5)
        output_BTO, state, weights_BTS = self.decoder(embedded_BTE, state, memory)
        return Decoded(self.output(self.norm(output_BTO)), state, weights_BTS)
