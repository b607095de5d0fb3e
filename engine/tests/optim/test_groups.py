"""Each trainable parameter is in exactly one group, with the requested rate and weight decay."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from lit_engine.errors import UserError
from lit_engine.training.parameter_groups import Group, ParameterGroups, layers
from lit_engine.training.schedules import build_optimizer


def net():
    body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 3))
    return nn.ModuleDict({"body": body, "head": nn.Linear(2, 3)})


def tied():
    module = nn.ModuleDict({"embedding": nn.Embedding(3, 2), "output": nn.Linear(2, 3)})
    module["output"].weight = module["embedding"].weight
    return module


def optimizer(module, groups):
    sgd = partial(torch.optim.SGD, lr=0.1, weight_decay=0.01)
    return build_optimizer(sgd, groups(module))


def names(module, group):
    return {name for name, parameter in module.named_parameters() if any(parameter is p for p in group["params"])}


def everything_once(module, optim):
    found = [id(parameter) for group in optim.param_groups for parameter in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(parameter) for parameter in module.parameters() if parameter.requires_grad}


def test_groups_by_module_path_have_their_own_rate_and_options():
    module = net()
    optim = optimizer(module, ParameterGroups([Group("head", ["head"], lr_factor=10, options={"weight_decay": 0.5})]))
    everything_once(module, optim)
    base, head = optim.param_groups
    assert (base["name"], base["lr"], base["weight_decay"]) == ("base", 0.1, 0.01)
    assert (head["name"], head["lr"], head["weight_decay"]) == ("head", 1.0, 0.5)
    assert names(module, head) == {"head.weight", "head.bias"}


def test_a_tied_parameter_can_be_matched_by_each_of_its_names():
    module = tied()
    optim = optimizer(module, ParameterGroups([Group("tied", ["output.weight"], lr_factor=10)]))
    everything_once(module, optim)
    assert [names(module, group) for group in optim.param_groups] == [{"output.bias"}, {"embedding.weight"}]


def test_norms_and_biases_can_be_excluded_from_weight_decay():
    module = net()
    optim = optimizer(module, ParameterGroups(decay_norms_and_biases=False))
    everything_once(module, optim)
    decayed = {name for group in optim.param_groups if group["weight_decay"] for name in names(module, group)}
    assert decayed == {"body.0.weight", "body.2.weight", "head.weight"}
    before = {name: value.clone() for name, value in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    nn.init.constant_(module["head"].bias, 1.0)
    optim.step()  # only weight decay changes values
    assert torch.allclose(module["head"].weight, before["head.weight"] * (1 - 0.1 * 0.01))
    assert torch.equal(module["head"].bias, torch.ones(3))


def test_layer_decay_matches_its_definition():
    """Each layer with a matrix halves the rate of the layers before it. A norm belongs to the preceding layer."""
    module = net()
    optim = optimizer(module, ParameterGroups(layer_decay=0.5))
    everything_once(module, optim)
    rates = {group["name"]: group["lr"] for group in optim.param_groups}
    assert rates == pytest.approx({"body.0": 0.025, "body.1": 0.025, "body.2": 0.05, "head": 0.1})


def test_layers_of_a_transformers_encoder_are_its_embeddings_and_blocks():
    backbone, encoder = nn.Module(), nn.Module()
    encoder.layer = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    backbone.embeddings, backbone.encoder = nn.Embedding(3, 2), encoder
    found = layers(nn.ModuleDict({"backbone": backbone}))
    assert found == ["backbone.embeddings", "backbone.encoder.layer.0", "backbone.encoder.layer.1"]


def test_layers_of_a_stage_are_its_blocks():
    """In timm, the `downsample` of a stage has the same learning rate as the first block."""
    stages = nn.Sequential(nn.Module(), nn.Module())
    for stage in stages:
        stage.downsample = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 2)) if stage is stages[1] else nn.Identity()
        stage.blocks = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module = nn.ModuleDict({"stem": nn.Linear(2, 2), "stages": stages, "head": nn.Linear(2, 2)})
    optim = optimizer(module, ParameterGroups(layer_decay=0.5))
    everything_once(module, optim)
    rates = {group["name"]: group["lr"] / 0.1 for group in optim.param_groups}
    names = ["stem", "stages.0.blocks.0", "stages.0.blocks.1", "stages.1.blocks.0", "stages.1.blocks.1", "head"]
    expected = {name: 0.5**k for k, name in enumerate(reversed(names))}
    assert rates == pytest.approx({**expected, "stages.1.downsample": expected["stages.1.blocks.0"]})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParameterGroups(layer_decay=0.5)(nn.ModuleDict({"only": nn.Linear(2, 2)})), "only one layer, only"),
        (lambda: ParameterGroups([Group("a", ["tail"])])(net()), "'tail' of group a matches no parameter"),
        (
            lambda: ParameterGroups([Group("a", ["head"]), Group("b", ["*.bias"])])(net()),
            "head.bias is matched by a and by b",
        ),
        (
            lambda: ParameterGroups([Group("a", ["embedding"]), Group("b", ["output"])])(tied()),
            "embedding.weight = output.weight is matched by a and by b",
        ),
        (lambda: ParameterGroups([Group("a", ["head"])], layer_decay=0.5), "set either groups or a layer_decay"),
        (lambda: ParameterGroups([Group("a", ["head"]), Group("a", ["body"])]), "names must be unique"),
    ],
    ids=["one layer", "no match", "overlap", "tied weights", "groups and layer_decay", "duplicate names"],
)
def test_rejects_invalid_groups(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_rejects_an_optimizer_without_a_learning_rate():
    with pytest.raises(UserError, match="SGD needs a learning rate: set lr"):
        build_optimizer(lambda weights: torch.optim.SGD([{"params": weights, "lr": None}]), net().parameters())


def test_rejects_an_option_unknown_to_the_optimizer():
    groups = ParameterGroups([Group("head", ["head"], options={"weigth_decay": 0.5})])(net())
    with pytest.raises(UserError, match=r"SGD has no option 'weigth_decay'; did you mean weight_decay\?"):
        build_optimizer(partial(torch.optim.SGD, lr=0.1), groups)


@pytest.mark.parametrize("group", [
    Group("head", ["head"], lr_factor=-1.0),
    Group("head", ["head"], lr_factor=math.inf),
    Group("head", ["head"], options={"weight_decay": math.nan}),
])  # fmt: skip
def test_rejects_negative_or_non_finite_rates_and_weight_decay(group):
    with pytest.raises(UserError, match=r"(lr_factor|weight_decay) must be at least 0 and finite, got (-1.0|inf|nan)"):
        optimizer(net(), ParameterGroups([group]))
