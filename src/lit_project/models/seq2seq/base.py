"""The interface that tasks and beam search use to call sequence-to-sequence models."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lit_project.text.tokens import PAD


class Memory(NamedTuple):
    """The encoder's output for a batch of sources.

    Attributes:
        states: encoder states `(B, S, D)`.
        mask: bool `(B, S)`, true for tokens and false for padding.
        keys: attention keys `(B, S, K)`, computed once per sentence. A Transformer concatenates the keys and values
            of all decoder layers.
        final: final encoder state, which initializes the decoder. It is a tuple of batch-first tensors or None.
    """

    states: Tensor
    mask: Tensor
    keys: Tensor | None = None
    final: Any = None


class Decoded(NamedTuple):
    """The decoder's output for T target tokens.

    Attributes:
        logits: logits of the next tokens, `(B, T, V)`.
        state: decoder state after the last token, from which decoding continues.
        attention: attention weights over the source `(B, T, S)`, or None without attention. Each row sums to 1.
    """

    logits: Tensor
    state: Any
    attention: Tensor | None


def select(tree: Any, index_B: Tensor) -> Any:
    """Select rows of all tensors in nested tuples, to reorder, repeat or drop sentences in a memory or state."""
    if isinstance(tree, Tensor):
        return tree.index_select(0, index_B)
    if isinstance(tree, tuple):
        items = [select(item, index_B) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else tuple(items)
    return tree


class TokenEmbedding(nn.Embedding):
    """An embedding whose vectors have a Euclidean norm of at most `max_norm`. By default, the norm is unlimited.

    In contrast, `nn.Embedding(max_norm=...)` changes the weights of the looked-up tokens in place. As a result,
    token-by-token training with tied weights fails, results depend on the rest of the batch, and processes diverge.
    """

    def __init__(self, size: int, embedding_size: int, max_norm: float | None = None) -> None:
        super().__init__(size, embedding_size, padding_idx=PAD)
        self.limit = max_norm  # not `self.max_norm`, which `nn.Embedding` reads
        # With a variance of 1 / E, a tied output layer initially produces logits with a variance of about 1.
        nn.init.normal_(self.weight, std=embedding_size**-0.5)
        with torch.no_grad():
            self.weight[PAD].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings `(..., E)` of tokens `(...)`."""
        embedded = super().forward(tokens)
        if self.limit is None:
            return embedded
        return embedded * (self.limit / embedded.norm(dim=-1, keepdim=True).clamp(min=self.limit))


class Seq2Seq(nn.Module):
    """Base class for models that map source tokens `(B, S)` to logits over target tokens `(B, T, V)`.

    Sequences are padded on the right with token 0, which does not affect any result. Subclasses only implement
    `encode`, `start` and `decode`. Training and beam search need no other methods.

    Attributes:
        shared_embeddings: whether source and target tokens with the same id share an embedding.
        vocabulary_weights: name prefixes of the weights that have one row per token. `--init_from` does not load these
            weights if the vocabulary differs. Override this attribute if your layers have other names.
    """

    shared_embeddings = False
    vocabulary_weights: ClassVar[dict[str, tuple[str, ...]]] = {
        "source": ("source_embedding.", "encoder.embedding."),
        "target": ("target_embedding.", "output."),
    }

    def encode(self, source_BS: Tensor, lengths_B: Tensor) -> Memory:
        """Encode source sentences with `lengths_B` tokens each (1 ≤ length ≤ S)."""
        raise NotImplementedError

    def start(self, memory: Memory) -> Any:
        """Return the decoder state before the first target token."""
        raise NotImplementedError

    def decode(self, tokens_BT: Tensor, state: Any, memory: Memory, attention: bool = False) -> Decoded:
        """Decode T more tokens after `state`. One call with T tokens is equivalent to T calls with one token.

        Args:
            tokens_BT: target tokens. The first token of a sentence is BOS.
            state: state returned by `start` or by the previous call.
            memory: output of `encode`.
            attention: whether to return attention weights. Models that always compute the weights may ignore this.
        """
        raise NotImplementedError

    def forward(
        self, source_BS: Tensor, lengths_B: Tensor, inputs_BT: Tensor, teacher_forcing_ratio: float = 1.0
    ) -> Tensor:
        """Return logits `(B, T, V)` for the token that follows each input token.

        Args:
            source_BS: source tokens.
            lengths_B: number of source tokens in each sentence.
            inputs_BT: target tokens, which start with BOS and exclude the last token.
            teacher_forcing_ratio: probability that an input is the true token rather than a predicted token. The
                choice is made for each token (scheduled sampling, Bengio et al., 2015).
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
                token_B = torch.where(true_B, inputs_BT[:, t], logits[-1].detach().max(dim=-1).indices[:, 0])
            decoded = self.decode(token_B[:, None], state, memory)
            logits.append(decoded.logits)
            state = decoded.state
        return torch.cat(logits, dim=1)
