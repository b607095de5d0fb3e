"""Tests torchvision nets as backbones: input, head, and weights from different sources."""

import pytest
import torch
from torchvision import models

from lit_project.models.pretrained import TorchvisionNet

COLOUR, GREY = (3, 32, 32), (1, 32, 32)


def test_missing_or_damaged_weights_are_reported_with_their_path(imagenet_weights, tmp_path):
    file = tmp_path / "torch/hub/checkpoints/resnet18-f37072fd.pth"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=f"{file} is damaged: delete it"):
        TorchvisionNet(COLOUR, 7, weights="DEFAULT")
    file.unlink()
    with pytest.raises(ValueError, match=f"{file} does not exist: download it from https"):
        TorchvisionNet(COLOUR, 7, weights="DEFAULT")


@pytest.mark.parametrize(("architecture", "channels"), [("mobilenet_v3_small", 4), ("swin_t", 1)])
def test_architecture_selects_the_backbone(architecture, channels):
    net = TorchvisionNet((channels, 64, 64), 5, architecture=architecture).eval()
    assert net(torch.rand(2, channels, 64, 64)).shape == (2, 5)


def test_small_images_are_not_downsampled_in_the_stem():
    small = TorchvisionNet((1, 28, 28), 10, small_images=True)
    plain = TorchvisionNet((1, 28, 28), 10)
    shapes = []
    for net in (small, plain):
        net.backbone.layer4.register_forward_hook(lambda _m, _i, out: shapes.append(tuple(out.shape[2:])))
        net.eval()(torch.rand(2, 1, 28, 28))
    assert shapes == [(4, 4), (1, 1)]
    with pytest.raises(ValueError, match="need a residual network, not mobilenet_v2"):
        TorchvisionNet(GREY, 10, architecture="mobilenet_v2", small_images=True)


def test_head_has_a_bias_only_if_the_original_head_has_one():
    assert TorchvisionNet(COLOUR, 4).head[1].bias is not None
    assert TorchvisionNet((3, 224, 224), 4, architecture="maxvit_t").head[1].bias is None


def save(state, path):
    torch.save(state, path)
    return str(path)


def test_loads_weights_from_a_file(tmp_path):
    one = TorchvisionNet(GREY, 4)
    file = save(one.state_dict(), tmp_path / "own.pt")
    other = TorchvisionNet(GREY, 4, weights=file)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    theirs = save(models.resnet18().state_dict(), tmp_path / "theirs.pth")  # torchvision's names, colour input
    grey = TorchvisionNet(GREY, 4, weights=theirs)
    assert "loaded: 120" in grey.pretrained


def test_prefixes_map_weights_with_different_names(tmp_path):
    net = models.resnet18()
    state = {f"encoder.{name}": value for name, value in net.state_dict().items() if not name.startswith("fc.")}
    file = save(state, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="do not match resnet18"):
        TorchvisionNet(COLOUR, 4, weights=file)
    loaded = TorchvisionNet(COLOUR, 4, weights=file, prefixes={"encoder.": "backbone."})
    assert torch.equal(loaded.backbone.conv1.weight, net.conv1.weight)


def test_weights_from_a_different_architecture_load_only_if_not_strict(tmp_path):
    file = save(models.resnet34().state_dict(), tmp_path / "a.pt")
    with pytest.raises(ValueError, match="do not match resnet18") as caught:
        TorchvisionNet(COLOUR, 4, weights=file)
    assert "unexpected: " in str(caught.value)
    assert "\n" not in str(caught.value)  # the command line only shows the first line
    partly = TorchvisionNet(COLOUR, 4, weights=file, strict=False)
    for kind in ("loaded: ", "unexpected: ", "of a different shape: "):
        assert kind in partly.pretrained
    file = save(models.mobilenet_v2().state_dict(), tmp_path / "b.pt")
    with pytest.raises(ValueError, match="no weight"):
        TorchvisionNet(COLOUR, 4, weights=file, strict=False)


def test_files_without_weights_are_rejected(tmp_path):
    torch.save([1, 2, 3], tmp_path / "list.pt")
    (tmp_path / "text.pt").write_bytes(b"not weights")
    for name in ("list.pt", "text.pt", "missing.pt"):
        with pytest.raises(ValueError, match=f"cannot read weights from .*{name}"):
            TorchvisionNet(COLOUR, 4, weights=str(tmp_path / name))
