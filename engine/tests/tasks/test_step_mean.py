"""An optimizer step uses the mean over all its samples, however they are split."""

from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional as F

from helpers import NAMES, SaveAt, classifier, floats
from toy.data import Images
from toy.tasks import ImageClassifier

SIZE = 29  # training images
MEAN, STD = torch.tensor(0.4).double(), torch.tensor(0.3).double()  # float32 values, as in the task


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4)).double()


class Doubles(Images):
    """Images as float64, so that rounding errors are negligible."""

    def on_after_batch_transfer(self, batch, dataloader_idx):
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        return batch._replace(images=batch.images.double())


def trained(trainer, batch_size=None, epochs=3, options=None, global_batch_size=None, **kwargs):
    task = classifier(net(), lr=0.5, **(options or {})).double()
    data = Doubles(batch_size=batch_size, global_batch_size=global_batch_size, seed=1)
    trainer(max_epochs=epochs, **kwargs).fit(task, datamodule=data)
    return task.net.state_dict()


def difference(one, other):
    return max((one[name] - other[name]).abs().max().item() for name in one)


CLIPPED = {"gradient_clip_val": 0.05}
BY_VALUE = {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}


def windows(data, epoch, sizes):
    """Return the epoch's batches, concatenated in windows of the given sizes."""
    data.setup("fit")
    loader = data.loader("train")
    loader.sampler.set_epoch(epoch)
    batches = [floats(data, "train")[0][b.indices].double() for b in loader], [b.targets for b in loader]
    found, start = [], 0
    for size in sizes:
        found.append(tuple(torch.cat(part[start : start + size]) for part in batches))
        start += size
    return found


def by_hand(steps, clip=lambda parameters: None):
    """Train in plain PyTorch with one batch per step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for images, targets in steps:
        optimizer.zero_grad()
        F.cross_entropy(model((images - MEAN) / STD), targets).backward()
        clip(model.parameters())
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize(("options", "clip"), [
    ({}, lambda parameters: None),
    (CLIPPED, partial(nn.utils.clip_grad_norm_, max_norm=0.05)),
    (BY_VALUE, partial(nn.utils.clip_grad_value_, clip_value=0.01)),
])  # fmt: skip
def test_accumulation_windows_of_unequal_length_match_plain_pytorch(trainer, options, clip):
    data = Doubles(batch_size=8, seed=1)
    steps = [window for epoch in range(3) for window in windows(data, epoch, [3, 1])]
    assert difference(trained(trainer, 8, accumulate_grad_batches=3, **options), by_hand(steps, clip)) < 1e-13


class Ignores(ImageClassifier):
    """Ignores the images of one class, as segmentation does with unlabelled pixels."""

    ignored, number = 0, int

    def training_step(self, batch, batch_idx):
        kept = batch.targets != self.ignored
        losses = F.cross_entropy(self(batch.images), batch.targets, reduction="none")
        return self.step((losses * kept).sum() / kept.sum().clamp(min=1), self.number(kept.sum()))


@pytest.mark.parametrize("number", [int, torch.Tensor.clone])
@pytest.mark.parametrize("ignored", range(4))
def test_micro_batches_without_counted_samples_have_zero_weight(trainer, ignored, number):
    """Each micro-batch is a single image, and even the first one may be ignored."""
    task = Ignores(net(), partial(torch.optim.SGD, lr=0.5), NAMES, [0.4], [0.3]).double()
    task.ignored, task.number = ignored, number
    trainer(max_epochs=1, accumulate_grad_batches=100).fit(task, datamodule=Doubles(batch_size=1, seed=1))
    ((images, targets),) = windows(Doubles(batch_size=SIZE, seed=1), 0, [1])
    kept = targets != ignored
    assert difference(task.net.state_dict(), by_hand([(images[kept], targets[kept])])) < 1e-13


class Penalized(ImageClassifier):
    """Adds a penalty to the loss."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.net[1].weight.square().mean()


def test_added_losses_have_the_weight_of_their_micro_batch(trainer):
    states = []
    for size, accumulate in ((SIZE, 1), (8, 4)):
        task = Penalized(net(), partial(torch.optim.SGD, lr=0.5), NAMES, [0.4], [0.3]).double()
        runner = trainer(max_epochs=1, accumulate_grad_batches=accumulate)
        runner.fit(task, datamodule=Doubles(batch_size=size, seed=1))
        states.append(task.net.state_dict())
    assert difference(*states) < 1e-13


class ByLayer(ImageClassifier):
    """Steps each layer's optimizer at the end of the epoch, and then the first one again with a different loss."""

    def __init__(self, *args):
        super().__init__(*args)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(layer.parameters(), lr=0.5) for layer in (self.net[1], self.net[3])]

    def training_step(self, batch, batch_idx):
        self.manual_backward(super().training_step(batch, batch_idx))
        if self.trainer.is_last_batch:
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
            self.manual_backward(self.net[1].weight.square().mean())
            self.optimizers()[0].step()


