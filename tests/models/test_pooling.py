"""Tests bilinear pooling against its definition."""

import torch

from lit_project.models.resnet import BilinearPool


def test_bilinear_pooling_matches_its_definition():
    torch.manual_seed(0)
    features = torch.randn(2, 3, 4, 5, dtype=torch.double)
    pooled = BilinearPool(3)(features)
    for image, got in zip(features, pooled, strict=True):
        products = torch.zeros(3, 3, dtype=torch.double)
        for row in range(4):
            for column in range(5):
                x = image[:, row, column]
                products += torch.outer(x, x) / 20
        root = products.sign() * products.abs().sqrt()
        assert torch.allclose(got, (root / root.norm()).flatten(), atol=1e-6)


def test_pooled_vectors_have_unit_norm_and_gradients_are_finite_at_zero():
    pool = BilinearPool(3, channels=2)
    assert pool.size == 4
    assert torch.allclose(pool(torch.randn(6, 3, 2, 2)).norm(dim=1), torch.ones(6))
    dead = torch.zeros(1, 3, 2, 2, requires_grad=True)  # entire channels may be zero after a ReLU
    pool(dead).sum().backward()
    assert dead.grad.isfinite().all()


def test_half_precision_gradients_match_float32_up_to_rounding():
    """One image and one channel of another image are zero."""
    dtype = torch.float16
    torch.manual_seed(0)
    features = torch.randn(3, 4, 2, 2).relu().to(dtype)
    features[0] = 0
    features[1, 2] = 0
    direction = torch.randn(3, 16)
    pooled, gradients = [], []
    for kind in (dtype, torch.float32):
        x = features.detach().to(kind).requires_grad_()
        y = BilinearPool(4)(x)
        assert y.dtype == kind
        (y.float() * direction).sum().backward()
        pooled.append(y.float())
        gradients.append(x.grad.float())
    assert gradients[0].isfinite().all()
    assert torch.allclose(*pooled, atol=0.01)
    assert torch.allclose(*gradients, rtol=0.05, atol=0.05)
