"""Attentions of the recurrent decoders: queries and source states in, contexts and weights out, padding masked."""

from torch import Tensor, nn

from lit_project.models.losses import at_least_float32


def attention_weights(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the source tokens, the last dimension: 0 where the mask is false; at least in float32.

    Args:
        scores: any real numbers, `(…, T, S)`.
        mask: bool, of a shape that broadcasts to theirs: true where there is a token; at least one per row.
    """
    return at_least_float32(scores).masked_fill(~mask, float("-inf")).softmax(dim=-1)  # half precision is too coarse


class Attention(nn.Module):
    """Base: queries are compared with the states by products, unless a subclass has other `keys` or `scores`."""

    def keys(self, states_BSD: Tensor) -> Tensor:
        """What queries are compared with, `(B, S, K)`; computed once per source."""
        return states_BSD

    def scores(self, query_BTH: Tensor, keys_BSK: Tensor) -> Tensor:
        """How well the tokens of the source fit the queries, `(B, T, S)`."""
        return query_BTH.to(keys_BSK.dtype) @ keys_BSK.mT

    def forward(
        self, query_BTH: Tensor, keys_BSK: Tensor, states_BSD: Tensor, mask_BS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Contexts `(B, T, D)`, the weighted means of the states, and `attention_weights` `(B, T, S)`."""
        weights_BTS = attention_weights(self.scores(query_BTH, keys_BSK), mask_BS[:, None])
        return weights_BTS.to(states_BSD.dtype) @ states_BSD, weights_BTS


class DotAttention(Attention):
    """Score = query · state (Luong et al. 2015, "dot"); both need the same size: H = D."""

    def __init__(self, query_size: int, state_size: int) -> None:
        super().__init__()
        if query_size != state_size:
            raise ValueError(
                f"attention 'dot' needs decoder and encoder states of one size, got {query_size} and {state_size} "
                "(a bidirectional encoder gives 2 × hidden_size): take 'general'"
            )


class GeneralAttention(Attention):
    """Score = query · W state (Luong et al. 2015, "general")."""

    def __init__(self, query_size: int, state_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(state_size, query_size, bias=False)

    def keys(self, states_BSD: Tensor) -> Tensor:
        """W state, `(B, S, H)`."""
        return self.project(states_BSD)


class AdditiveAttention(Attention):
    """Score = v · tanh(W query + U state) (Bahdanau et al. 2015)."""

    def __init__(self, query_size: int, state_size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_size, query_size, bias=False)
        self.key = nn.Linear(state_size, query_size)
        self.score = nn.Linear(query_size, 1, bias=False)

    def keys(self, states_BSD: Tensor) -> Tensor:
        """U state, `(B, S, H)`."""
        return self.key(states_BSD)

    def scores(self, query_BTH: Tensor, keys_BSH: Tensor) -> Tensor:
        return self.score((self.query(query_BTH)[:, :, None] + keys_BSH[:, None]).tanh_()).squeeze(-1)


class LocationAttention(Attention):
    """Score of position s = (W query)_s: a linear map to a fixed number of positions that ignores their tokens.

    That of the classic PyTorch translation tutorial, whose query is the embedded input and the hidden state (Luong et
    al. 2015, "location"), with padding masked.

    Args:
        query_size: H of the queries.
        max_source_length: the longest source, in tokens.
    """

    def __init__(self, query_size: int, max_source_length: int) -> None:
        super().__init__()
        self.max_source_length = max_source_length
        self.positions = nn.Linear(query_size, max_source_length)

    def keys(self, states_BSD: Tensor) -> Tensor:
        """Not used; checks the length.

        Raises:
            ValueError: a source is longer than `max_source_length`.
        """
        if states_BSD.shape[1] > self.max_source_length:
            raise ValueError(
                f"a source of {states_BSD.shape[1]} tokens is longer than the {self.max_source_length} positions of "
                "the location attention"
            )
        return states_BSD[..., :0]

    def scores(self, query_BTH: Tensor, keys_BSK: Tensor) -> Tensor:
        return self.positions(query_BTH)[..., : keys_BSK.shape[1]]
