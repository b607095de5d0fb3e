"""A baseline for the translation nets. It trains on single sentence pairs, token by token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lit_project.text.vocabulary import BOS


class ClassicEncoder(nn.Module):
    """GRU encoder for one token of one sentence at a time.

    Args:
        size: Source vocabulary size.
        hidden_size: Size of the hidden state and the embedding, H.
    """

    def __init__(self, size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size)

    def forward(self, token: Tensor, hidden_11H: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output `(1, 1, H)` and the next state."""
        return self.gru(self.embedding(token).view(1, 1, -1), hidden_11H)


class ClassicDecoder(nn.Module):
    """GRU decoder for one token at a time, with unmasked attention over a fixed number of positions.

    Args:
        size: Target vocabulary size.
        hidden_size: Size of the hidden state and the embedding, H.
        max_length: Number of positions.
        dropout: Dropout probability of the embedding.
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
        """Return the log-probabilities `(1, V)` of the next token, and the next state."""
        embedded_1H = self.dropout(self.embedding(token).view(1, -1))
        weights_1L = self.attention(torch.cat([embedded_1H, hidden_11H[0]], dim=1)).softmax(dim=1)
        context_1H = torch.bmm(weights_1L[None], states_LH[None])[0]
        combined_1H = self.combine(torch.cat([embedded_1H, context_1H], dim=1)).relu()
        output_11H, hidden_11H = self.gru(combined_1H[None], hidden_11H)
        return F.log_softmax(self.output(output_11H[0]), dim=1), hidden_11H


class Classic:
    """Training on one pair at a time, with separate SGD optimizers for encoder and decoder.

    The decoder always receives the true token. Feeding back its own predictions would only increase the cost per token.

    Args:
        source_size: Source vocabulary size.
        target_size: Target vocabulary size.
        max_length: Maximum source length in tokens.
        hidden_size: Size of hidden states and embeddings, H.
    """

    def __init__(self, source_size: int, target_size: int, max_length: int, hidden_size: int) -> None:
        self.encoder = ClassicEncoder(source_size, hidden_size)
        self.decoder = ClassicDecoder(target_size, hidden_size, max_length)
        self.states_shape = max_length, hidden_size
        self.optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.encoder, self.decoder)]

    def step(self, source_S: Tensor, target_T: Tensor) -> float:
        """Perform an optimizer step on one pair.

        Args:
            source_S: Source tokens with EOS at the end.
            target_T: Target tokens with EOS at the end, without BOS.

        Returns:
            The mean loss per token.
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
        """Train on `pairs` once, and return the mean of the pairs' losses."""
        return sum(self.step(*pair) for pair in pairs) / len(pairs)
