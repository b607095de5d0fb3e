"""Batched beam search for translations. A beam of size 1 is greedy search."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lit_project.models.losses import at_least_float32
from lit_project.models.seq2seq.base import Memory, Seq2Seq, select
from lit_project.text.tokens import BOS, EOS, PAD

MAX_HYPOTHESES = 1000  # This limits memory and time. Useful beam sizes are much smaller.
ROWS_ON_CPU, ROWS = 320, 8192  # number of hypotheses per batch; on a CPU, 320 fit in the cache


@dataclass
class Decoding:
    """Search options for translations.

    Args:
        beam_size: number of hypotheses per step; 1 is greedy search.
        length_penalty: exponent α of the score log P / length^α. With 0, the score is the log-probability, which
            favours short translations. With 1, the score is the mean log-probability per token.
        n_best: maximum number of translations per sentence, at most `beam_size`. The best translation is first.
        no_repeat_ngram: size of n-grams that may not occur twice in a translation; 0 allows repetitions.
        max_length_ratio: maximum number of target tokens per source token, including the source's EOS.
            `max_length_extra` is added to this limit.
        max_length_extra: number of additional tokens that are always allowed, including EOS.

    Raises:
        ValueError: a value is out of range.
    """

    beam_size: int = 1
    length_penalty: float = 1.0
    n_best: int = 1
    no_repeat_ngram: int = 0
    max_length_ratio: float = 2.0
    max_length_extra: int = 10

    def __post_init__(self) -> None:
        if not 1 <= self.beam_size <= MAX_HYPOTHESES:
            raise ValueError(f"beam_size must be between 1 and {MAX_HYPOTHESES}, got {self.beam_size}")
        if not 1 <= self.n_best <= self.beam_size:
            raise ValueError(f"n_best must be between 1 and beam_size {self.beam_size}, got {self.n_best}")
        for name in ("length_penalty", "no_repeat_ngram", "max_length_ratio"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be finite and not negative, got {getattr(self, name)}")
        if self.max_length_extra < 1:
            raise ValueError(f"max_length_extra must be at least 1, got {self.max_length_extra}")

    def limits(self, lengths_B: Tensor) -> Tensor:
        """Return the maximum number of tokens in each translation, `(B,)`."""
        return (lengths_B.double() * self.max_length_ratio).clamp(max=2**31).long() + self.max_length_extra

    @torch.no_grad()
    def search(self, net: Seq2Seq, source_BS: Tensor, lengths_B: Tensor) -> list[list["Hypothesis"]]:
        """Return the `n_best` translations of each source, or only `NOTHING` if their probabilities are not finite.

        Sentences of similar length are decoded together, and finished sentences are dropped from the batch. The
        composition of a batch only affects rounding.
        """
        lengths_B = lengths_B.cpu()  # The lengths are usually on the CPU already.
        rows = ROWS_ON_CPU if source_BS.device.type == "cpu" else ROWS
        found: list[list[Hypothesis]] = [[]] * len(source_BS)
        for places_B in lengths_B.argsort(stable=True).split(max(1, rows // self.beam_size)):
            part_B = lengths_B[places_B]
            memory = net.encode(source_BS[places_B, : int(part_B.max())], part_B)
            limits = self.limits(part_B).to(source_BS.device)
            for place, best in zip(places_B.tolist(), beam_search(net, memory, limits, self), strict=True):
                found[place] = best
        return found


class Hypothesis(NamedTuple):
    """A translation as token ids.

    Attributes:
        tokens: token ids without BOS and EOS.
        log_probability: sum of the natural log-probabilities of the tokens, including EOS.
        score: score used for ranking.
    """

    tokens: list[int]
    log_probability: float
    score: float


NOTHING = Hypothesis([], float("-inf"), float("-inf"))


def _log_probabilities(logits_BV: Tensor, tokens_BT: Tensor, last_B: Tensor, options: Decoding) -> Tensor:
    """Return the log-probabilities of the next token, `(B, V)`. Forbidden tokens have a log-probability of -inf.

    `tokens_BT` contains the previous tokens without BOS. If a logit is NaN or +inf, all results are -inf.
    """
    scores_BV = at_least_float32(logits_BV).log_softmax(dim=-1).nan_to_num_(nan=float("-inf"), neginf=float("-inf"))
    scores_BV[:, PAD] = scores_BV[:, BOS] = float("-inf")  # Indexing with a list would synchronize with the device.
    n = options.no_repeat_ngram
    if n and tokens_BT.shape[1] >= n:
        windows_BWN = tokens_BT.unfold(1, n, 1)
        start_BN = tokens_BT[:, tokens_BT.shape[1] - n + 1 :]
        seen_BW = (windows_BWN[..., :-1] == start_BN[:, None]).all(dim=-1)
        rows, places = seen_BW.nonzero(as_tuple=True)
        scores_BV[rows, windows_BWN[rows, places, -1]] = float("-inf")
    end_B = scores_BV[:, EOS].clone()
    scores_BV[last_B] = float("-inf")  # At the length limit, only EOS is allowed.
    scores_BV[:, EOS] = end_B
    return scores_BV


def _best_continuations(totals_BK: Tensor, scores_RV: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best continuations of each sentence, as their total log-probabilities, rows and tokens, `(B, C)` each.

    Args:
        totals_BK: log-probabilities of each sentence's K hypotheses, in the same order as the rows of `scores_RV`.
        scores_RV: log-probabilities of the next token, which are changed in place. R is B × K.
        count: maximum number of continuations per sentence.
    """
    (sentences, width), vocabulary = totals_BK.shape, scores_RV.shape[1]
    all_BN = scores_RV.add_(totals_BK.view(-1, 1)).view(sentences, width * vocabulary)
    total_BC, flat_BC = all_BN.topk(min(count, all_BN.shape[1]), dim=1)
    first_row_B1 = torch.arange(sentences, device=totals_BK.device)[:, None] * width
    return total_BC, first_row_B1 + flat_BC // vocabulary, flat_BC % vocabulary


