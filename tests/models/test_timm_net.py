"""Tests timm nets: arguments from the data, checkpoints that need no pretrained weights, and an error without timm."""

import sys

import pytest
import timm
import torch

from lit_engine.checkpoints.io import read
from lit_project.models.timm_net import TimmNet
from lit_project.tasks.classification import ImageClassifier

NET = "--model.net=TimmNet --model.net.model_name=test_resnet --model.net.pretrained=true"


def test_matches_timm_for_the_channels_and_classes_of_the_data(monkeypatch):
    torch.manual_seed(0)
    net = TimmNet("test_resnet", (1, 8, 8), 5, options={"drop_rate": 0.5}).eval()
    torch.manual_seed(0)
    same = timm.create_model("test_resnet", in_chans=1, num_classes=5, drop_rate=0.5).eval()
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(net(images), same(images))
    assert dict(net.head.named_parameters()).keys() == {"weight", "bias"}
    for name in ("test_vit", "test_efficientnet", "test_convnext", "test_byobnet"):
        torch.manual_seed(0)
        net = TimmNet(name, (3, 160, 160), 5).eval()
        torch.manual_seed(0)
        same = timm.create_model(name, num_classes=5).eval()
        images = torch.rand(2, 3, 160, 160)
        assert torch.equal(net(images), same(images)), name
        assert net.head.out_features == 5
    assert TimmNet("test_vit", (2, 48, 32), 3)(torch.rand(4, 2, 48, 32)).shape == (4, 3)  # fixed image size
    two_heads = TimmNet("volo_d1_224", (3, 64, 64), 5, options={"img_size": 64})
    assert two_heads.eval()(torch.rand(2, 3, 64, 64)).shape == (2, 5)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="pip install timm"):
        TimmNet("resnet10t", (3, 32, 32), 10)


def test_resuming_and_later_commands_do_not_load_pretrained_weights(lit, monkeypatch):
    asked, made = [], timm.create_model

    def create(name, pretrained, **given):
        asked.append(pretrained)
        return made(name, **given)

    monkeypatch.setattr(timm, "create_model", create)
    fit = f"fit -c configs/quickstart.yaml {NET} --model.schedulers=null --data.batch_size=419 --test_after_fit=false"
    frozen = "--trainer.callbacks+=Unfreezing --trainer.callbacks.schedule"
    head = lit(f"{fit} --trainer.max_epochs=1 {frozen}", ["{net.backbone: null}"])
    (optimizer,) = read(head.run / "checkpoints" / "last.ckpt")["optimizer_states"]
    assert len(optimizer["state"]) == 2  # weight and bias of the head
    asked.clear()
    whole = lit(f"{fit} --trainer.max_epochs=2 --run_name=whole").run
    half = lit(f"{fit} --trainer.max_epochs=1 --run_name=half").run
    assert asked == [True, True]
    for command in ("fit --trainer.max_epochs=2", "test", "predict", "export --format=safetensors"):
        assert lit(f"{command} --run {half}").status == 0, command
    first, second = (read(run / "checkpoints" / "last.ckpt")["state_dict"] for run in (whole, half))
    assert all(torch.equal(weights, second[name]) for name, weights in first.items())
    task = ImageClassifier.load_from_checkpoint(half / "checkpoints" / "last.ckpt")
    assert isinstance(task.net, TimmNet)
    assert asked[2:] == [False] * 5
