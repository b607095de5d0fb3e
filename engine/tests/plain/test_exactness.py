"""Plain code whose runs resume exactly: NumPy learning rates, random collate functions, combined loaders, and more."""

import csv
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from metric_objects import Classifier, Data
from noisy import Points
from test_own_code import Counting, Simple, check_resumed
from test_plain import StopAfter
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate, random_split
from torchdata.stateful_dataloader import StatefulDataLoader
from torchmetrics import MeanMetric, MinMaxMetric, RunningMean

from helpers import differences, run_in
from killing import at_call
from lit_engine.checkpoints.io import read
from lit_engine.load import load_data
from lit_engine.run.directory import RunDir
from lit_engine.training.plain import seed_data_hooks

BATCHES = 10  # per epoch
FIT = "--trainer.log_every_n_steps=1 --epochs 2 --model test_exactness."


class Rates(Classifier):
    """Computes learning rates with NumPy, in a schedule and in a hook."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5 * (1 + np.cos(epoch)))]

    def on_train_batch_end(self, *args):
        self.optimizers().param_groups[0]["lr"] *= np.float64(0.9)


class Metrics(Simple):
    """Logs a running mean, and the minimum of a mean, in each step."""

    def __init__(self):
        super().__init__()
        self.running, self.extremes = RunningMean(window=3), MinMaxMetric(MeanMetric())

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("running", self.running(loss.detach()), on_step=True)
        self.log("lowest", self.extremes(loss.detach())["min"], on_step=True)
        return loss


class Plain(Simple):
    """Module without unusual features."""


class Manual(Classifier):
    """Steps its schedule manually in each training step."""

    def __init__(self, weight: float = 1.0):
        super().__init__()
        self.automatic_optimization, self.weight = False, weight

    def training_step(self, batch, batch_idx):
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        optimizer.zero_grad()
        self.manual_backward(self.weight * super().training_step(batch, batch_idx))
        optimizer.step()
        schedule.step()
        self.log("rate", optimizer.param_groups[0]["lr"], on_step=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        return [optimizer], [torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=100)]


class Plateau(Classifier):
    """Steps ReduceLROnPlateau with a loss that is logged both per step and per epoch."""

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=0.0)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step", "monitor": "train_loss"},
        }


class Critic(Simple):
    """Logs several values per batch."""

    def training_step(self, batch, batch_idx):
        for number in range(5):
            loss = F.cross_entropy(self(batch[0]), batch[1])
            self.log("critic_loss", loss / (number + 1), on_epoch=True)
        return loss


class Fetching(Simple):
    """Fetches the next batch itself in `training_step`."""

    def training_step(self, dataloader_iter):
        (x, y), *_ = next(dataloader_iter)
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss, batch_size=len(y))
        return loss


class Pair(Classifier):
    """Trains on two loaders of different lengths."""

    def training_step(self, batch, batch_idx):
        self.log("loaders", float(sum(one is not None for one in batch)), on_step=True)
        return sum(F.cross_entropy(self(x), y) for x, y in filter(None, batch))


class Tensors(Data):
    """Adds random noise in the collate function of a TensorDataset."""

    def __init__(self, num_workers: int = 0):
        super().__init__()
        self.num_workers = num_workers

    def train_dataloader(self):
        samples = TensorDataset(*default_collate([*super().train_dataloader().dataset]))
        return DataLoader(samples, batch_size=32, shuffle=True, collate_fn=add_noise, num_workers=self.num_workers)


def add_noise(samples):
    x, y = default_collate(samples)
    return x + torch.randn_like(x), y


class Pairs(Data):
    """Data with two training loaders. The shorter one does not start over."""

    def train_dataloader(self):
        samples = super().train_dataloader().dataset
        loaders = [DataLoader(samples, batch_size=size, shuffle=True) for size in (32, 100)]
        return CombinedLoader(loaders, mode="max_size")


class Curriculum(Data):
    """Trains on different samples in later epochs."""

    def train_dataloader(self):
        samples = super().train_dataloader().dataset
        start = 20 * self.trainer.current_epoch
        return DataLoader(Subset(samples, range(start, start + 200)), batch_size=20, shuffle=True)


class Drawn(Data):
    """Draws a random training subset and random validation samples."""

    def train_dataloader(self):
        samples = super().train_dataloader().dataset
        return DataLoader(Subset(samples, torch.randperm(300)[:200].tolist()), batch_size=20, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(40, 20), torch.randint(3, (40,))), batch_size=20)


@pytest.mark.parametrize(
    "options",
    [
        "Rates --data metric_objects.Data",
        "Metrics --data metric_objects.Data",
        "Pair --data test_exactness.Pairs",
        "Plain --data test_exactness.Tensors",
        "Plain --data test_exactness.Tensors --data.num_workers=1",
        "Plain --data metric_objects.Data --trainer.precision=64-true",
        "Plateau --data metric_objects.Data",
        "Critic --data metric_objects.Data",
        "Fetching --data metric_objects.Data",
        "Plain --data test_exactness.Curriculum --trainer.reload_dataloaders_every_n_epochs=2",
        "Plain --data test_exactness.Drawn --trainer.reload_dataloaders_every_n_epochs=1",
    ],
)
def test_a_resumed_run_matches_an_uninterrupted_run_bit_for_bit(lit, options):
    check_resumed(lit, f"fit {FIT}{options}", BATCHES + 5)


def test_a_reloaded_loader_draws_other_samples():
    data = Drawn()
    seed_data_hooks(data, 0)
    data.trainer, drawn = SimpleNamespace(reload_dataloaders_every_n_epochs=2), []
    for data.trainer.current_epoch in range(4):
        drawn.append(data.train_dataloader().dataset.indices)
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


class Stops(Classifier):
    """Stops the run in the second epoch."""

    def training_step(self, batch, batch_idx):
        if self.global_step == BATCHES + 5:
            self.trainer.should_stop = True
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("options", ["", "--trainer.val_check_interval=3"])
def test_a_signal_during_the_last_validation_waits_for_its_end(lit, monkeypatch, options):
    fit = f"fit {FIT}Stops --data metric_objects.Data {options} --epochs 4"
    whole = lit(fit, "--name whole")
    assert whole.status == 0, whole.err
    with monkeypatch.context() as patch:
        calls = at_call(patch, Stops, "validation_step", 10**9)
        lit(fit, "--name counted")
    with monkeypatch.context() as patch:
        at_call(patch, Stops, "validation_step", len(calls) - 2, signal.SIGTERM)
        cut = lit(fit, "--name cut")
    assert cut.status == 143
    assert "nothing to do" in lit(f"fit {cut.run}").out
    assert differences(whole.run, cut.run) == []


class Validations(Counting):
    """Counts validations instead of epochs."""

    on_train_epoch_end = Callback.on_train_epoch_end

    def on_validation_start(self, trainer, pl_module):
        Counting.on_train_epoch_end(self, trainer, pl_module)


class Validating(Classifier):
    def configure_callbacks(self):
        return [Validations()]


class Samples(Classifier):
    """Counts the validated samples."""

    count = 0

    def validation_step(self, batch, batch_idx):
        self.count += len(batch[0])
        self.log("val_count", float(self.count))

    def on_save_checkpoint(self, checkpoint):
        checkpoint["count"] = self.count

    def on_load_checkpoint(self, checkpoint):
        self.count = checkpoint["count"]


class Loads(Data):
    """Counts the validated batches, and adds this count to the samples of each batch."""

    count = 0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        self.count += self.trainer.validating
        return batch[0] + self.count, batch[1]

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state_dict):
        self.count = state_dict["count"]


@pytest.mark.parametrize(("model", "data"), [
    (Validating, "metric_objects.Data"), (Samples, "metric_objects.Data"), (Plain, "test_exactness.Loads"),
])  # fmt: skip
def test_a_signal_during_validation_does_not_count_a_batch_twice(lit, monkeypatch, model, data):
    fit = f"fit {FIT}{model.__name__} --data {data} --epochs 3"
    whole = lit(fit, "--name whole")
    assert whole.status == 0, whole.err
    with monkeypatch.context() as patch:
        at_call(patch, model, "validation_step", 5, signal.SIGTERM)
        cut = lit(fit, "--name cut")
    assert cut.status == 143
    assert lit(f"fit {cut.run}").status == 0
    assert differences(whole.run, cut.run) == []


class Splits(Data):
    """Splits the data at random when it is created, and in each call of `setup`."""

    def __init__(self, batch_size: int = 32):
        super().__init__(batch_size)
        self.samples, self.test = random_split(super().train_dataloader().dataset, [250, 50])

    def setup(self, stage):
        self.parts = [*random_split(self.samples, [200, 50]), self.test]
        with open("splits.csv", "a", newline="") as file:
            row = [sorted(part.indices) for part in self.parts[1:]]
            csv.writer(file).writerow([*row, np.random.rand()])  # noqa: NPY002

    def train_dataloader(self):
        return DataLoader(self.parts[0], batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.parts[1], batch_size=32)

    def test_dataloader(self):
        return DataLoader(self.parts[2], batch_size=32)


class OwnSplits(Rates):
    """Module with its own dataloaders."""

    def __init__(self):
        super().__init__()
        self.data = Splits()

    def setup(self, stage):
        self.data.setup(stage)

    def train_dataloader(self):
        return self.data.train_dataloader()

    def val_dataloader(self):
        return self.data.val_dataloader()

    def test_dataloader(self):
        return self.data.test_dataloader()


@pytest.mark.parametrize("options", ["Rates --data test_exactness.Splits", "OwnSplits"])
def test_random_splits_are_the_same_in_all_stages_and_commands(lit, workspace, options):
    run = lit(f"fit {FIT}{options} --test_after_fit=true").run
    for command in ("validate", "test", "predict"):
        assert lit(f"{command} {run}").status == 0
    load_data(RunDir(run))
    rows = (workspace / "splits.csv").read_text().splitlines()
    assert len(rows) > 5
    assert len({*rows}) == 1


class Adversarial(Classifier):
    """Uses manual optimization and batch norm, and unfreezes its first layer in the second epoch."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.model.insert(1, nn.BatchNorm1d(32))
        self.model[0].requires_grad_(False)

    def on_train_epoch_start(self):
        self.model[0].requires_grad_(self.current_epoch > 0)

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        loss = F.cross_entropy(self(batch[0]), batch[1])
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        ranks = self.all_gather(torch.stack([weight.detach().sum() for weight in self.parameters()]))
        self.log("distance", (ranks[0] - ranks[-1]).abs().max(), sync_dist=True)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]), sync_dist=True)

    def on_validation_epoch_end(self):  # validation uses rank 0's statistics, which are also the saved ones
        mean = self.all_gather(self.model[1].running_mean)
        self.log("val_distance", (mean[0] - mean[-1]).abs().max())

    def on_train_epoch_end(self):  # each process keeps its own statistics
        mean = self.all_gather(self.model[1].running_mean)
        self.log("own_distance", (mean[0] - mean[-1]).abs().max())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Shard(IterableDataset):
    """Every second point, starting at `rank`. The state is the index of the next point."""

    def __init__(self, rank):
        self.rank, self.next, self.data = rank, rank, Points(300, 0)

    def __len__(self):
        return 150

    def __iter__(self):
        for index in range(self.next, 300, 2):
            self.next = index + 2
            yield self.data.points[index], self.data.targets[index]
        self.next = self.rank

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Shards(Data):
    def train_dataloader(self):
        return StatefulDataLoader(Shard(self.trainer.global_rank), batch_size=32)


