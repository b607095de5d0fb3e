"""Attention mechanisms for recurrent decoders. Padding is masked."""

from torch import Tensor, nn

from lit_project.models.losses import at_least_float32


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax over the source tokens (last dimension) in float32 or better. Masked weights are 0.

    Args:
        scores: unnormalized scores `(…, T, S)`.
        mask: bool, broadcastable to the scores, true for tokens and false for padding. Each row must contain a token.
    """
    return at_least_float32(scores).masked_fill(~mask, float("-inf")).softmax(dim=-1)  # Half precision is too coarse.


class Attention(nn.Module):
    """Base class for attention. The score is a dot product by default. Subclasses override `keys` or `scores`."""

    def keys(self, states_BSD: Tensor) -> Tensor:
        """Return the keys `(B, S, K)` that queries are compared with, computed once per source."""
        return states_BSD

    def scores(self, query_BTH: Tensor, keys_BSK: Tensor) -> Tensor:
        """Return scores `(B, T, S)` that measure how well each source token matches each query."""
        return query_BTH.to(keys_BSK.dtype) @ keys_BSK.mT

    def forward(
        self, query_BTH: Tensor, keys_BSK: Tensor, states_BSD: Tensor, mask_BS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the contexts `(B, T, D)`, which are weighted means of the states, and the weights `(B, T, S)`."""
        weights_BTS = attention_weights(self.scores(query_BTH, keys_BSK), mask_BS[:, None])
        return weights_BTS.to(states_BSD.dtype) @ states_BSD, weights_BTS


class DotAttention(Attention):
    """Attention with score = query · state ("dot", Luong et al., 2015). Query and state must have the same size."""

    def __init__(self, query_size: int, state_size: int) -> None:
        super().__init__()
        if query_size != state_size:
            raise ValueError(
                f"attention 'dot' requires decoder and encoder states of equal size, got {query_size} and {state_size} "
                "(2 × hidden_size for a bidirectional encoder): use 'general'"
            )


class GeneralAttention(Attention):
    """Attention with score = query · W state ("general", Luong et al., 2015)."""

    def __init__(self, query_size: int, state_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(state_size, query_size, bias=False)

    def keys(self, states_BSD: Tensor) -> Tensor:
        """Return the states multiplied by W, `(B, S, H)`."""
        return self.project(states_BSD)


class AdditiveAttention(Attention):
    """Attention with score = v · tanh(W query + U state) (Bahdanau et al., 2015)."""

    def __init__(self, query_size: int, state_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, query_size, bias=False)
        self.key = nn.Linear(state_size, query_size)
        self.score = nn.Linear(query_size, 1, bias=False)

    def keys(self, states_BSD: Tensor) -> Tensor:
        """Return the states multiplied by U, `(B, S, H)`."""
        return self.key(states_BSD)

    def scores(self, query_BTH: Tensor, keys_BSH: Tensor) -> Tensor:
        return self.score((self.query(query_BTH)[:, :, None] + keys_BSH[:, None]).tanh_()).squeeze(-1)


class LocationAttention(Attention):
    """Attention with score = (W query)_s at position s. It ignores the source tokens ("location", Luong et al., 2015).

    The classic PyTorch translation tutorial uses this attention, but without masking the padding. The query consists of
    the embedded input and the hidden state.

    Args:
        query_size: size of the queries, H.
        max_source_length: maximum source length in tokens.
    """

    def __init__(self, query_size: int, max_source_length: int) -> None:
        super().__init__()
        self.max_source_length = max_source_length
        self.positions = nn.Linear(query_size, max_source_length)

    def keys(self, states_BSD: Tensor) -> Tensor:
        """Check the length of the sources. Return empty keys, because the scores do not use the states.

        Raises:
            ValueError: a source is longer than `max_source_length`.
        """
        if states_BSD.shape[1] > self.max_source_length:
            raise ValueError(
                f"a source of {states_BSD.shape[1]} tokens is longer than the {self.max_source_length} positions of "
                "location attention: increase max_source_length, or use a different type of attention"
            )
        return states_BSD[..., :0]

    def scores(self, query_BTH: Tensor, keys_BSK: Tensor) -> Tensor:
        return self.positions(query_BTH)[..., : keys_BSK.shape[1]]
