"""From a net's probabilities to translations: greedy and beam search over whole batches, on the device."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_project.models.seq2seq.base import Memory, Seq2Seq, full, select
from lit_project.text.vocabulary import BOS, EOS, PAD

MOST_HYPOTHESES = 1000  # memory and time of a search grow with them, and translations get worse long before


@dataclass
class Decoding:
    """How translations are searched for.

    Args:
        beam_size: hypotheses kept at each step; 1 is greedy search.
        length_penalty: α of the score log P / length^α; 0 ranks by probability, which prefers short ones; 1 by the mean
            of the tokens.
        n_best: how many translations of a sentence are given, best first; at most `beam_size`.
        no_repeat_ngram: no sequence of so many tokens occurs twice in a translation; 0 for no such rule.
        max_length_ratio: a translation has at most ratio × source tokens + `max_length_extra` tokens (the end counted).
        max_length_extra: see there.

    Raises:
        ValueError: a number out of range.
    """

    beam_size: int = 1
    length_penalty: float = 1.0
    n_best: int = 1
    no_repeat_ngram: int = 0
    max_length_ratio: float = 2.0
    max_length_extra: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MOST_HYPOTHESES:
            raise ValueError(f"beam_size must be between 1 and {MOST_HYPOTHESES}, got {self.beam_size}")
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(f"n_best must be between 1 and beam_size {self.beam_size}, got {self.n_best}")
        for name in ("length_penalty", "no_repeat_ngram", "max_length_ratio"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.max_length_extra < 1:
            raise ValueError(f"max_length_extra must be at least 1, got {self.max_length_extra}")

    def limits(self, lengths_B: Tensor) -> Tensor:
        """The most tokens of each translation, `(B,)`."""
        return (lengths_B * self.max_length_ratio).long() + self.max_length_extra

    @torch.no_grad()
    def search(self, net: Seq2Seq, source_BS: Tensor, lengths_B: Tensor) -> list[list["Hypothesis"]]:
        """The `n_best` translations of each source, best first; just `NOTHING` where probabilities are not finite."""
        memory, limits_B = net.encode(source_BS, lengths_B), self.limits(lengths_B)
        if self.beam_size == 1:
            return greedy(net, memory, limits_B, self)
        return beam_search(net, memory, limits_B, self)


class Hypothesis(NamedTuple):
    """A translation.

    Attributes:
        tokens: ids without the beginning and the end of the sentence.
        log_probability: sum over its tokens, the end among them; natural logarithm.
        score: what it was ranked by.
    """

    tokens: list[int]
    log_probability: float
    score: float


NOTHING = Hypothesis([], float("-inf"), float("-inf"))


def _log_probabilities(logits_BV: Tensor, tokens_BT: Tensor, last_B: Tensor, options: Decoding) -> Tensor:
    """Of the next token, `(B, V)`; -inf for those that must not follow the tokens so far (without BOS), `(B, T)`.

    Where the net gives no numbers they are all -inf.
    """
    scores_BV = full(logits_BV).log_softmax(dim=-1).nan_to_num_(nan=float("-inf"), neginf=float("-inf"))
    scores_BV[:, [PAD, BOS]] = float("-inf")
    n = options.no_repeat_ngram
    if n and tokens_BT.shape[1] >= n:
        windows_BWN = tokens_BT.unfold(1, n, 1)
        start_BN = tokens_BT[:, tokens_BT.shape[1] - n + 1 :]
        seen_BW = (windows_BWN[..., :-1] == start_BN[:, None]).all(dim=-1)
        rows, places = seen_BW.nonzero(as_tuple=True)
        scores_BV[rows, windows_BWN[rows, places, -1]] = float("-inf")
    end_B = scores_BV[:, EOS].clone()
    scores_BV[last_B] = float("-inf")  # at the limit only the end may follow
    scores_BV[:, EOS] = end_B
    return scores_BV


@torch.no_grad()
def greedy(net: Seq2Seq, memory: Memory, limits_B: Tensor, options: Decoding) -> list[list[Hypothesis]]:
    """The likeliest token at each step, `limits_B` tokens at most, the end counted."""
    size, device = len(memory.states), memory.states.device
    state = net.start(memory)
    tokens_BT = torch.full((size, 1), BOS, device=device)
    total_B = torch.zeros(size, device=device)
    done_B = torch.zeros(size, dtype=torch.bool, device=device)
    for step in range(int(limits_B.max())):
        decoded = net.decode(tokens_BT[:, -1:], state, memory)
        state = decoded.state
        scores_BV = _log_probabilities(decoded.logits[:, -1], tokens_BT[:, 1:], limits_B == step + 1, options)
        best_B, token_B = scores_BV.max(dim=-1)
        token_B = token_B.where(best_B.isfinite(), EOS)
        total_B += best_B.masked_fill(done_B, 0)
        tokens_BT = torch.cat([tokens_BT, token_B.masked_fill(done_B, PAD)[:, None]], dim=1)
        done_B |= token_B == EOS
        if done_B.all():
            break
    found = []
    for row, total in zip(tokens_BT[:, 1:].tolist(), total_B.tolist(), strict=True):
        tokens = row[: row.index(EOS)]
        score = total / (len(tokens) + 1) ** options.length_penalty
        found.append([NOTHING if total == float("-inf") else Hypothesis(tokens, total, score)])
    return found


@torch.no_grad()
def beam_search(net: Seq2Seq, memory: Memory, limits_B: Tensor, options: Decoding) -> list[list[Hypothesis]]:
    """The best of `beam_size` hypotheses at a time.

    A hypothesis is finished when its end is among the `beam_size` best continuations of its sentence, and a sentence
    when it has that many finished ones. With a beam that holds all sequences the result is exact.
    """
    size, beams, device = len(memory.states), options.beam_size, memory.states.device
    memory = select(memory, torch.arange(size, device=device).repeat_interleave(beams))
    state = net.start(memory)
    tokens_RT = torch.full((size * beams, 1), BOS, device=device)  # R = sentence × beam
    totals_BK = torch.full((size, beams), float("-inf"), device=device)
    totals_BK[:, 0] = 0  # all beams of a sentence begin alike: one is enough
    finished: list[list[Hypothesis]] = [[] for _ in range(size)]
    open_B = torch.ones(size, dtype=torch.bool, device=device)
    first_row_B1 = torch.arange(size, device=device)[:, None] * beams
    for step in range(int(limits_B.max())):
        decoded = net.decode(tokens_RT[:, -1:], state, memory)
        last_R = (limits_B == step + 1).repeat_interleave(beams)
        scores_RV = _log_probabilities(decoded.logits[:, -1], tokens_RT[:, 1:], last_R, options)
        vocabulary = scores_RV.shape[-1]
        all_BN = (totals_BK.view(-1, 1) + scores_RV).view(size, beams * vocabulary)
        # at most half of these end, so that enough remain to be continued
        best_BC, flat_BC = all_BN.topk(min(2 * beams, all_BN.shape[1]), dim=1)
        row_BC, token_BC = first_row_B1 + flat_BC // vocabulary, flat_BC % vocabulary
        ends_BC = (token_BC == EOS) & best_BC.isfinite() & open_B[:, None]
        ends_BC[:, beams:] = False
        for sentence, place in ends_BC.nonzero().tolist():
            if len(finished[sentence]) < beams:
                total = float(best_BC[sentence, place])
                tokens = tokens_RT[row_BC[sentence, place], 1:].tolist()
                score = total / (len(tokens) + 1) ** options.length_penalty
                finished[sentence].append(Hypothesis(tokens, total, score))
        best_BC = best_BC.masked_fill(token_BC == EOS, float("-inf"))
        totals_BK, place_BK = best_BC.topk(beams, dim=1)
        full = torch.tensor([len(found) >= beams for found in finished], device=device)
        open_B = open_B & ~full & totals_BK.isfinite().any(dim=1)
        if not open_B.any():
            break
        row_R = row_BC.gather(1, place_BK).flatten()
        tokens_RT = torch.cat([tokens_RT[row_R], token_BC.gather(1, place_BK).flatten()[:, None]], dim=1)
        state = select(decoded.state, row_R)
    return [sorted(found, key=lambda h: -h.score)[: options.n_best] or [NOTHING] for found in finished]