@pytest.mark.slow
@pytest.mark.parametrize("data", ["metric_objects.Data", "test_exactness.Shards"])
def test_two_processes_resume_exactly_with_manual_optimization_and_unfrozen_layers(lit, tmp_path, data):
    options = f"--data {data} --trainer.strategy=ddp --trainer.devices=2 --trainer.accelerator=cpu"
    fit = f"fit {FIT}Adversarial {options} --epochs 3"
    run_in(tmp_path, *f"{fit} --name whole".split())
    stop = f"{{class_path: {StopAfter.__module__}.StopAfter, init_args: {{batches: 8}}}}"
    with pytest.raises(AssertionError):  # ends with status 143
        run_in(tmp_path, *f"{fit} --name cut".split(), "--trainer.callbacks+=" + stop)
    run_in(tmp_path, *["fit", "runs/unnamed/cut", "--trainer.callbacks=null"])
    whole, cut = (tmp_path / "runs" / "unnamed" / name for name in ("whole", "cut"))
    assert differences(whole, cut) == []
    with (whole / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("distance", "val_distance"):
        assert {float(row[name]) for row in rows if row[name]} == {0.0}
    assert all(float(row["own_distance"]) > 0 for row in rows if row["own_distance"])


def test_a_fork_with_manual_optimization_continues_the_schedule(lit):
    parent = lit(f"fit {FIT}Manual --data metric_objects.Data").run
    child = lit(f"fit --fork {parent} --model.weight=0.5 --epochs 3 --name child").run
    with (child / "metrics.csv").open() as lines:
        rates = [float(row["rate"]) for row in csv.DictReader(lines) if row["rate"]]
    assert rates == pytest.approx([1 - step / 100 for step in range(1, 3 * BATCHES + 1)])


class Monitoring(Classifier):
    """During training, logs a metric whose name starts with `val`. Its schedule has an unneeded `monitor`."""

    def on_train_epoch_start(self):
        self.log("val_rate", self.optimizers().param_groups[0]["lr"])

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)
        schedule = {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "monitor": "val_f1"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def test_only_schedules_that_need_a_metric_wait_for_it(lit):
    parent = lit(f"fit {FIT}Monitoring --data metric_objects.Data").run
    child = lit(f"fit --fork {parent} --model.learning_rate=0.08 --epochs 4 --name child").run
    with (child / "metrics.csv").open() as lines:
        rates = [float(row["val_rate"]) for row in csv.DictReader(lines) if row["val_rate"]]
    assert rates == [0.01, 0.005, 0.02, 0.01]


class Halving(Classifier):
    """Halves its learning rate after each epoch."""

    def on_train_epoch_end(self):
        for group in self.optimizers().param_groups:
            group["lr"] /= 2

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.learning_rate)


