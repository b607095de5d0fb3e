"""The penalty of R-Drop (Liang et al., 2021), computed in blocks because the vocabulary is large."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from lit_project.models.losses import at_least_float32

BLOCK = 128  # tokens per block. With 8,000 words, a block of logits has 4 MB.


class _Divergence(Function):
    """KL(p‖q) + KL(q‖p), with gradients computed in the forward pass. Intermediate results stay in the CPU's cache."""

    @staticmethod
    def forward(ctx: Any, logits_p_NV: Tensor, logits_q_NV: Tensor) -> Tensor:
        grads = torch.empty_like(logits_p_NV), torch.empty_like(logits_q_NV)
        sums = []
        blocks = (x_NV.split(BLOCK) for x_NV in (logits_p_NV, logits_q_NV, *grads))
        for logits_p, logits_q, grad_p, grad_q in zip(*blocks, strict=True):
            log_p, log_q = logits_p.log_softmax(dim=-1), logits_q.log_softmax(dim=-1)
            p, q, log_ratio = log_p.exp(), log_q.exp(), log_p - log_q
            p_to_q, q_to_p = (p * log_ratio).sum(-1, keepdim=True), -(q * log_ratio).sum(-1, keepdim=True)
            torch.sub(p * (log_ratio - p_to_q + 1), q, out=grad_p)
            torch.sub(q * (1 - log_ratio - q_to_p), p, out=grad_q)
            sums.append((p_to_q + q_to_p).squeeze(-1))
        ctx.save_for_backward(*grads)
        return torch.cat(sums)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, ...]:
        return tuple(grad_N[:, None] * part for part in ctx.saved_tensors)


def divergence(logits_BTV: Tensor) -> Tensor:
    """Return KL(p‖q) + KL(q‖p) of the predictions p and q in the first and second half of a batch, `(B/2, T)`."""
    p, q = (half.flatten(0, 1) for half in at_least_float32(logits_BTV).chunk(2))
    return _Divergence.apply(p, q).view(-1, logits_BTV.shape[1])
