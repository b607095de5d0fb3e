"""Unfreezing by epoch: frozen parts get no gradients, optimizer state or statistics updates. Runs can be resumed."""

import json
import signal
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy
from small_images import Images
from torch import nn

from helpers import TINY, SaveAt
from killing import at_call
from lit_engine.callbacks.freezing import Unfreezing
from lit_engine.checkpoints.io import read
from lit_engine.errors import UserError
from lit_engine.training.parameter_groups import Group, ParameterGroups
from toy.tasks import ImageClassifier

SCHEDULE = {"net.body": 2, "net.body.top": 1}
FIT = f"fit -c configs/quickstart.yaml {TINY} --test_after_fit=false"
LAYER = "net.layers.1"


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x):
        return self.top(self.low(x))


def task(optimizer=partial(torch.optim.AdamW, lr=0.01), norm=True):  # noqa: B008
    torch.manual_seed(0)
    net = nn.Sequential()
    net.body, net.head = Body(), nn.Linear(8, 3)
    if not norm:
        net.body.low[2], net.body.top[1], net.body.top[3] = nn.Identity(), nn.Identity(), nn.Identity()
    groups = ParameterGroups([Group("head", ["net.head"]), Group("body", ["net.body"], lr_factor=0.1)])
    return ImageClassifier(net, optimizer, ["a", "b", "c"], [0.4], [0.3], parameter_groups=groups)


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


class Watch(Callback):
    """Records after each epoch which values changed, and which parameters have gradients or optimizer state."""

    def __init__(self):
        self.moved, self.gradients, self.kept, self.groups = [], [], [], []

    def on_train_epoch_start(self, trainer, module):
        self.before = snapshot(module)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.names = {name for name, parameter in module.named_parameters() if parameter.grad is not None}

    def on_train_epoch_end(self, trainer, module):
        after = module.state_dict()
        self.moved.append({name for name in after if not torch.equal(after[name], self.before[name])})
        self.gradients.append(self.names)
        optimizer = trainer.optimizers[0]
        self.kept.append({name for name, parameter in module.named_parameters() if parameter in optimizer.state})
        self.groups.append([len(group["params"]) for group in optimizer.param_groups])


def callbacks(schedule):
    """Return options for a run with Unfreezing."""
    unfreezing = {"class_path": "Unfreezing", "init_args": {"schedule": schedule}}
    return ["--trainer.callbacks", json.dumps([{"class_path": "Checkpoint"}, unfreezing])]


def inside(names, *paths):
    return {name for name in names if name.startswith(tuple(path + "." for path in paths))}


def test_parts_have_no_gradients_or_optimizer_state_until_their_first_epoch(trainer):
    module, watch = task(), Watch()
    fit = trainer(max_epochs=3, callbacks=[Unfreezing(SCHEDULE), watch], val_check_interval=2)
    fit.fit(module, datamodule=Images())
    everything = set(module.state_dict())  # including running means, variances and counts
    assert watch.moved == [
        inside(everything, "net.head"),
        inside(everything, "net.head", "net.body.top"),
        inside(everything, "net"),
    ]
    parameters = {name for name, _ in module.named_parameters()}
    expected = [inside(parameters, "net.head"), inside(parameters, "net.head", "net.body.top"), parameters]
    assert watch.gradients == expected
    assert watch.kept == expected


def test_resuming_within_a_stage_gives_the_same_final_weights(trainer, tmp_path):
    whole, resumed = task(), task()
    step = 7  # within the second epoch
    file = tmp_path / "saved.ckpt"
    make = partial(trainer, max_epochs=3)
    make(callbacks=[Unfreezing(SCHEDULE), SaveAt(step, file)]).fit(whole, datamodule=Images())
    make(callbacks=[Unfreezing(SCHEDULE)]).fit(resumed, datamodule=Images(), ckpt_path=file, weights_only=True)
    one, other = snapshot(whole), snapshot(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("before", "now", "trains"), [
    ({LAYER: 1}, {LAYER: 0}, True), ({LAYER: 0}, {LAYER: 1}, False), ({LAYER: 1}, {}, True),
])  # fmt: skip
def test_a_changed_schedule_also_applies_to_the_rest_of_the_epoch(lit, monkeypatch, before, now, trains):
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 5, signal.SIGTERM)
        run = lit(f"{FIT} --epochs 2", callbacks(before)).run
    weights = [read(run / "checkpoints" / "last.ckpt")["state_dict"]["net.layers.1.weight"]]
    at_call(monkeypatch, ImageClassifier, "training_step", 3, signal.SIGTERM)
    lit(f"fit {run}", callbacks(now))
    weights.append(read(run / "checkpoints" / "last.ckpt")["state_dict"]["net.layers.1.weight"])
    assert torch.equal(*weights) != trains


