"""What a sequence-to-sequence net promises to tasks and decoders."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lit_project.text.tokens import PAD


class Memory(NamedTuple):
    """What the encoder says of a batch of sources.

    Attributes:
        states: `(B, S, D)`.
        mask: bool `(B, S)`, true where there is a token.
        keys: what the attention compares with queries, `(B, S, K)`; computed once per sentence. Of a Transformer keys
            and values of all layers of the decoder, side by side.
        final: state for the decoder to begin with: a tuple of tensors, batch first; None for none.
    """

    states: Tensor
    mask: Tensor
    keys: Tensor | None = None
    final: Any = None


class Decoded(NamedTuple):
    """What the decoder says of a stretch of target tokens.

    Attributes:
        logits: `(B, T, V)`, of the tokens that follow.
        state: after the last of them, from which decoding continues.
        attention: weights over the source `(B, T, S)`, each row sums to 1; None without attention.
    """

    logits: Tensor
    state: Any
    attention: Tensor | None


def select(tree: Any, index_B: Tensor) -> Any:
    """Rows of all tensors in nested tuples: reorders, repeats or drops the sentences of a memory or a state."""
    if isinstance(tree, Tensor):
        return tree.index_select(0, index_B)
    if isinstance(tree, tuple):
        items = [select(item, index_B) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return tree


class TokenEmbedding(nn.Embedding):
    """An embedding whose vectors are at most `max_length` long (Euclidean; None for any).

    `nn.Embedding(max_norm=...)` rewrites the weights of the tokens that it looks up, in place: training step by step
    with tied weights then fails, results depend on the rest of the batch, and processes drift apart.
    """

    def __init__(self, size: int, embedding_size: int, max_length: float | None = None) -> None:
        super().__init__(size, embedding_size, padding_idx=PAD)
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


class Seq2Seq(nn.Module):
    """Base of the nets: source tokens `(B, S)` to logits over target tokens `(B, T, V)`.

    Padding is token 0, on the right, and changes no result. A subclass implements `encode`, `start` and `decode`;
    training, greedy and beam search need nothing else.

    Attributes:
        shared_embeddings: whether a source token and the target token of its number have one embedding.
    """

    shared_embeddings = False
    # Beginnings of the names of the weights that have a row per token of a vocabulary.
    vocabulary_weights: ClassVar[dict[str, tuple[str, ...]]] = {
        "source": ("source_embedding.", "encoder.embedding."),
        "target": ("target_embedding.", "output."),
    }

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """Reads sources of `lengths_B` tokens (1 ≤ length ≤ S)."""
        raise NotImplementedError

    def start(self, memory: Memory) -> Any:
        """The state before the first target token."""
        raise NotImplementedError

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        """Continues with T tokens after `state`; one call on T tokens equals T calls on one.

        Args:
            tokens_BT: target tokens; the first of all is the beginning-of-sentence token.
            state: that of `start`, or of the call before.
            memory: of `encode`.
            attention: whether the weights are wanted; nets that have them anyway may return them always.
        """
        raise NotImplementedError

    def forward(
        self, source_BS: Tensor, lengths_B: Tensor, inputs_BT: Tensor, teacher_forcing_ratio: float = 1.0
    ) -> Tensor:
        """Logits `(B, T, V)` of the tokens that follow each of `inputs_BT`.

        Args:
            source_BS: source tokens.
            lengths_B: their numbers.
            inputs_BT: the target from its beginning-of-sentence token on, without the last token.
            teacher_forcing_ratio: how likely an input is the true token and not the net's own best guess, drawn for
                each token (scheduled sampling, Bengio et al. 2015); at 0 the decoder feeds on itself.
        """
        memory = self.encode(source_BS, lengths_B)
        state = self.start(memory)
        if teacher_forcing_ratio >= 1:
            return self.decode(inputs_BT, state, memory).logits
        logits: list[Tensor] = []
        token_B = inputs_BT[:, 0]
        for t in range(inputs_BT.shape[1]):
            if t > 0:
                true_B = torch.rand(token_B.shape, device=token_B.device) < teacher_forcing_ratio
                token_B = torch.where(true_B, inputs_BT[:, t], logits[-1].detach().argmax(dim=-1)[:, 0])
            decoded = self.decode(token_B[:, None], state, memory)
            logits.append(decoded.logits)
            state = decoded.state
        return torch.cat(logits, dim=1)
