"""Autograd functions of our own: a forward and a derivative that autograd would not find by itself.

How to write one is in the three of them: constants that are no tensors (`scale_gradient`), what is kept for the
backward pass (`exp`), and derivatives that are only computed where someone asks for them (`linear`). Their tests
compare each with finite differences (`torch.autograd.gradcheck`).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function


class _ScaleGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # no tensor: kept on the context, and its own derivative is None
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.factor, None


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """`x` itself, of any shape; the gradient that flows back through it is multiplied by `factor`.

    Negative factors reverse it: Ganin & Lempitsky 2015, "Unsupervised domain adaptation by backpropagation", eq. 10.
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


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        result = x @ weight.T
        return result if bias is None else result + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad  # of a frozen weight nothing is computed
        flat = grad.flatten(0, -2)
        return (
            grad @ weight if needs_x else None,
            flat.T @ x.flatten(0, -2) if needs_weight else None,
            flat.sum(0) if needs_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x Wᵀ + b` with hand-written derivatives.

    Args:
        x: `(…, I)`, at least two axes.
        weight: `(O, I)`.
        bias: `(O,)` or None.

    Returns:
        `(…, O)`; under autocast in its precision, as torch's own.
    """
    kind = x.device.type
    if torch.is_autocast_enabled(kind) and x.dtype != torch.double:
        # outside of the function, so that all that its two passes see is of one precision
        dtype = torch.get_autocast_dtype(kind)
        x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    return _Linear.apply(x, weight, bias)


class GradientReversal(nn.Module):
    """The identity whose gradient is reversed: in front of a domain classifier it makes features that fool it.

    Args:
        strength: factor λ of the reversed gradient; it may be changed while training.
    """

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, x: Tensor) -> Tensor:
        """`x`, of any shape."""
        return scale_gradient(x, -self.strength)


class DomainAdversarialHead(nn.Module):
    """Classifies which domain features come from, and drives the net before it to features that do not tell.

    Ganin & Lempitsky 2015. Its cross-entropy is added to the task's loss: the head learns to tell the domains apart,
    while what comes before it learns the opposite.

    Args:
        in_features: size of the features, D.
        num_domains: number of domains.
        hidden_size: of the layer in between.
        strength: of the reversed gradient.

    Shapes:
        `(B, D)` → logits `(B, num_domains)`.
    """

    def __init__(self, in_features: int, num_domains: int = 2, hidden_size: int = 64, strength: float = 1.0) -> None:
        super().__init__()
        self.reversal = GradientReversal(strength)
        self.layers = nn.Sequential(Linear(in_features, hidden_size), nn.ReLU(), Linear(hidden_size, num_domains))

    def forward(self, features: Tensor) -> Tensor:
        """`(B, D)` → `(B, num_domains)`."""
        return self.layers(self.reversal(features))


class Linear(nn.Linear):
    """`nn.Linear` by the function `linear` of this file: same parameters, same results."""

    def forward(self, x: Tensor) -> Tensor:
        """`(…, I)` → `(…, O)`."""
        return linear(x, self.weight, self.bias)


class LogLinear(nn.Module):
    """A positive output as `exp` of a linear map: rates, counts, scales.

    Args:
        in_features: I.
        out_features: O.
    """

    def __init__(self, in_features: int, out_features: int = 1) -> None:
        super().__init__()
        self.linear = Linear(in_features, out_features)
        nn.init.zeros_(self.linear.weight)  # begins with 1 everywhere: eˣ of random logits explodes

    def forward(self, x: Tensor) -> Tensor:
        """`(…, I)` → `(…, O)`, all positive."""
        return exp(self.linear(x))
