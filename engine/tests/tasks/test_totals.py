"""Tests that means over samples are computed from sums and counts."""

from functools import partial

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.nn import functional as F

from helpers import SaveAt, floats
from lit_engine.distributed.processes import Replicas
from lit_engine.loggers.metrics_csv import MetricsCSV
from lit_engine.run.directory import RunDir
from lit_engine.training.exact import Totals
from lit_engine.training.task import Task
from toy.data import Images


@pytest.mark.parametrize("sizes", [[8], [5, 1, 1, 1]])
def test_means_are_exact_for_any_split_into_batches(sizes):
    values = torch.tensor([0.5, 1.5, -2.0, 4.0, 8.0, 0.25, 3.0, 1.0])
    totals = Totals()
    for batch in values.split(sizes):
        totals.add(len(batch), loss=batch.mean() * len(batch), positive=(batch > 0).sum())
    assert totals.count == 8
    assert totals.means() == {"loss": pytest.approx(values.mean().item(), rel=1e-7), "positive": 7 / 8}


@pytest.mark.parametrize("count", [1, torch.tensor(0.3)])
def test_many_additions_do_not_lose_precision(count):
    totals = Totals()
    for _ in range(20_000):
        totals.add(count, loss=torch.tensor(0.1))
    assert totals.means()["loss"] == pytest.approx(torch.tensor(0.1).item() / float(count), rel=1e-12)


def test_adding_does_not_modify_inputs_or_retain_their_graph():
    weight = torch.tensor(2.0, dtype=torch.double, requires_grad=True)
    first, second = weight * 1, weight * 3
    totals = Totals()
    totals.add(1, loss=first)
    totals.add(1, loss=second)
    assert totals.means() == {"loss": 4.0}
    assert (first.item(), second.item()) == (2.0, 6.0)
    assert not totals.sums["loss"].requires_grad


class Own(Task):
    """Minimal task."""

    def __init__(self):
        super().__init__(partial(torch.optim.SGD, lr=0.0))
        self.net = nn.Linear(16, 4)

    def training_step(self, batch, batch_idx):
        logits, targets = self.net(batch.images.flatten(1)), batch.targets
        return self.step(F.cross_entropy(logits, targets), len(targets), accuracy=(logits.argmax(1) == targets).sum())

    def evaluation_step(self, batch, split):
        return self.training_step(batch, 0)


