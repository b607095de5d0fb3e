"""Repeated products with the same matrix. The matrix's gradient is computed only once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class Repeated:
    """Multiplication by the same matrix M in every step of a loop.

    Autograd would compute one gradient of M per step and sum these gradients. A single product over
    all steps, d/dM = [x_1, x_2, …]ᵀ [g_1, g_2, …], is faster and needs less memory traffic. Only one backward pass is
    supported.

    Args:
        matrix: M, `(..., K, L)`. Inputs x have shape `(..., N, K)` and are cast to the dtype of M.
    """

    def __init__(self, matrix: Tensor) -> None:
        self.matrix, self.steps = matrix, list[tuple[Tensor, Tensor]]()
        self.gradient = None
        if torch.is_grad_enabled() and matrix.requires_grad:
            self.matrix, self.gradient = matrix.detach(), _Gradient.apply(matrix, self.steps)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product x M, `(..., N, L)`."""
        x = x.to(self.matrix.dtype)
        return x @ self.matrix if self.gradient is None else _Product.apply(x, self.matrix, self.gradient, self.steps)


class _Gradient(Function):
    """Autograd node for the gradient of M. Its backward pass runs last, because all products depend on its output."""

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
    """The product x M. Its backward pass stores the factors of M's gradient, and `_Gradient` multiplies them."""

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
