"""Checks EMA and SWA against their definitions, in one and two processes and in resumed runs."""

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.strategies import DDPStrategy
from small_images import Images
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from helpers import SaveAt, Versioned
from lit_engine.callbacks.averaging import EMA, SWA
from lit_engine.callbacks.freezing import Unfreezing
from lit_engine.checkpoints.average import average
from lit_engine.checkpoints.callback import Checkpoint
from lit_engine.checkpoints.io import read
from lit_engine.errors import UserError
from lit_engine.training.saver import Saver
from toy.tasks import ImageClassifier

STEPS = 4


def task():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return ImageClassifier(net, partial(torch.optim.SGD, lr=0.5, momentum=0.9), ["a", "b", "c"], [0.4], [0.3])


class Snapshots(Callback):
    """Records the weights at the end of each epoch, before averaging, and the validation losses."""

    def __init__(self):
        self.weights, self.losses = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx == STEPS - 1:
            self.weights.append({name: p.detach().clone() for name, p in module.named_parameters()})

    def on_validation_end(self, trainer, module):
        self.losses.append(trainer.callback_metrics["val/loss"].item())


def mean(snapshots):
    return {name: torch.stack([weights[name] for weights in snapshots]).mean(0) for name in snapshots[0]}


@pytest.mark.parametrize("decay", [0.2, 0.999])
def test_ema_matches_its_definition(trainer, decay):
    """After step n + 1, a ← d a + (1 - d) w with d = min(decay, (1 + n) / (10 + n)). The first step initializes a."""
    module, seen = task(), Ends()
    trainer(max_epochs=2, callbacks=[seen, EMA(decay)]).fit(module, datamodule=Images())
    average = dict(seen.steps[0])
    for n, weights in enumerate(seen.steps[1:], 1):
        d = min(decay, (1 + n) / (10 + n))
        average = {name: d * average[name] + (1 - d) * weights[name] for name in average}
    for name, value in module.named_parameters():
        assert torch.allclose(value, average[name], atol=1e-6)


@pytest.mark.parametrize("average", [EMA(0.9), SWA(0.5)], ids=["EMA", "SWA"])
def test_average_callbacks_can_be_reused_and_affect_tests(trainer, tmp_path, average):
    for _ in range(2):  # the second trainer starts again at step 0
        module, checkpoint = task(), Checkpoint()
        one = trainer(max_epochs=2, callbacks=[average, checkpoint], enable_checkpointing=True)
        one.fit(module, datamodule=Images())
        trained = {name: value.clone() for name, value in module.state_dict().items()}
        assert not torch.equal(trained["net.1.weight"], task().net[1].weight)
        one.save_checkpoint(tmp_path / "last.ckpt")
        one.test(module, datamodule=Images(), ckpt_path=tmp_path / "last.ckpt", verbose=False)
        assert all(torch.equal(value, trained[name]) for name, value in module.state_dict().items())


def test_ema_does_not_average_integer_buffers(trainer):
    module = task()
    module.register_buffer("places", torch.arange(200))
    trainer(max_epochs=6, callbacks=[EMA(0.99)]).fit(module, datamodule=Images())
    assert module.places.tolist() == list(range(200))


def test_swa_with_batch_norm_needs_a_data_module_with_a_loader_method(trainer):
    data = Images()
    data.setup("fit")
    loader = data.train_dataloader()
    with pytest.raises(UserError, match="data module needs a method `loader"):
        trainer(max_epochs=2, limit_val_batches=0, callbacks=[SWA()]).fit(task(), loader)