@torch.no_grad()
def beam_search(net: Seq2Seq, memory: Memory, limits_B: Tensor, options: Decoding) -> list[list[Hypothesis]]:
    """Search with a beam of `beam_size` hypotheses per sentence, up to `limits_B` tokens including EOS.

    A hypothesis is finished if its EOS is among the `beam_size` best continuations of its sentence. A sentence is
    finished if it has `beam_size` finished hypotheses. The search is exact if the beam can hold all possible sequences.
    """
    size, beams, device = len(memory.states), options.beam_size, memory.states.device
    state = net.start(memory)
    # The R rows are grouped by sentence. There is one row per sentence at first, and later up to `beam_size` rows.
    sentence_R = torch.arange(size, device=device)
    tokens_RT = torch.full((size, 1), BOS, device=device)
    totals_BK = torch.zeros(size, 1, device=device)
    finished: list[list[Hypothesis]] = [[] for _ in range(size)]
    for step in range(int(limits_B.max())):
        decoded = net.decode(tokens_RT[:, -1:], state, memory)
        is_last_R = limits_B[sentence_R] == step + 1
        scores_RV = _log_probabilities(decoded.logits[:, -1], tokens_RT[:, 1:], is_last_R, options)
        # At most half of these candidates end with EOS, so the others can fill the beam.
        total_BC, row_BC, token_BC = _best_continuations(totals_BK, scores_RV, 2 * beams)
        is_end_BC = token_BC == EOS

        # A hypothesis is finished if its EOS is among the `beam_size` best continuations.
        finishes_BC = is_end_BC & total_BC.isfinite()
        finishes_BC[:, beams:] = False
        rows = row_BC[finishes_BC]
        ended = sentence_R[rows].tolist(), total_BC[finishes_BC].tolist(), tokens_RT[rows, 1:].tolist()
        for sentence, total, tokens in zip(*ended, strict=True):
            if len(finished[sentence]) < beams:
                score = total / (len(tokens) + 1) ** options.length_penalty
                finished[sentence].append(Hypothesis(tokens, total, score))

        # The best of the other continuations form the next beam of each sentence that still needs hypotheses.
        width = totals_BK.shape[1]
        needs_more = [len(finished[sentence]) < beams for sentence in sentence_R[::width].tolist()]
        open_BC = total_BC.masked_fill(is_end_BC, float("-inf"))
        totals_BK, place_BK = open_BC.topk(min(beams, open_BC.shape[1]), dim=1)
        is_open_B = torch.tensor(needs_more, device=device) & totals_BK.isfinite().any(dim=1)
        if not is_open_B.any():
            break
        totals_BK = totals_BK[is_open_B]
        row_R, token_R = (each.gather(1, place_BK)[is_open_B].flatten() for each in (row_BC, token_BC))
        tokens_RT = torch.cat([tokens_RT[row_R], token_R[:, None]], dim=1)
        sentence_before_R = sentence_R
        state, sentence_R = select((decoded.state, sentence_R), row_R)
        if not torch.equal(sentence_R, sentence_before_R):
            memory = select(memory, row_R)
    return [sorted(found, key=lambda h: -h.score)[: options.n_best] or [NOTHING] for found in finished]
