"""A small sequence-to-sequence Transformer, built from the layers of `torch.nn`."""

import math
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_project.models.dropout import Dropout
from lit_project.models.losses import at_least_float32
from lit_project.models.seq2seq.attention import attention_weights
from lit_project.models.seq2seq.base import Decoded, Memory, Seq2Seq, TokenEmbedding
from lit_project.text.tokens import PAD


def project(attention: nn.MultiheadAttention, x_BTD: Tensor, first: int, last: int) -> Tensor:
    """Return the projections numbered `first` to `last - 1`, `(B, T, n × D)`. Query is 0, key is 1 and value is 2."""
    assert attention.in_proj_weight is not None
    rows = slice(first * attention.embed_dim, last * attention.embed_dim)
    return F.linear(x_BTD, attention.in_proj_weight[rows], attention.in_proj_bias[rows])


def attend(
    attention: nn.MultiheadAttention,
    query_BTD: Tensor,
    seen_BSX: Tensor,
    mask: Tensor | None,
    need_weights: bool = False,
    causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return outputs `(B, T, D)` and, if required, attention weights `(B, T, S)` averaged over heads.

    Args:
        attention: module with the parameters.
        query_BTD: projected queries.
        seen_BSX: concatenated projected keys and values, where X = 2 D.
        mask: true where attention is allowed, broadcastable to `(B, heads, T, S)`. None allows all attention.
        need_weights: whether to return attention weights, which requires a mask.
        causal: whether token t attends only to tokens up to t. Requires `mask=None`, and is faster than a causal mask.
    """
    query, key, value = (
        x.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for x in (query_BTD, *seen_BSX.chunk(2, dim=-1))
    )
    float32 = query.device.type == "cpu" and query.dtype == torch.bfloat16
    with torch.autocast("cpu", enabled=False) if float32 else nullcontext():
        if float32:  # On most CPUs, the backward pass takes 4 to 9 times as long in bfloat16 as in float32.
            query, key, value = query.float(), key.float(), value.float()
        attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal).to(query_BTD.dtype)
    weights_BTS = None
    if need_weights:
        assert mask is not None
        scores = at_least_float32(query @ key.mT) / math.sqrt(query.shape[-1])
        weights_BTS = attention_weights(scores, mask).mean(dim=1)
    return attention.out_proj(attended.transpose(1, 2).flatten(2)), weights_BTS


class EncoderLayer(nn.Module):
    """Self-attention and a feed-forward network, both with pre-norm. See `DecoderLayer` for the arguments.

    The results are the same as with `nn.TransformerEncoderLayer`, but this layer is faster, because
    `nn.MultiheadAttention` fills and adds separate tensors for query, key and value in its backward pass.
    """

    def __init__(self, size: int, heads: int, feedforward_size: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.feedforward = nn.Sequential(
            nn.Linear(size, feedforward_size), nn.ReLU(), nn.Linear(feedforward_size, size)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(2))
        self.dropout = Dropout(dropout)

    def forward(self, x_BSD: Tensor, mask_BS: Tensor) -> Tensor:
        """Map `(B, S, D)` to `(B, S, D)`. The mask is true for tokens and false for padding."""
        size = x_BSD.shape[2]
        query_BSD, seen_BSX = project(self.self_attention, self.norms[0](x_BSD), 0, 3).split([size, 2 * size], dim=-1)
        attended, _ = attend(self.self_attention, query_BSD, seen_BSX, mask_BS[:, None, None])
        x_BSD = x_BSD + self.dropout(attended)
        return x_BSD + self.dropout(self.feedforward(self.norms[1](x_BSD)))


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and a feed-forward network, all with pre-norm (Xiong et al., 2020).

    Args:
        size: model size D.
        heads: number of heads in each of the two attention layers.
        feedforward_size: hidden size of the feed-forward network.
        dropout: dropout probability for the output of each sublayer.
    """

    def __init__(self, size: int, heads: int, feedforward_size: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(size, heads, batch_first=True)
        self.feedforward = nn.Sequential(
            nn.Linear(size, feedforward_size), nn.ReLU(), nn.Linear(feedforward_size, size)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.dropout = Dropout(dropout)

    def source_keys(self, states_BSD: Tensor) -> Tensor:
        """Return the concatenated keys and values of the source, `(B, S, 2 × D)`."""
        return project(self.cross_attention, states_BSD, 1, 3)

    def forward(
        self, x_BTD: Tensor, before_BPX: Tensor, memory: Memory, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return outputs `(B, T, D)`, all tokens' keys and values `(B, P + T, 2 × D)`, and weights `(B, T, S)`.

        Args:
            x_BTD: states of the new tokens.
            before_BPX: keys and values of the P previous tokens, returned by the previous call. At first, P = 0.
            memory: encoder output. Its `keys` are this layer's `source_keys` or None.
            need_weights: whether to return attention weights, averaged over heads.
        """
        size = x_BTD.shape[2]
        query_BTD, new_BTX = project(self.self_attention, self.norms[0](x_BTD), 0, 3).split([size, 2 * size], dim=-1)
        seen_BLX = torch.cat([before_BPX.to(new_BTX.dtype), new_BTX], dim=1)
        new, seen = new_BTX.shape[1], seen_BLX.shape[1]
        causal, past_TL = 1 < new == seen, None
        if 1 < new < seen:
            past_TL = torch.ones(new, seen, dtype=torch.bool, device=x_BTD.device).tril(seen - new)
        x_BTD = x_BTD + self.dropout(attend(self.self_attention, query_BTD, seen_BLX, past_TL, causal=causal)[0])
        keys_BSX = self.source_keys(memory.states) if memory.keys is None else memory.keys
        query_BTD = project(self.cross_attention, self.norms[1](x_BTD), 0, 1)
        mask = memory.mask[:, None, None]
        attended, weights_BTS = attend(self.cross_attention, query_BTD, keys_BSX, mask, need_weights)
        x_BTD = x_BTD + self.dropout(attended)
        return x_BTD + self.dropout(self.feedforward(self.norms[2](x_BTD))), seen_BLX, weights_BTS


class TransformerSeq2Seq(Seq2Seq):
    """A Transformer (Vaswani et al., 2017) with pre-norm and sinusoidal positional encodings.

    Args:
        source_size: size of the source vocabulary; set from the data.
        target_size: size of the target vocabulary, V; set from the data.
        size: model size D.
        heads: number of attention heads. `size` must be divisible by this number.
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        feedforward_size: hidden size of the feed-forward networks. Default: 4 × size.
        tied_embeddings: share the weights between the output layer and the target embedding.
        shared_embeddings: share one embedding between source and target. Requires a joint vocabulary.
        dropout: dropout probability, applied only to embeddings and sublayer outputs, as in the paper.

    Raises:
        ValueError: `size` is odd or not divisible by `heads`.
    """

    def __init__(
        self,
        source_size: int,
        target_size: int,
        size: int = 256,
        heads: int = 4,
        encoder_layers: int = 3,
        decoder_layers: int = 3,
        feedforward_size: int | None = None,
        tied_embeddings: bool = True,
        shared_embeddings: bool = False,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if heads < 1 or size % heads or size % 2:
            raise ValueError(f"size must be even and a multiple of heads, got {size} and {heads}")
        feedforward_size = feedforward_size or 4 * size
        self.size = size
        self.shared_embeddings = shared_embeddings
        self.target_embedding = TokenEmbedding(target_size, size)
        self.source_embedding = self.target_embedding if shared_embeddings else TokenEmbedding(source_size, size)
        self.dropout = Dropout(dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(size, heads, feedforward_size, dropout) for _ in range(encoder_layers)
        )
        self.encoder_norm = nn.LayerNorm(size)
        self.decoder = nn.ModuleList(
            DecoderLayer(size, heads, feedforward_size, dropout) for _ in range(decoder_layers)
        )
        self.norm = nn.LayerNorm(size)
        self.output = nn.Linear(size, target_size)
        if tied_embeddings:
            self.output.weight = self.target_embedding.weight

    def blocks(self) -> list[nn.Module]:
        """Return the layers for FSDP2. Each layer runs once per forward pass, and is unsharded only while it runs."""
        return [*self.encoder, *self.decoder]

    def tensor_parallel_plan(self) -> dict[str, Any]:
        """Shard the outputs of the first feed-forward layer and the inputs of the second (Shoeybi et al., 2019).

        Attention is not sharded, because `nn.MultiheadAttention` stores the query, key and value projections of all
        heads in one matrix. Embeddings are not sharded, because other layers share them.
        """
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel  # takes half a second to import

        return {
            f"{stack}.{number}.feedforward.{part}": style
            for stack, layers in (("encoder", self.encoder), ("decoder", self.decoder))
            for number in range(len(layers))
            for part, style in ((0, ColwiseParallel()), (2, RowwiseParallel()))
        }

    def _embed(self, embedding: nn.Embedding, tokens_BT: Tensor, first: int) -> Tensor:
        positions_TD = sinusoids(torch.arange(first, first + tokens_BT.shape[1], device=tokens_BT.device), self.size)
        embedded_BTD = embedding(tokens_BT)
        return self.dropout(embedded_BTD * math.sqrt(self.size) + positions_TD.to(embedded_BTD.dtype))

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """Return the encoder states. `final` is None.

        `keys` contains the concatenated keys and values of all decoder layers, so that a search computes them only
        once. In training, `keys` is None and each decoder layer computes its own keys, which FSDP2 requires.
        """
        mask_BS = source_BS != PAD
        states_BSD = self._embed(self.source_embedding, source_BS, 0)
        for layer in self.encoder:
            states_BSD = layer(states_BSD, mask_BS)
        states_BSD = self.encoder_norm(states_BSD)
        layers: list[Any] = [] if self.training else [*self.decoder]
        keys = [layer.source_keys(states_BSD) for layer in layers]
        return Memory(states_BSD, mask_BS, torch.cat(keys, dim=-1) if keys else None)

    def start(self, memory: Memory) -> Any:
        """Return empty keys and values `(B, 0, 2 × D)` for each layer, because no tokens have been decoded yet."""
        return tuple(memory.states.new_zeros(memory.states.shape[0], 0, 2 * self.size) for _ in self.decoder)

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        """Decode T more tokens. The attention weights come from the last layer and are averaged over heads."""
        x_BTD = self._embed(self.target_embedding, tokens_BT, state[0].shape[1])
        layers = len(self.decoder)
        keys = [None] * layers if memory.keys is None else memory.keys.chunk(layers, dim=-1)
        seen, weights_BTS = [], None
        for layer, before, own in zip(self.decoder, state, keys, strict=True):
            last = layer is self.decoder[-1]
            x_BTD, now, weights_BTS = layer(x_BTD, before, memory._replace(keys=own), attention and last)
            seen.append(now)
        return Decoded(self.output(self.norm(x_BTD)), tuple(seen), weights_BTS)


def sinusoids(positions_T: Tensor, size: int) -> Tensor:
    """Return sinusoidal positional encodings `(T, size)` with wavelengths from 2π to 10,000 × 2π."""
    # With precision bf16-true or 16-true, the default dtype is too coarse for large positions.
    dtype = torch.promote_types(torch.get_default_dtype(), torch.float32)
    places = torch.arange(0, size, 2, dtype=dtype, device=positions_T.device)
    rates = torch.exp(places * (-math.log(10_000.0) / size))
    angles = positions_T[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
