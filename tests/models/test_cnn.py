"""Tests convolutional nets: two classic architectures, options, and images that are too small."""

import pytest
import torch
from torch import nn

from lit_project.models.cnn import CNN

GREY = (1, 28, 28)
KERAS = {"layers": [32, "pool", 64, "pool", 64], "hidden": 64, "padding": 0}
TORCH = {"layers": [32, 64, "pool"], "hidden": 128, "padding": 0, "dropout": 0.25, "head_dropout": 0.5}


def count(net):
    return sum(parameter.numel() for parameter in net.parameters())


def same_weights(net, reference):
    reference.load_state_dict(dict(zip(reference.state_dict(), net.state_dict().values(), strict=True)))
    return reference


def test_matches_the_network_of_the_keras_tutorial():
    """tensorflow.org/tutorials/images/cnn has 122,570 parameters on 32×32×3 and 93,322 on 28×28×1."""
    torch.manual_seed(0)
    net = CNN(GREY, 10, **KERAS)
    assert count(net) == 93_322
    assert count(CNN((3, 32, 32), 10, **KERAS)) == 122_570
    reference = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(576, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    x = torch.rand(4, *GREY)
    assert torch.equal(net(x), same_weights(net, reference)(x))


def test_matches_the_network_of_the_pytorch_mnist_example():
    """github.com/pytorch/examples/blob/main/mnist: 1,199,882 parameters."""
    torch.manual_seed(0)
    net = CNN(GREY, 10, **TORCH)
    assert count(net) == 1_199_882
    reference = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    )  # fmt: skip
    x = torch.rand(4, *GREY)
    same_weights(net, reference)
    assert torch.equal(net.eval()(x), reference.eval()(x))


@pytest.mark.parametrize("place", ["dropout", "head_dropout"])
def test_both_kinds_of_dropout_apply_only_during_training(place):
    net = CNN((1, 8, 8), 3, layers=[4, "pool"], hidden=64, **{place: 0.5})
    x = torch.rand(4, 1, 8, 8)
    assert not torch.equal(net(x), net(x))
    net.eval()
    assert torch.equal(net(x), net(x))


def test_works_with_any_image_size_and_without_hidden_layers():
    assert CNN((3, 33, 20), 7, layers=[4, "pool", 8], hidden=0)(torch.rand(5, 3, 33, 20)).shape == (5, 7)


def test_only_batch_norm_makes_logits_independent_of_the_input_scale():
    torch.manual_seed(0)
    x = torch.rand(16, 1, 8, 8) * 10
    for norm, invariant in (("none", False), ("batch", True)):
        net = CNN((1, 8, 8), 3, layers=[4, "pool", 8], norm=norm)
        assert torch.allclose(net(x), net(7 * x), atol=1e-3) == invariant
    plain, normed = (CNN((1, 8, 8), 3, layers=[4, 8], norm=norm) for norm in ("none", "batch"))
    assert count(normed) == count(plain) + 4 + 8  # scale and shift replace the bias


def test_error_for_too_small_images_suggests_fewer_pool_layers():
    with pytest.raises(ValueError, match=r"layer 4 \(pool\) .* for images of 4.4 pixels: use fewer 'pool' layers"):
        CNN((1, 4, 4), 10, layers=["pool", 8, "pool", 8, "pool"])
