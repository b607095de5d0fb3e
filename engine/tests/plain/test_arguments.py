"""Tests plain LightningModules that accept the same arguments, callbacks and schedules as tasks."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lit_engine.checkpoints.io import read
from lit_engine.cli.links import check_links
from lit_engine.errors import UserError
from lit_engine.load import load_model
from lit_engine.run.directory import RunDir

DATA = "--data test_arguments.Clouds --epochs 2"


class Clouds(LightningDataModule):
    """Data with ten batches per epoch."""

    def train_dataloader(self):
        targets = torch.arange(40) % 2
        inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0)) + targets[:, None]
        return DataLoader(TensorDataset(inputs, targets), batch_size=4)

    val_dataloader = test_dataloader = train_dataloader


class Network(nn.Module):
    """A network whose arguments `weights` and `pretrained` do not refer to downloaded weights."""

    def __init__(self, weights: list[float] | None = None, pretrained: bool = False):
        super().__init__()
        self.mix = weights or [1.0, 1.0]
        self.backbone, self.head = nn.Linear(6, 4, bias=False).requires_grad_(False), nn.Linear(4, 2)
        if pretrained:
            nn.init.eye_(self.backbone.weight)

    def forward(self, x):
        return self.mix[0] * self.head(self.backbone(x)) + self.mix[1]


class Plain(LightningModule):
    """Omits the frozen backbone from its checkpoints, and steps its schedule every three batches of an epoch."""

    strict_loading = False

    def __init__(
        self,
        net: nn.Module | None = None,
        lr: float = 0.01,
        optimizer: str = "adam",
        device_of_noise: torch.device = torch.device("cpu"),  # noqa: B008
    ):
        super().__init__()
        self.save_hyperparameters(ignore=["net", "device_of_noise"])
        self.net = net or Network()

    def setup(self, stage):
        """Do nothing. If a module has this method, its weights are loaded in a hook."""

    def forward(self, x):
        return self.net(x)

    def loss(self, batch):
        return F.cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch, batch_idx):
        return self.loss(batch)

    def validation_step(self, batch, batch_idx):
        self.log("val/loss", self.loss(batch))
        self.log("val/epochs", -float(self.current_epoch))
        self.log("val/samples", batch_idx / 4)

    def test_step(self, batch, batch_idx):
        self.log("test/samples", float("nan"))

    def on_save_checkpoint(self, checkpoint):
        names = [name for name in checkpoint["state_dict"] if "backbone" not in name]
        checkpoint["state_dict"] = {name: checkpoint["state_dict"][name] for name in names}

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.net.head.parameters(), lr=self.hparams.lr)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step", "frequency": 3}]


class Shadow(Callback):
    """Copies the weights of the head when `fit` starts."""

    first = None

    def on_fit_start(self, trainer, pl_module):
        Shadow.first = pl_module.net.head.weight.clone()


@dataclass
class Sizes:
    width: int = 4


class Sized(Plain):
    """Module whose argument `net` is not a network."""

    def __init__(self, net: Sizes | list[int] | int | None = None):
        super().__init__()
        self.given = net


def fit(lit, *more):
    done = lit(f"fit --model test_arguments.Plain {DATA}", *more)
    assert done.status == 0, done.err
    return done.run


@pytest.fixture
def run(lit):
    """Return a run whose network has arguments that differ from the defaults."""
    net = "--model.net test_arguments.Network --model.net.weights [0.5,0.2] --model.net.pretrained true"
    return fit(lit, net)


def test_arguments_of_a_network_keep_their_values_in_all_commands(lit, run):
    trained = json.loads((run / "metrics.json").read_text())["fit"]
    assert lit(f"validate {run} --ckpt_path last").status == 0
    validated = json.loads((run / "metrics.json").read_text())["validate"]
    assert validated["val/loss"] == pytest.approx(trained["val/loss"], rel=1e-5)


@pytest.mark.parametrize(("text", "value"), [("[4,2]", [4, 2]), ("{width: 2}", Sizes(2)), ("3", 3)])
def test_an_argument_named_net_may_be_any_value(lit, text, value):
    run = fit(lit, "--model test_arguments.Sized", [f"--model.net={text}"], "--epochs 1")
    assert load_model(RunDir(run)).given == value


class Annotated(Plain):
    """Module with an untyped argument, and arguments that are typed as in lightning-hydra-template."""

    def __init__(
        self,
        sizes=None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    ):
        super().__init__()


FACTORY = "annotate your argument as OptimizerCallable or LRSchedulerCallable"


@pytest.mark.parametrize(("options", "message"), [
    ("--model.sizes.width=4", "model.sizes has no type, so set the whole dict: --model.sizes='{width: 4}'"),
    ("--model.optimizer=torch.optim.Adam", FACTORY),
    ("--model.scheduler=torch.optim.lr_scheduler.StepLR --model.scheduler.step_size=1", FACTORY),
])  # fmt: skip
def test_an_option_that_its_annotation_does_not_allow_is_explained(lit, options, message):
    done = lit(f"fit --model test_arguments.Annotated {options} {DATA}")
    assert done.status == 2
    assert message in done.err


def test_callbacks_see_the_initial_weights_when_the_fit_starts(lit, run):
    fit(lit, f"--init_from {run}/checkpoints/last.ckpt --trainer.callbacks+=test_arguments.Shadow")
    assert torch.equal(Shadow.first, read(run / "checkpoints" / "last.ckpt")["state_dict"]["net.head.weight"])


def test_a_fork_counts_the_frequency_of_a_schedule_within_each_epoch(lit):
    """In an epoch of 10 batches, Lightning steps the schedule after batches 3, 6 and 9."""
    parent = fit(lit)
    forked = lit(f"fit --fork {parent} --model.lr 0.02 --epochs 3")
    (schedule,) = read(forked.run / "checkpoints" / "last.ckpt")["lr_schedulers"]
    assert (schedule["last_epoch"], schedule["_last_lr"]) == (9, [pytest.approx(0.02 * 0.9**9)])


def test_the_first_checkpoint_callback_selects_the_tested_checkpoint(lit):
    kind = "lightning.pytorch.callbacks.ModelCheckpoint"
    callbacks = [
        {"class_path": kind, "init_args": {"monitor": "val/loss", "mode": "min", "filename": "loss-{epoch}"}},
        {"class_path": kind, "init_args": {"monitor": "val/epochs", "mode": "max", "filename": "best-of-{epoch}"}},
    ]
    run = fit(lit, ["--trainer.callbacks", json.dumps(callbacks)])
    best = json.loads((run / "metrics.json").read_text())["fit"]["best_checkpoint"]
    assert best.startswith("loss-epoch=1")
    assert f"checkpoint: {run}/checkpoints/{best}\n" in lit(f"validate {run}").out


def test_a_metric_named_samples_may_have_any_value(lit, run):
    recorded = json.loads((run / "metrics.json").read_text())["fit"]["val/samples"]
    assert recorded % 1 != 0
    assert lit(f"test {run}").status == 0


def test_find_lr_suggests_an_option_that_exists(lit):
    done = lit(f"fit --model test_arguments.Plain {DATA} --find lr")
    assert "suggested: --model.lr=" in done.out


def test_a_printed_config_with_an_object_as_default_can_be_used(lit, capfd):
    with pytest.raises(SystemExit):
        lit(f"fit --model test_arguments.Plain {DATA} --print_config")
    printed = capfd.readouterr().out
    assert "device_of_noise" not in printed
    Path("printed.yaml").write_text(printed)
    assert lit("fit -c printed.yaml --epochs 1").status == 0


class Described(Clouds):
    """Data whose attributes have the same names as arguments of `Linked` and `LinkedNetwork`."""

    num_classes, input_shape = 2, torch.tensor([6, 1])
    mean, std, class_names = torch.tensor([9.0, 9.0]), torch.tensor([9.0, 9.0]), ["no", "yes"]


class LinkedNetwork(Network):
    """A network with a required argument, and an argument with a default value."""

    def __init__(self, num_classes: int, input_shape: list[int] | None = None):
        super().__init__()
        self.num_classes, self.input_shape = num_classes, input_shape


class Linked(Plain):
    """Module whose only required arguments are the network and the class names."""

    def __init__(
        self, net: nn.Module, class_names: list[str], mean: list[float] | None = (0.5,), std: float | None = None
    ):
        super().__init__(net)
        self.class_names, self.mean, self.std = class_names, mean, std


@pytest.mark.parametrize(
    ("options", "names", "mean", "std"),
    [
        ("", ["no", "yes"], [0.5], None),
        ("--model.mean=[0.1] --model.std=2", ["no", "yes"], [0.1], 2.0),
        ("--model.class_names=[a,b] --model.mean=null", ["a", "b"], None, None),
    ],
)
def test_the_data_module_provides_only_required_arguments_that_are_not_set(lit, options, names, mean, std):
    net = "--model test_arguments.Linked --model.net test_arguments.LinkedNetwork"
    run = fit(lit, f"--data test_arguments.Described {net} {options}")
    again = lit(f"validate {run}")
    assert again.status == 0
    assert "warning" not in again.err
    assert lit(f"fit -c {run}/config.yaml --name again --epochs 1").status == 0
    for one in (run, run.with_name("again"), Path("runs/config/again")):
        if one.is_dir():
            model = load_model(RunDir(one))
            assert (model.class_names, model.net.num_classes, model.net.input_shape) == (names, 2, None)
            assert (list(model.mean) if model.mean else None, model.std) == (mean, std)


def test_a_default_that_the_data_module_used_to_replace_is_reported(lit):
    """Earlier versions also replaced default values by attributes of the data module."""
    run = fit(lit, "--data test_arguments.Described --model test_arguments.Linked --model.net test_arguments.Network")
    last = run / "checkpoints" / "last.ckpt"
    torch.save({**(content := read(last)), "hyper_parameters": {**content["hyper_parameters"], "mean": [9.0]}}, last)
    assert "warning: mean[0] was 9.0 in training and is 0.5" in lit(f"test {run} --ckpt_path=last").err


class Shaped(Plain):
    """Module with a required argument whose value is a tensor."""

    def __init__(self, mean: torch.Tensor):
        super().__init__()
        self.mean = mean


def test_a_required_argument_may_be_a_tensor_of_the_data_module(lit):
    run = fit(lit, "--data test_arguments.Described --model test_arguments.Shaped")
    for command in ("validate", "fit --epochs 3 --run"):
        again = lit(f"{command} {run}")
        assert again.status == 0, again.err
    assert load_model(RunDir(run)).mean.tolist() == [9, 9]


def test_a_task_rejects_a_value_that_differs_from_a_tensor_of_the_data_module():
    model, links = {"class_path": "toy.tasks.ImageClassifier", "init_args": {"mean": [9.0, 9.0]}}, {"mean": "mean"}
    check_links(model, Described(), links)
    model["init_args"]["mean"] = [0.1, 0.1]
    with pytest.raises(UserError, match="mean comes from Described"):
        check_links(model, Described(), links)
