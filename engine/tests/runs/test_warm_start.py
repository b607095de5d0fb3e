"""When loading weights from a different run, matching weights are loaded and others are reported."""

import pytest
import torch
import yaml
from torch import nn

from lit_engine.checkpoints.io import read
from lit_engine.checkpoints.warm_start import check_fits, check_kept, warm_start
from lit_engine.checkpoints.weights import match, rename_prefixes
from lit_engine.errors import CheckpointError, UserError
from toy.models import MLP


def net(hidden=8, classes=3):
    return MLP((4,), classes, hidden_sizes=[hidden])


def save(model, path):
    torch.save({"state_dict": model.state_dict(), "global_step": 1}, path)
    return path


def test_matching_weights_are_loaded_and_others_are_reported_and_unchanged(tmp_path):
    old, new = net(classes=3), net(classes=5)
    before = {name: value.clone() for name, value in new.state_dict().items()}
    head, body = ["layers.3.weight", "layers.3.bias"], ["layers.1.weight", "layers.1.bias"]
    found = warm_start(new, save(old, tmp_path / "a.ckpt"))
    assert found.loaded == body
    assert found.other_shape == ["layers.3.weight (3, 8) instead of (5, 8)", "layers.3.bias (3,) instead of (5,)"]
    assert all(torch.equal(new.state_dict()[name], old.state_dict()[name]) for name in body)
    assert all(torch.equal(new.state_dict()[name], before[name]) for name in head)
    with pytest.raises(CheckpointError, match="do not match the model"):
        warm_start(net(classes=5), tmp_path / "a.ckpt", strict=True)


def test_dropped_weights_may_be_missing_with_strict(tmp_path):
    file = save(net(classes=3), tmp_path / "a.ckpt")
    found = warm_start(net(classes=5), file, {"layers.3.": None}, strict=True)
    assert found.missing == ["layers.3.weight", "layers.3.bias"]
    with pytest.raises(CheckpointError, match=r"missing: 1 \(layers.3.weight\)"):
        warm_start(net(classes=5), file, {"layers.3.weight": "other", "layers.3.bias": None}, strict=True)


def test_dropped_weights_may_be_missing_under_their_new_names(tmp_path):
    old = nn.ModuleDict({"encoder": nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 4)})})
    new = nn.ModuleDict({"net": nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 5)})})
    prefixes = {"encoder.": "net.", "encoder.head.": None}
    found = warm_start(new, save(old, tmp_path / "a.ckpt"), prefixes, strict=True)
    assert found.missing == ["net.head.weight", "net.head.bias"]


def test_missing_and_unexpected_weights_are_listed():
    old = nn.ModuleDict({"body": nn.Linear(2, 3), "old": nn.Linear(3, 1)})
    new = nn.ModuleDict({"body": nn.Linear(2, 3), "new": nn.Linear(3, 1, bias=False)})
    lines = str(match(new, old.state_dict())).splitlines()
    assert lines == ["  loaded: 2", "  missing: 1 (new.weight)", "  unexpected: 2 (old.weight, old.bias)"]


def test_a_longer_prefix_may_cover_every_name_of_a_shorter_one():
    assert rename_prefixes({"net.backbone.weight": 1}, {"net.": "", "net.backbone.": "body."}) == {"body.weight": 1}


def test_missing_batch_counts_of_norm_layers_are_not_reported(tmp_path):
    """Batch norms in old checkpoints have no batch counts."""
    old = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = {name: value for name, value in old.state_dict().items() if "num_batches" not in name}
    state["1.running_mean"] = torch.tensor([1.0, 2.0, 3.0])
    torch.save({"state_dict": state}, tmp_path / "a.ckpt")
    new = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    found = warm_start(new, tmp_path / "a.ckpt", strict=True)
    assert str(found) == "  loaded: 6"
    assert new[1].running_mean.tolist() == [1, 2, 3]
    check_fits(new, read(tmp_path / "a.ckpt"), tmp_path / "a.ckpt", {})
    del state["1.running_var"]
    assert match(new, state).missing == ["1.running_var"]


def test_rejects_checkpoints_whose_classes_have_a_different_order(tmp_path):
    content = {**read(save(net(), tmp_path / "a.ckpt")), "hyper_parameters": {"class_names": ["no", "yes", "maybe"]}}
    for names in (["maybe", "no", "yes"], ["yes", "maybe", "zero"]):
        with pytest.raises(CheckpointError, match=f"with class_names no, yes, maybe, but .* {', '.join(names)}"):
            check_fits(net(), content, tmp_path / "a.ckpt", {"class_names": names})
    (line,) = check_fits(net(), content, tmp_path / "a.ckpt", {"class_names": ["No", "yes", "maybe"]})
    assert line == "class_names[0] was no in training and is No"


def test_rejects_incompatible_checkpoints(tmp_path):
    file = tmp_path / "a.ckpt"
    for content, message in (
        ({"state_dict": nn.Linear(2, 2).state_dict()}, r"no weight of .*a.ckpt fits the model"),
        ({"global_step": 1}, "has no state_dict"),
    ):
        torch.save(content, file)
        with pytest.raises(CheckpointError, match=message):
            warm_start(net(), file)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        warm_start(net(), tmp_path / "missing.ckpt")


def config(options, **more):
    group = {"name": "head", "options": options}
    groups = {"class_path": "torch.nn.Identity", "init_args": {"groups": [group], **more}}
    return {"model": {"class_path": "torch.nn.Module", "init_args": {"parameter_groups": groups}}}


@pytest.mark.parametrize(("before", "now"), [({}, {"weight_decay": 0.5}), ({"weight_decay": 0.5}, {"lr": 1.0})])
def test_resume_detects_added_or_removed_options(tmp_path, before, now):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config(before)))
    with pytest.raises(UserError, match=r"model.parameter_groups.groups\[0\].options.weight_decay was (None|0.5) and"):
        check_kept(tmp_path, config(now))
    check_kept(tmp_path, config(before, argument_of_a_later_version=1))