@pytest.mark.parametrize(("option", "rate"), [("name=other", 0.01 / 2**3), ("learning_rate=0.08", 0.08 / 2)])
def test_a_fork_keeps_the_learning_rate_unless_the_optimizer_changes(lit, option, rate):
    parent = lit(f"fit {FIT}Halving --data metric_objects.Data").run
    child = lit(f"fit --fork {parent} --model.{option} --epochs 3 --name child").run
    (group,) = read(child / "checkpoints" / "last.ckpt")["optimizer_states"][0]["param_groups"]
    assert group["lr"] == pytest.approx(rate)


class ByEpoch(Monitoring):
    """Steps its schedule manually, as is common with schedules from other libraries, and warms up the rate."""

    def optimizer_step(self, epoch, batch_idx, optimizer, closure):
        if epoch == 0:
            optimizer.param_groups[0]["lr"] = self.hparams.learning_rate * (batch_idx + 1) / BATCHES
        optimizer.step(closure)

    def configure_optimizers(self):
        config = super().configure_optimizers()
        return {**config, "lr_scheduler": {**config["lr_scheduler"], "interval": "step"}}

    def lr_scheduler_step(self, scheduler, metric):
        scheduler.step(epoch=self.current_epoch)


@pytest.mark.filterwarnings("ignore:The epoch parameter in `scheduler.step")
def test_schedules_that_the_module_steps_itself_can_be_planned_but_not_moved(lit):
    fit = f"fit {FIT}ByEpoch --data metric_objects.Data"
    parent = lit(fit).run
    same = lit(f"fit --fork {parent} --epochs 3 --name same").run
    (group,) = read(same / "checkpoints" / "last.ckpt")["optimizer_states"][0]["param_groups"]
    done = lit(f"fit --fork {parent} --model.learning_rate=0.08 --epochs 3 --name child")
    assert done.status == 2
    assert "because the module overrides lr_scheduler_step" in done.err
    planned = lit(f"{fit} --epochs 3 --plot_lr")
    assert f"lr: starts at 0.01, peaks at 0.01, ends at {group['lr']}\n" in planned.out
    assert "note: rates that the module sets in optimizer_step are not plotted" in planned.err


