"""Two examples of custom autograd functions. The tests compare their gradients with finite differences (`gradcheck`).

`setup_context` stores what `backward` needs. `backward` receives the gradient with respect to the output and returns
the gradient with respect to each argument of `forward`. It returns None for arguments that are not tensors or need no
gradient (see `ctx.needs_input_grad`). The transforms of `torch.func` require a separate `setup_context`.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function


class _ScaleGradient(Function):
    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        _, ctx.factor = inputs  # Only tensors need `save_for_backward`.

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return `x` unchanged, and multiply its gradient by `factor` in the backward pass. `x` may have any shape.

    With a negative factor, features are trained to fool a subsequent domain classifier (Ganin & Lempitsky, 2015).
    """
    return _ScaleGradient.apply(x, factor)


class _Exp(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)  # Since (eˣ)' = eˣ, only the output is needed, and the input can be freed.

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        return grad * result.conj()  # complex numbers need the conjugate; real numbers stay the same


def exp(x: Tensor) -> Tensor:
    """Return eˣ for each element, storing only the output for the backward pass."""
    return _Exp.apply(x)