def test_a_minimal_task_logs_exact_means_for_all_splits(trainer):
    task, data = Own(), Images(batch_size=8, eval_batch_size=5)
    runner = trainer(max_epochs=1)
    runner.fit(task, datamodule=data)
    metrics = {**runner.callback_metrics, **runner.test(task, datamodule=data, verbose=False)[0]}
    for split, samples in (("train", 29), ("val", 17), ("test", 17)):
        images, targets = floats(data, split)
        with torch.no_grad():
            logits = task.net(images.flatten(1))
        assert metrics[f"{split}/loss"] == pytest.approx(F.cross_entropy(logits, targets).item(), rel=1e-6)
        assert metrics[f"{split}/accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean().item())
        assert metrics[f"{split}/samples"] == samples


def test_a_validation_step_may_call_step(trainer):
    class Validating(Own):
        def validation_step(self, batch, batch_idx):
            return self.training_step(batch, batch_idx)

    runner = trainer(max_epochs=1)
    runner.fit(Validating(), datamodule=Images(eval_batch_size=5))
    assert runner.callback_metrics["val/samples"] == 17


def test_counts_above_16_million_are_logged_exactly(trainer, tmp_path):
    count = 2**24 + 1

    class Counting(Own):
        def evaluation_metrics(self, totals, split):
            return {**super().evaluation_metrics(totals, split), "tokens": float(count)}

    task, data, runner = Counting(), Images(batch_size=8), trainer(max_epochs=1, logger=[MetricsCSV(tmp_path)])
    runner.fit(task, datamodule=data)
    assert RunDir(tmp_path).history()[1][-1]["val/tokens"] == str(count)


def test_logging_does_not_reduce_metrics_over_processes_again(trainer, monkeypatch, recwarn):
    strategy = DDPStrategy(process_group_backend="gloo")
    calls = []
    monkeypatch.setattr(strategy, "reduce", lambda value, **kwargs: calls.append(value) or value)
    trainer(max_epochs=1, strategy=strategy).fit(Own(), datamodule=Images(batch_size=8))
    torch.distributed.destroy_process_group()
    # Lightning still reduces its own decisions, such as whether to stop, but these are not floating-point values.
    assert not [value for value in calls if value.is_floating_point()]
    assert not [warning for warning in recwarn if "sync_dist" in str(warning.message)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_restored_sums_are_unaffected_by_the_number_of_processes(size):
    state = {"sums": {"loss": torch.tensor([1.0, 2.5])}, "count": torch.tensor([3, 4])}
    replicas = [Totals() for _ in range(size)]
    for rank, totals in enumerate(replicas):
        totals.scatter(state, Replicas(size, rank, None))
    assert sum(float(totals.sums["loss"]) for totals in replicas) == 3.5
    assert sum(int(totals.count) for totals in replicas) == 7


def test_fractional_counts_are_exact(trainer):
    """A weighted loss passes the sum of its weights as the count."""
    totals, restored, task = Totals(), Totals(), Own()
    task.trainer = trainer()
    for weight, loss in ((0.5, 3.0), (0.25, 1.0)):
        totals.add(torch.tensor(weight), loss=torch.tensor(weight * loss))
    assert totals.means() == {"loss": (0.5 * 3 + 0.25 * 1) / 0.75}
    assert totals.reduce(task).means() == totals.means()
    restored.scatter(totals.gather(task), Replicas())
    assert restored.means() == totals.means()
    restored.add(torch.tensor(0.25), loss=torch.tensor(0.0))
    assert repr(restored.reduce(task).count) == "1"  # whole numbers are integers


def test_the_step_loss_is_logged_even_if_the_task_sums_no_loss(trainer, tmp_path):
    class Accuracy(Own):
        def training_step(self, batch, batch_idx):
            logits, targets = self.net(batch.images.flatten(1)), batch.targets
            self.running.add(len(targets), accuracy=(logits.argmax(1) == targets).sum())
            return F.cross_entropy(logits, targets)

    runner = trainer(max_epochs=1, log_every_n_steps=1, logger=[MetricsCSV(tmp_path)])
    runner.fit(Accuracy(), datamodule=Images(batch_size=8))
    losses = [float(row["train/loss_step"]) for row in RunDir(tmp_path).history()[1]]
    assert len(losses) == 4
    assert min(losses) > 0


def test_a_manual_task_that_returns_nothing_logs_its_steps(trainer, tmp_path):
    class Manual(Own):
        def training_step(self, batch, batch_idx):
            self.manual_backward(super().training_step(batch, batch_idx))
            self.optimizers().step()

        def evaluation_step(self, batch, split):
            return super().training_step(batch, 0)

    task, runner = Manual(), trainer(max_epochs=1, log_every_n_steps=1, logger=[MetricsCSV(tmp_path)])
    task.automatic_optimization = False
    runner.fit(task, datamodule=Images(batch_size=8))
    rows = RunDir(tmp_path).history()[1]
    assert [row["step"] for row in rows if float(row["train/loss_step"]) > 0] == ["0", "1", "2", "3"]
    assert all(row["lr"] and row["train/gradient_norm"] for row in rows)


class ByProcess(Own):
    """Task whose processes log different metrics, as can happen with one metric per language and few batches."""

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        for name in ("a", "b", "c")[self.global_rank :: 2]:
            self.add_sums(**{f"of_{name}": torch.tensor(float(len(batch.targets)))})
        return loss


def test_processes_may_log_different_metrics(trainer, tmp_path):
    save = SaveAt(2, tmp_path / "a.ckpt")
    strategy = DDPStrategy(start_method="fork", process_group_backend="gloo")
    runner = trainer(max_epochs=1, devices=2, strategy=strategy, callbacks=[save], log_every_n_steps=1)
    runner.fit(ByProcess(), datamodule=Images(batch_size=8))
    shares = {name: runner.callback_metrics[f"train/of_{name}"].item() for name in "abc"}
    assert shares == {"a": 15 / 29, "b": 14 / 29, "c": 15 / 29}
    state = torch.load(tmp_path / "a.ckpt", weights_only=True)["running"]
    assert {name: state["sums"][f"of_{name}"].tolist() for name in "abc"} == {"a": [15, 0], "b": [0, 14], "c": [15, 0]}