class TwoInputs(BoringModel):
    """Model with batch norm whose inputs are two tensors."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))

    def forward(self, rows, shift):
        return self.layer(rows + shift)

    def training_step(self, batch, batch_idx):
        rows, shift = batch.values() if isinstance(batch, dict) else batch
        return self.loss(self(rows, shift))


class OneDict(TwoInputs):
    """Model whose input is a dict, which comes before the target in a batch."""

    def forward(self, inputs):
        return super().forward(**inputs)

    def training_step(self, batch, batch_idx):
        return self.loss(self(batch[0]))


class Stream(IterableDataset):
    """Dataset that does not define `__len__`."""

    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


class Rows(LightningDataModule):
    def __init__(self, samples):
        super().__init__()
        self.samples = samples

    def loader(self, split):
        return DataLoader(self.samples, batch_size=4)

    def train_dataloader(self):
        return self.loader("train")


PAIRS = [(row, torch.ones(8)) for row in torch.arange(64.0).view(8, 8)]
DICTS = [{"rows": row, "shift": shift} for row, shift in PAIRS]


@pytest.mark.parametrize(
    ("kind", "samples"),
    [(TwoInputs, PAIRS), (TwoInputs, DICTS), (TwoInputs, Stream(PAIRS)), (OneDict, [(row, 0) for row in DICTS])],
    ids=["tuples", "dicts", "unknown length", "dicts and targets"],
)
def test_a_loader_method_may_return_an_ordinary_dataloader(trainer, kind, samples):
    module = kind()
    trainer(max_epochs=1, limit_val_batches=0, callbacks=[SWA(start=0)]).fit(module, datamodule=Rows(samples))
    assert module.layer[0].running_mean.tolist() == list(range(29, 37))


@pytest.mark.parametrize("step", [STEPS, STEPS + 2])
def test_resumed_ema_ends_with_the_same_average(trainer, tmp_path, step):
    whole, resumed, file = task(), task(), tmp_path / "saved.ckpt"
    trainer(max_epochs=2, callbacks=[EMA(0.9), SaveAt(step, file)]).fit(whole, datamodule=Images())
    trainer(max_epochs=2, callbacks=[EMA(0.9)]).fit(resumed, datamodule=Images(), ckpt_path=file, weights_only=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_averages_of_layers_with_versions_can_be_loaded(trainer, tmp_path):
    def versioned():
        net = nn.Sequential(nn.Flatten(), Versioned(16, 3))
        return ImageClassifier(net, partial(torch.optim.SGD, lr=0.5), ["a", "b", "c"], [0.4], [0.3])

    callbacks = [EMA(0.5), SaveAt(2, tmp_path / "saved.ckpt")]
    whole = trainer(max_epochs=2, callbacks=callbacks)
    whole.fit(versioned(), datamodule=Images())
    resumed = trainer(max_epochs=2, callbacks=[EMA(0.5)])
    resumed.fit(versioned(), datamodule=Images(), ckpt_path=tmp_path / "saved.ckpt", weights_only=True)
    assert resumed.global_step == whole.global_step
    paths = [tmp_path / f"{name}.ckpt" for name in "ab"]
    for path in paths:
        whole.save_checkpoint(path)
    tested = versioned()
    trainer().test(tested, datamodule=Images(), ckpt_path=average(paths, tmp_path / "average.ckpt"), weights_only=True)
    assert tested.net[1].weight.equal(read(paths[0])["state_dict"]["net.1.weight"])


class Compared(Callback):
    """Saves the averaged weights of all processes."""

    def __init__(self, file):
        self.file = file

    def on_train_end(self, trainer, module):
        weights = module.all_gather(module.net[1].weight.detach())
        if trainer.is_global_zero:
            torch.save(weights, self.file)


@pytest.mark.parametrize("average", [EMA(0.9), SWA(0)], ids=["EMA", "SWA"])
def test_two_processes_share_one_average_and_the_best_checkpoint_contains_it(trainer, tmp_path, average):
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    best = Checkpoint(monitor="val/samples", mode="min", every_n_epochs=2)  # so only the last epoch is saved
    callbacks = [average, Compared(tmp_path / "weights.pt"), best]
    options = {"max_epochs": 2, "devices": 2, "strategy": strategy, "enable_checkpointing": True}
    trainer(callbacks=callbacks, **options).fit(task(), datamodule=Images())
    here, there = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert torch.equal(here, there)
    (file,) = (tmp_path / "checkpoints").glob("best*")
    saved = torch.load(file, weights_only=True)
    assert torch.equal(saved["state_dict"]["net.1.weight"], here)
    assert not torch.equal(saved["current_model_state"]["net.1.weight"], here)


@pytest.fixture
def trained(trainer):
    module, seen = task(), Snapshots()
    trainer(max_epochs=5, callbacks=[seen, SWA(start=2)]).fit(module, datamodule=Images())
    return module, seen


def test_swa_weights_are_the_mean_of_the_last_epochs(trained):
    module, seen = trained
    expected = mean(seen.weights[2:])
    for name, value in module.named_parameters():
        assert torch.allclose(value, expected[name], atol=1e-6)


def test_batch_norm_statistics_are_recomputed_for_the_averaged_weights(trained):
    module, _ = trained
    images, _ = Images().load("train")
    data = Images()
    data.setup("fit")
    loader = data.loader("train")
    loader.sampler.set_epoch(4)
    with torch.no_grad():
        inputs = [(images[batch.indices].float() / 255 - 0.4) / 0.3 for batch in loader]
        hidden = [module.net[1](x.flatten(1)) for x in inputs]
    norm = module.net[2]
    assert torch.allclose(norm.running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0), atol=1e-5)
    assert torch.allclose(norm.running_var, torch.stack([h.var(0) for h in hidden]).mean(0), atol=1e-5)
    assert norm.momentum == 0.1


def test_swa_does_not_affect_training(trained, trainer):
    plain = Snapshots()
    trainer(max_epochs=5, callbacks=[plain]).fit(task(), datamodule=Images())
    for one, other in zip(plain.weights, trained[1].weights, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("step", [STEPS, 3 * STEPS + 2])
def test_resumed_swa_ends_with_the_same_average(trainer, trained, tmp_path, step):
    file = tmp_path / "saved.ckpt"
    trainer(max_epochs=5, callbacks=[SWA(start=2), SaveAt(step, file)]).fit(task(), datamodule=Images())
    resumed = task()
    trainer(max_epochs=5, callbacks=[SWA(start=2)]).fit(resumed, datamodule=Images(), ckpt_path=file, weights_only=True)
    for name, value in trained[0].state_dict().items():
        assert torch.allclose(resumed.state_dict()[name], value, atol=1e-7), name


class Ends(Callback):
    """Records the weights after each step, and optionally stops the run after a given step, as `max_time` does."""

    def __init__(self, stop=None):
        self.steps, self.stop = [], stop

    def on_train_batch_end(self, trainer, module, *args):
        self.steps.append({name: p.detach().clone() for name, p in module.named_parameters()})
        trainer.should_stop |= trainer.global_step == self.stop


@pytest.mark.parametrize(
    ("stop", "end", "counted"),
    [
        ("max_steps", 3 * STEPS + 2, [3 * STEPS, 3 * STEPS + 2]),
        ("max_time", 2 * STEPS + 2, [2 * STEPS + 2]),
        ("max_time", 3 * STEPS + 2, [3 * STEPS]),
    ],
)
def test_swa_includes_an_epoch_cut_short_by_max_steps_but_not_by_a_stop(trainer, tmp_path, stop, end, counted):
    """Reaching `max_steps` ends an epoch, but a stop does not. Averaging starts at the end of the first epoch."""
    module, seen = task(), Ends(end if stop == "max_time" else None)
    options = {"max_steps": end} if stop == "max_steps" else {}
    callbacks = [Saver(), seen, SWA(start=2), Checkpoint(monitor=None)]
    trainer(max_epochs=5, callbacks=callbacks, enable_checkpointing=True, **options).fit(module, datamodule=Images())
    assert len(seen.steps) == end
    expected = mean([seen.steps[step - 1] for step in counted])
    saved = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    for name, value in module.named_parameters():
        assert torch.allclose(value, expected[name], atol=1e-6), name
        assert torch.equal(saved["state_dict"][name], value), name
        assert torch.equal(saved["current_model_state"][name], seen.steps[-1][name]), name


def test_frozen_batch_norm_keeps_its_statistics(trainer):
    module = task()
    norm = module.net[2]
    norm.running_mean.fill_(0.25)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    callbacks = [Unfreezing({"net.2": None}), SWA(start=1)]
    trainer(max_epochs=2, callbacks=callbacks).fit(module, datamodule=Images())
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


class Late(BoringModel):
    """Module that replaces its layer in `setup`."""

    def setup(self, stage):
        self.layer = nn.Linear(32, 3)


@pytest.mark.parametrize(("average", "share"), [(EMA(0.999), 2 / 11), (SWA(0), 0)], ids=["EMA", "SWA"])
def test_averages_layers_created_in_setup(trainer, average, share):
    module, seen = Late(), Ends()
    trainer(max_epochs=1, limit_train_batches=2, limit_val_batches=0, callbacks=[seen, average]).fit(module)
    one, other = (weights["layer.weight"] for weights in seen.steps)
    assert torch.allclose(module.layer.weight, share * one + (1 - share) * other, atol=1e-6)


def test_start_may_be_a_fraction_of_the_run_and_invalid_starts_are_errors(trainer):
    callback = SWA(start=0.5)
    trainer(max_epochs=4, callbacks=[callback]).fit(task(), datamodule=Images())
    assert callback.first_epoch == 2
    trainer(max_epochs=100, max_steps=16, callbacks=[callback]).fit(task(), datamodule=Images())  # 4 steps per epoch
    assert callback.first_epoch == 2
    with pytest.raises(UserError, match="start in epoch 4, but the run ends after 4"):
        trainer(max_epochs=4, callbacks=[SWA(start=4)]).fit(task(), datamodule=Images())
    with pytest.raises(UserError, match="at least 0"):
        SWA(start=-1)
