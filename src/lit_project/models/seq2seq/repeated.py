"""Products of one matrix with many vectors, one after the other, whose gradient is computed once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Repeated:
    """x ↦ x M, for an M that a loop uses in each step.

    Autograd computes a gradient of M in each step and adds them up. Here it is one product over all steps, which takes
    less time and memory traffic: d/dM = [x_1; x_2; …]ᵀ [g_1; g_2; …]. An M is used in one backward pass.

    Args:
        matrix: M, `(..., K, L)`; x is `(..., N, K)`, and becomes what M is: half precision, for example.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.steps = matrix, list[tuple[Tensor, Tensor]]()
        self.gradient = None
        if torch.is_grad_enabled() and matrix.requires_grad:
            self.matrix, self.gradient = matrix.detach(), _Gradient.apply(matrix, self.steps)

    def __call__(self, x: Tensor) -> Tensor:
        """The product x M, `(..., N, L)`."""
        x = x.to(self.matrix.dtype)
        return x @ self.matrix if self.gradient is None else _Product.apply(x, self.matrix, self.gradient, self.steps)


class _Gradient(Function):
    """Gives M its gradient. Each product depends on the output, a zero, so that this comes after all of them."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.steps = steps
        return matrix.new_zeros(())

    @staticmethod
    def backward(ctx: Any, zero: Tensor) -> tuple[Tensor, None]:
        x, gradient = (torch.cat(parts, dim=-2) for parts in zip(*ctx.steps, strict=True))
        ctx.steps.clear()
        return x.mT @ gradient, None


class _Product(Function):
    """The product x M, which leaves its share of the gradient of M to `_Gradient`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, zero: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.steps = steps
        return x @ matrix

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        x, matrix = ctx.saved_tensors
        ctx.steps.append((x, gradient))
        return gradient @ matrix.mT, None, None, None
