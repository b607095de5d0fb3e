"""A small Transformer behind the same interface, from the parts of `torch.nn`."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from lit_project.models.dropout import Dropout
from lit_project.models.seq2seq.base import Decoded, Memory, Seq2Seq
from lit_project.text.vocabulary import PAD


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, feed-forward; each normalised before (Xiong et al. 2020).

    Args:
        size: D.
        heads: of both attentions.
        feedforward_size: of the layer in between.
        dropout: of each part's output, and of attention weights.
    """

    def __init__(self, size: int, heads: int, feedforward_size: int, dropout: float) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(size, heads, dropout, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(size, heads, dropout, batch_first=True)
        self.feedforward = nn.Sequential(
            nn.Linear(size, feedforward_size), nn.ReLU(), Dropout(dropout), nn.Linear(feedforward_size, size)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(size) for _ in range(3))
        self.dropout = Dropout(dropout)

    def forward(
        self, x_BTD: Tensor, before_BPD: Tensor, memory: Memory, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Outputs `(B, T, D)`, what self-attention sees of all tokens so far `(B, P + T, D)`, weights `(B, T, S)`.

        Args:
            x_BTD: the new tokens.
            before_BPD: what the call before returned of the P tokens before; P = 0 at first.
            memory: of the source.
            need_weights: whether the weights are wanted, averaged over heads.
        """
        new_BTD = self.norms[0](x_BTD)
        seen_BLD = torch.cat([before_BPD.to(new_BTD.dtype), new_BTD], dim=1)
        new, seen = new_BTD.shape[1], seen_BLD.shape[1]
        future_TL = torch.ones(new, seen, dtype=torch.bool, device=x_BTD.device).triu(seen - new + 1)
        x_BTD = x_BTD + self.dropout(
            self.self_attention(new_BTD, seen_BLD, seen_BLD, attn_mask=future_TL, need_weights=False)[0]
        )
        states = memory.states
        attended, weights_BTS = self.cross_attention(
            self.norms[1](x_BTD), states, states, key_padding_mask=~memory.mask, need_weights=need_weights
        )
        x_BTD = x_BTD + self.dropout(attended)
        return x_BTD + self.dropout(self.feedforward(self.norms[2](x_BTD))), seen_BLD, weights_BTS


class TransformerSeq2Seq(Seq2Seq):
    """Transformer (Vaswani et al. 2017) with layer norm before each part and sinusoidal positions.

    Args:
        source_size: of the source vocabulary; from the data.
        target_size: of the target vocabulary, V; from the data.
        size: D.
        heads: of each attention; must divide `size`.
        encoder_layers: stacked.
        decoder_layers: stacked.
        feedforward_size: of the layer in between; default: 4 × size.
        tied_embeddings: the output layer shares the weights of the target embedding.
        shared_embeddings: source and target share one embedding; for a joint vocabulary.
        dropout: of embeddings, of each part's output, and of attention weights.

    Raises:
        ValueError: sizes that contradict each other.
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
        self.target_embedding = nn.Embedding(target_size, size, padding_idx=PAD)
        self.source_embedding = (
            self.target_embedding if shared_embeddings else nn.Embedding(source_size, size, padding_idx=PAD)
        )
        for embedding in dict.fromkeys((self.target_embedding, self.source_embedding)):  # a set has no order
            nn.init.normal_(embedding.weight, std=size**-0.5)
            with torch.no_grad():
                embedding.weight[PAD].zero_()
        self.dropout = Dropout(dropout)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(size, heads, feedforward_size, dropout, batch_first=True, norm_first=True),
            encoder_layers,
            norm=nn.LayerNorm(size),
            enable_nested_tensor=False,  # has no effect with norm_first but a warning
        )
        for layer in self.encoder.layers:
            layer.dropout, layer.dropout1, layer.dropout2 = (Dropout(dropout) for _ in range(3))
        self.decoder = nn.ModuleList(
            DecoderLayer(size, heads, feedforward_size, dropout) for _ in range(decoder_layers)
        )
        self.norm = nn.LayerNorm(size)
        self.output = nn.Linear(size, target_size)
        if tied_embeddings:
            self.output.weight = self.target_embedding.weight

    def blocks(self) -> list[nn.Module]:
        """Parts that run once in a forward pass, of which one at a time need be whole in memory (FSDP2)."""
        return [*self.encoder.layers, *self.decoder]

    def tensor_parallel_plan(self) -> dict[str, ParallelStyle]:
        """Splits the feed-forward layers: the first by its outputs, the second by its inputs (Shoeybi et al. 2019).

        Attention is not split, because `nn.MultiheadAttention` keeps queries, keys and values of all heads in one
        matrix; nor are the embeddings, which other layers share.
        """
        layers = [(f"encoder.layers.{number}.linear", "1", "2") for number in range(len(self.encoder.layers))]
        layers += [(f"decoder.{number}.feedforward.", "0", "3") for number in range(len(self.decoder))]
        return {
            f"{layer}{part}": style
            for layer, first, second in layers
            for part, style in ((first, ColwiseParallel()), (second, RowwiseParallel()))
        }

    def _embed(self, embedding: nn.Embedding, tokens_BT: Tensor, first: int) -> Tensor:
        positions_TD = sinusoids(torch.arange(first, first + tokens_BT.shape[1], device=tokens_BT.device), self.size)
        embedded_BTD = embedding(tokens_BT)
        return self.dropout(embedded_BTD * math.sqrt(self.size) + positions_TD.to(embedded_BTD.dtype))

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """States of the source; there is no final one."""
        mask_BS = source_BS != PAD
        embedded_BSD = self._embed(self.source_embedding, source_BS, 0)
        return Memory(self.encoder(embedded_BSD, src_key_padding_mask=~mask_BS), mask_BS)

    def start(self, memory: Memory) -> Any:
        """For each layer, what its self-attention has seen: nothing yet, `(B, 0, D)`."""
        return tuple(memory.states.new_zeros(memory.states.shape[0], 0, self.size) for _ in self.decoder)

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        """Continues with T tokens; the attention is that of the last layer, averaged over heads."""
        x_BTD = self._embed(self.target_embedding, tokens_BT, state[0].shape[1])
        seen, weights_BTS = [], None
        for layer, before in zip(self.decoder, state, strict=True):
            x_BTD, now, weights_BTS = layer(x_BTD, before, memory, attention and layer is self.decoder[-1])
            seen.append(now)
        return Decoded(self.output(self.norm(x_BTD)), tuple(seen), weights_BTS)


def sinusoids(positions_T: Tensor, size: int) -> Tensor:
    """Position codes `(T, size)`: sines and cosines of geometric wavelengths from 2π to 10,000 × 2π."""
    rates = torch.exp(torch.arange(0, size, 2, device=positions_T.device) * (-math.log(10_000.0) / size))
    angles = positions_T[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