def test_callbacks_may_monitor_validation_metrics_that_are_logged_in_training(lit):
    best = "--trainer.callbacks+={class_path: ModelCheckpoint, init_args: {monitor: val_rate, mode: max}}"
    run = lit(f"fit {FIT}Monitoring --data metric_objects.Data --trainer.limit_val_batches=0", [best]).run
    assert RunDir(run).metrics()["fit"]["best val_rate"] == pytest.approx(0.01)


class Scheduled(Classifier):
    """Uses a cosine schedule that ends with the run."""

    def __init__(self, lr: float = 0.1):
        super().__init__()
        self.lr = lr

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


def test_resuming_cannot_change_the_schedule_length_or_the_batches_per_step(lit, monkeypatch):
    fit = f"fit {FIT}Scheduled --data metric_objects.Data"
    run = lit(f"{fit} --name longer").run
    again = lit(f"fit {run} --epochs 4")
    assert again.status == 2
    message = "the length of CosineAnnealingLR was 2 and would be 4, but a resumed run cannot change its schedules"
    assert message in again.err
    at_call(monkeypatch, Scheduled, "training_step", 4, signal.SIGTERM)
    stopped = lit(f"{fit} --name stopped --model.lr=0.2")
    assert stopped.status == 143
    changed = lit(f"fit {stopped.run} --trainer.accumulate_grad_batches=3")
    assert changed.status == 2
    assert "stopped mid-epoch with trainer.accumulate_grad_batches=1: resume with this value" in changed.err
    other = lit(f"fit {stopped.run} --model.lr=0.5")
    assert other.status == 0
    assert "the optimizer and schedules keep their saved options: to change them, use --fork" in other.err


