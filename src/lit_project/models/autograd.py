"""Autograd functions of your own: two examples to copy, whose tests compare them with finite differences (`gradcheck`).

`backward` gets the gradient by the output and returns one by each argument of `forward`, None if that is no tensor. It
may leave out what `ctx.needs_input_grad` does not ask for.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function


class _ScaleGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # no tensor: kept on the context
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """`x` itself, of any shape; the gradient that flows back through it is multiplied by `factor`.

    A negative factor in front of a domain classifier makes features that fool it (Ganin & Lempitsky 2015).
    """
    return _ScaleGradient.apply(x, factor)


class _Exp(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result = x.exp()
        ctx.save_for_backward(result)  # (eˣ)' = eˣ: the output is enough, the input may be freed
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return grad * result


def exp(x: Tensor) -> Tensor:
    """eˣ, element by element, which keeps its output for the backward pass."""
    return _Exp.apply(x)
