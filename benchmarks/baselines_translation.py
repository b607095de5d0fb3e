"""What the translation nets are compared with: one sentence pair at a time, one token step at a time."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_project.text.vocabulary import BOS


class ClassicEncoder(nn.Module):
    """A GRU that is called for one token of one sentence.

    Args:
        size: of the source vocabulary.
        hidden_size: H, also of the embedding.
    """

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)

    def forward(self, token: Tensor, hidden_11H: Tensor) -> tuple[Tensor, Tensor]:
        """Output `(1, 1, H)` and the next state."""
        return self.gru(self.embedding(token).view(1, 1, -1), hidden_11H)


class ClassicDecoder(nn.Module):
    """A GRU that is called for one token, with attention over a fixed number of positions (nothing is masked).

    Args:
        size: of the target vocabulary.
        hidden_size: H, also of the embedding.
        max_length: number of positions.
        dropout: of the embedding.
    """

    def __init__(self, size: int, hidden_size: int, max_length: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, hidden_size)
        self.attention = nn.Linear(2 * hidden_size, max_length)
        self.combine = nn.Linear(2 * hidden_size, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.gru = nn.GRU(hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, size)

    def forward(self, token: Tensor, hidden_11H: Tensor, states_LH: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities `(1, V)` of the next token and the next state."""
        embedded_1H = self.dropout(self.embedding(token).view(1, -1))
        weights_1L = self.attention(torch.cat([embedded_1H, hidden_11H[0]], dim=1)).softmax(dim=1)
        context_1H = torch.bmm(weights_1L[None], states_LH[None])[0]
        combined_1H = self.combine(torch.cat([embedded_1H, context_1H], dim=1)).relu()
        output_11H, hidden_11H = self.gru(combined_1H[None], hidden_11H)
        return F.log_softmax(self.output(output_11H[0]), dim=1), hidden_11H


class Classic:
    """Trains on one pair after another; SGD on encoder and decoder, each with an optimizer of its own.

    The decoder is always given the true token: feeding on its own guesses would only add to what a token costs.

    Args:
        source_size: of the source vocabulary.
        target_size: of the target vocabulary.
        max_length: the longest source, in tokens.
        hidden_size: H.
    """

    def __init__(self, source_size: int, target_size: int, max_length: int, hidden_size: int) -> None:
        self.encoder = ClassicEncoder(source_size, hidden_size)
        self.decoder = ClassicDecoder(target_size, hidden_size, max_length)
        self.states_shape = max_length, hidden_size
        self.optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.encoder, self.decoder)]

    def step(self, source_S: Tensor, target_T: Tensor) -> float:
        """One optimizer step on one pair.

        Args:
            source_S: tokens, EOS at the end.
            target_T: tokens, EOS at the end, no BOS.

        Returns:
            The mean loss of a token.
        """
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        hidden_11H = torch.zeros(1, 1, self.states_shape[1])
        states_LH = torch.zeros(self.states_shape)
        for position, token in enumerate(source_S):
            output_11H, hidden_11H = self.encoder(token, hidden_11H)
            states_LH[position] = output_11H[0, 0]
        token, loss = torch.tensor(BOS), torch.zeros(())
        for label in target_T:
            logs_1V, hidden_11H = self.decoder(token, hidden_11H, states_LH)
            loss = loss + F.nll_loss(logs_1V, label[None])
            token = label
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item() / len(target_T)

    def train(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
        """Trains on `pairs` once; returns the mean loss of a pair."""
        return sum(self.step(*pair) for pair in pairs) / len(pairs)