class Decay(torch.optim.lr_scheduler.LRScheduler):
    """Decays the rate linearly. Its state contains the run length under a name that the module chooses."""

    def __init__(self, optimizer, **lengths):
        self.__dict__.update(lengths)
        (self.name,) = lengths
        super().__init__(optimizer)

    def get_lr(self):
        return [rate * (1 - self.last_epoch / getattr(self, self.name)) for rate in self.base_lrs]


class Decaying(Monitoring):
    """Uses a schedule as in lightning-bolts or timm, or as in transformers if `name` is `lambda`."""

    def configure_optimizers(self):
        optimizer, epochs = torch.optim.SGD(self.parameters(), lr=0.08), self.trainer.max_epochs
        if self.hparams.name != "lambda":
            return [optimizer], [Decay(optimizer, **{self.hparams.name: epochs})]
        return [optimizer], [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 - epoch / epochs)]


@pytest.mark.parametrize(("name", "status", "message"), [
    ("max_epochs", 2, "the length of Decay was 2 and would be 4"),
    ("t_initial", 2, "the length of Decay was 2 and would be 4"),
    ("lambda", 0, "warning: LambdaLR now computes different learning rates"),
])  # fmt: skip
def test_schedules_of_other_libraries_are_rebuilt_by_a_longer_fork_but_not_resumed(lit, name, status, message):
    parent = lit(f"fit {FIT}Decaying --model.name={name} --data metric_objects.Data").run
    child = lit(f"fit --fork {parent} --epochs 4 --name child").run
    with (child / "metrics.csv").open() as lines:
        rates = [float(row["val_rate"]) for row in csv.DictReader(lines) if row["val_rate"]]
    assert rates == pytest.approx([0.08, 0.04, 0.04, 0.02])
    assert message not in lit(f"fit {parent}").err
    resumed = lit(f"fit {parent} --epochs 4")
    assert resumed.status == status
    assert message in resumed.err


def test_a_step_that_fetches_its_batch_gets_every_batch_and_is_followed_by_validation(lit):
    with (lit(f"fit {FIT}Fetching --data metric_objects.Data").run / "metrics.csv").open() as lines:
        rows = [*csv.DictReader(lines)]
    assert [int(row["step"]) for row in rows if row["val_loss"]] == [BATCHES - 1, 2 * BATCHES - 1]


@pytest.mark.parametrize("model", ["Plain", "Metrics"])
def test_extending_a_run_that_max_steps_ended_mid_epoch_gives_exact_results(lit, model):
    fit = f"fit {FIT}{model} --data metric_objects.Data --trainer.max_epochs=-1"
    whole = lit(fit, "--trainer.max_steps=17 --name whole").run
    part = lit(fit, "--trainer.max_steps=14 --name part").run
    assert lit(f"fit {part} --trainer.max_steps=17").status == 0
    last_row = "/metrics.csv/13/"  # of the shorter run, which also logged the means of its incomplete epoch
    assert [name for name in differences(whole, part) if not name.startswith(last_row)] == []