def test_several_optimizers_share_the_mean_of_their_loss(trainer):
    """The epoch is one step, with one batch or four micro-batches."""
    states = []
    for size in (SIZE, 8):
        task = ByLayer(net(), None, NAMES, [0.4], [0.3]).double()
        trainer(max_epochs=1).fit(task, datamodule=Doubles(batch_size=size, seed=1))
        states.append(task.net.state_dict())
    assert difference(*states) < 1e-13


def test_accumulation_that_changes_between_epochs_matches_plain_pytorch(trainer):
    data = Doubles(batch_size=8, seed=1)
    sizes = [[1, 1, 1, 1], [3, 1], [4]]
    steps = [window for epoch, parts in enumerate(sizes) for window in windows(data, epoch, parts)]
    schedule = GradientAccumulationScheduler({0: 1, 1: 3, 2: 4})
    assert difference(trained(trainer, 8, callbacks=[schedule]), by_hand(steps)) < 1e-13


@pytest.mark.parametrize("accumulate", [2, 4, 12])
def test_a_global_batch_is_one_step_in_any_number_of_micro_batches(trainer, accumulate):
    """This includes the last step of an epoch, with 5 images for 12 micro-batches."""
    whole = trained(trainer, 12)
    assert difference(trained(trainer, global_batch_size=12), whole) == 0
    parts = trained(trainer, global_batch_size=12, accumulate_grad_batches=accumulate)
    assert difference(whole, parts) < 1e-13


@pytest.mark.parametrize(("sizes", "big", "steps"), [
    ({"batch_size": 8}, SIZE, 2),  # processes have 15 and 14 samples, in windows of two micro-batches of unequal sizes
    ({"global_batch_size": 28}, 28, 4),  # the last step of an epoch has one image for four micro-batches
])  # fmt: skip
def test_two_processes_match_one_process(trainer, tmp_path, sizes, big, steps):
    whole = trained(trainer, big, epochs=2)
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    save = SaveAt(steps, tmp_path / "two.ckpt")
    trained(trainer, **sizes, epochs=2, devices=2, strategy=strategy, accumulate_grad_batches=2, callbacks=[save])
    checkpoint = torch.load(tmp_path / "two.ckpt", weights_only=True)
    state = checkpoint["state_dict"]
    two = {name.removeprefix("net."): value for name, value in state.items() if name.startswith("net.")}
    assert difference(whole, two) < 1e-9
    assert checkpoint["running"]["count"].sum() == SIZE


def test_lbfgs_matches_plain_pytorch(trainer):
    """LBFGS computes the loss several times per step, each with its own gradient. Only the first loss is logged."""
    lbfgs = partial(torch.optim.LBFGS, lr=0.5, max_iter=4)
    task, runner = classifier(net(), optimizer=lbfgs).double(), trainer(max_epochs=3)
    data = Doubles(batch_size=SIZE, seed=1)
    runner.fit(task, datamodule=data)
    model = net()
    optimizer = lbfgs(model.parameters())
    for epoch in range(3):
        ((images, targets),) = windows(data, epoch, [1])

        def closure(images=images, targets=targets):
            optimizer.zero_grad()
            loss = F.cross_entropy(model((images - MEAN) / STD), targets)
            loss.backward()
            return loss

        first = optimizer.step(closure)
    assert difference(task.net.state_dict(), model.state_dict()) == 0
    assert runner.callback_metrics["train/samples"] == SIZE
    assert runner.callback_metrics["train/loss"] == pytest.approx(first.item())
    with pytest.raises(ValueError, match="use one process, and set accumulate_grad_batches to 1"):
        trained(trainer, SIZE // 2, options={"optimizer": lbfgs}, accumulate_grad_batches=2)


class Sharpness(torch.optim.SGD):
    """A small version of SAM (Foret et al. 2021), which computes the loss twice per step."""

    @torch.no_grad()
    def step(self, closure):
        loss = closure()
        weights = self.param_groups[0]["params"]
        moves = [0.1 * weight.grad for weight in weights]
        torch._foreach_add_(weights, moves)
        closure()
        torch._foreach_sub_(weights, moves)
        super().step()
        return loss


def test_an_optimizer_may_compute_the_loss_twice(trainer):
    task, runner = classifier(net(), optimizer=partial(Sharpness, lr=0.5)).double(), trainer(max_epochs=1)
    data = Doubles(batch_size=8, seed=1)
    runner.fit(task, datamodule=data)
    model = net()
    optimizer = Sharpness(model.parameters(), lr=0.5)
    for images, targets in windows(data, 0, [1] * 4):

        @torch.enable_grad()
        def closure(images=images, targets=targets):
            optimizer.zero_grad()
            loss = F.cross_entropy(model((images - MEAN) / STD), targets)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert difference(task.net.state_dict(), model.state_dict()) == 0
    assert runner.callback_metrics["train/samples"] == SIZE