def test_permanently_frozen_layers_can_only_change_in_a_fork(lit):
    fit = f"{FIT} --model.net.norm=batch --model.optimizer.fused=false --model.schedulers=null --epochs"
    run = lit(f"{fit} 1", callbacks({LAYER: None, "net.layers.2": None})).run
    other = callbacks({"net.layers.2": None, "net.layers.4": None})  # trains the same number of parameters
    resumed = lit(f"fit {run} --epochs 2", other)
    assert resumed.status == 2
    assert "the saved optimizer trains different parameters" in resumed.err
    forked = lit(f"fit --fork {run} --epochs 2 --name other", other)
    assert forked.status == 0, forked.err
    assert "its state is not restored" in forked.err
    whole = lit(f"fit --fork {run} --epochs 2 --name whole", callbacks({})).run
    one, other = (read(path / "checkpoints" / "last.ckpt")["state_dict"] for path in (run, whole))
    assert [name for name in one if name.startswith("net.") and torch.equal(one[name], other[name])] == []


def test_feature_extraction_excludes_the_backbone_from_training(trainer):
    module, watch = task(), Watch()
    trainer(max_epochs=2, callbacks=[Unfreezing({"net.body": None}), watch]).fit(module, datamodule=Images())
    assert watch.moved == [{"net.head.weight", "net.head.bias"}] * 2
    assert watch.groups == [[2]] * 2


class Late(BoringModel):
    """Module that creates two layers with the same weight in `setup`."""

    def setup(self, stage):
        self.layer = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))
        self.layer[1].weight = self.layer[0].weight


@pytest.mark.parametrize(("frozen", "other"), [(0, 1), (1, 0)])
def test_freezes_a_tied_weight_of_layers_created_in_setup(trainer, frozen, other):
    module, watch = Late(), Watch()
    schedule = {f"layer.{frozen}": 1, f"layer.{other}": 0}
    callbacks = [Unfreezing(schedule), watch]
    trainer(max_epochs=2, limit_train_batches=1, limit_val_batches=0, callbacks=callbacks).fit(module)
    assert watch.moved == [{f"layer.{other}.bias"}, set(module.state_dict())]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"net.bodi": 1}, r"no module 'net.bodi'; did you mean net.body\?"),
        ({"net.body": 3}, r"net.body would start to train in epoch 3, but the run ends after 3 epochs \(0 to 2\)"),
        ({"net.body": -1}, "the epoch of net.body must be at least 0"),
        ({"net": 1}, "nothing is left to train in epoch 0"),
    ],
    ids=["unknown module", "after the run", "negative epoch", "nothing to train"],
)
def test_rejects_invalid_schedules(trainer, schedule, message):
    with pytest.raises(UserError, match=message):
        trainer(max_epochs=3, callbacks=[Unfreezing(schedule)]).fit(task(), datamodule=Images())


def test_two_processes_match_one_process(trainer, tmp_path):
    """DistributedDataParallel must also average the gradients of parameters that were frozen when it was created."""
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    one = task(sgd, norm=False)
    schedule = {"net.body": 2, "net.body.top": 1}
    trainer(max_epochs=3, callbacks=[Unfreezing(schedule)]).fit(one, datamodule=Images(batch_size=32))
    two = task(sgd, norm=False)
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    save = SaveAt(3, tmp_path / "two.ckpt")
    fit = trainer(max_epochs=3, devices=2, strategy=strategy, callbacks=[Unfreezing(schedule), save])
    fit.fit(two, datamodule=Images(batch_size=16))
    state = torch.load(tmp_path / "two.ckpt", weights_only=True)["state_dict"]
    for name, value in one.state_dict().items():
        assert torch.allclose(state[name], value, atol=1e-6), name
