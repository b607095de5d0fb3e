"""Weighted sampling: frequencies match the weights, and runs are as reproducible as without weights."""

import csv
import itertools
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from test_datasets import Pairs, make
from test_order import Drawing
from torch import nn
from torch.utils.data import Subset

from killing import at_call
from lit_engine.checkpoints.io import read
from lit_engine.data.sampler import EpochBatches, Loader
from lit_engine.data.sampling import labels_of
from lit_engine.data.tables import TabularData
from lit_engine.errors import DataError
from toy.data import Digits, Images
from toy.tasks import ImageClassifier

WEIGHTS = torch.tensor([0, 1, 2, 0, 5, 1, 7, 0], dtype=torch.double).repeat(25)
OPTIONS = (
    "fit -c configs/quickstart.yaml --model.net.hidden_sizes=[32] --trainer.max_epochs=2 --data.batch_size=null "
    "--data.global_batch_size=128 --trainer.log_every_n_steps=1 --data.sampling=balanced --test_after_fit=false "
    "--data.train_transforms=null"
)


@pytest.mark.parametrize("targets", [["a.png", "b.png"], [[1], [2, 3]], [1]])
@pytest.mark.parametrize("transform", [None, lambda mask: mask.resize((2, 2))])
def test_labels_require_one_number_per_sample(targets, transform):
    dataset = Pairs(2)
    dataset.targets, dataset.target_transform = targets, transform
    assert labels_of(dataset) is None


def epochs_of(count, seed=3, **options):
    """Return the batches of each epoch. A batch contains the samples of all processes."""
    ranks = range(options.get("num_replicas", 1))
    samplers = [EpochBatches(200, shuffle=True, weights=WEIGHTS, seed=seed, rank=rank, **options) for rank in ranks]
    found = []
    for epoch in range(count):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        found.append([torch.cat(batches).tolist() for batches in zip(*samplers, strict=True)])
    return found


def samples_of(epochs):
    return [index for batches in epochs for batch in batches for index in batch]


def p_value(counts, weights):
    """Return the p-value of the hypothesis that the counts were drawn with these weights."""
    used = weights > 0
    assert not counts[~used].any()
    return chisquare(counts[used].numpy(), (weights / weights.sum() * counts.sum())[used].numpy()).pvalue


def test_frequencies_match_the_weights():
    counts = torch.tensor(samples_of(epochs_of(300, batch_size=16))).bincount(minlength=200).double()
    assert counts.sum() == 300 * 200  # epochs keep their length
    assert p_value(counts, WEIGHTS) > 0.01
    assert p_value(counts, torch.where(WEIGHTS == 5, 4.5, WEIGHTS)) < 0.001


def test_successive_draws_are_independent():
    counts = torch.zeros(8, 8, dtype=torch.double)
    for first, second in itertools.pairwise(samples_of(epochs_of(300, batch_size=16))):
        counts[first % 8, second % 8] += 1
    assert p_value(counts, torch.outer(WEIGHTS[:8], WEIGHTS[:8])) > 0.01


def test_order_depends_only_on_seed_and_epoch():
    torch.manual_seed(1)
    first = epochs_of(2, batch_size=16)
    torch.manual_seed(2)
    assert epochs_of(2, batch_size=16) == first
    assert first[0] != first[1]
    assert epochs_of(1, batch_size=16, seed=4)[0] != first[0]


@pytest.mark.parametrize(("processes", "accumulate"), [(2, 1), (1, 5), (4, 2)])
def test_each_step_uses_the_same_samples_as_a_single_process(processes, accumulate):
    options = {"num_replicas": processes, "accumulate": accumulate}
    parts = epochs_of(2, global_batch_size=40, **options)
    steps = [[sorted(samples_of([e[i : i + accumulate]])) for i in range(0, len(e), accumulate)] for e in parts]
    assert steps == [[sorted(batch) for batch in epoch] for epoch in epochs_of(2, global_batch_size=40)]
    if accumulate == 1:  # also without a global batch size
        assert steps == [[sorted(b) for b in epoch] for epoch in epochs_of(2, batch_size=20, num_replicas=2)]


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_resumes_mid_epoch(workers):
    def new():
        return Loader(Drawing(), EpochBatches(200, 40, shuffle=True, weights=WEIGHTS, seed=5), workers)

    whole, part, rest = list(new()), new(), new()
    assert list(itertools.islice(part, 2)) == whole[:2]
    rest.load_state_dict(part.state_dict())
    assert list(rest) == whole[2:]


def test_batches_with_the_same_samples_get_different_random_numbers():
    weights = torch.tensor([1.0, *[0] * 39], dtype=torch.double)  # all batches contain only the first sample
    both = [Loader(Drawing(), EpochBatches(40, 4, shuffle=True, weights=weights, num_replicas=2, rank=rank))
            for rank in (0, 1)]  # fmt: skip
    assert len({numbers[0] for loader in both for numbers in loader}) == 10


class Noise(nn.Module):
    """Transform that replaces images with noise."""

    def forward(self, images):
        return torch.rand(images.shape)


def test_batches_with_the_same_samples_are_augmented_differently(trainer):
    seen = []

    class Recording(ImageClassifier):
        def training_step(self, batch, batch_idx):
            seen.append((batch[0][0, 0, 0, 0].item(), *set(batch[1].tolist())))
            return super().training_step(batch, batch_idx)

    data = Images(batch_size=1, sampling={"b": 0, "c": 0, "d": 0}, train_transforms=[Noise()])
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
    task = Recording(net, partial(torch.optim.SGD, lr=0.1), list("abcd"))
    trainer(max_epochs=2, limit_val_batches=0).fit(task, datamodule=data)
    assert len(set(seen)) == len(seen) == 2 * 29
    assert {label for _, label in seen} == {0}


def test_a_resumed_run_matches_an_uninterrupted_run(lit, monkeypatch):
    flips = "--data.train_transforms=[{class_path: torchvision.transforms.v2.RandomHorizontalFlip}]"
    whole = lit(f"{OPTIONS} --run_name=whole", [flips])
    with monkeypatch.context() as patch:
        at_call(patch, ImageClassifier, "training_step", 14, signal.SIGTERM)  # an epoch has 10 steps
        cut = lit(f"{OPTIONS} --run_name=cut", [flips])
    assert (whole.status, cut.status) == (0, 143), cut.err
    assert lit(f"fit --run {cut.run}").status == 0
    first, second = (read(run / "checkpoints" / "last.ckpt") for run in (whole.run, cut.run))
    assert all(torch.equal(first["state_dict"][name], value) for name, value in second["state_dict"].items())
    assert rows_of(whole.run) == rows_of(cut.run)


def rows_of(run):
    """Return the rows of metrics.csv without the speed columns."""
    rows = list(csv.DictReader((run / "metrics.csv").open()))
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


@pytest.mark.slow
def test_a_two_process_run_matches_a_single_process_run(lit, workspace):
    one = lit(f"{OPTIONS} --run_name=one")
    words = f"{OPTIONS} --run_name=two --trainer.devices=2 --trainer.strategy=ddp --trainer.accelerator=cpu".split()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-m", "toy", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    two = rows_of(one.run.with_name("two"))
    assert len(two) == len(rows_of(one.run)) == 20
    for expected, row in zip(rows_of(one.run), two, strict=True):
        assert row.keys() == expected.keys()
        for name in ("train/loss", "train/loss_step", "val/loss"):
            assert float(row[name] or 0) == pytest.approx(float(expected[name] or 0), abs=1e-5)


def weights_of(data):
    data.setup("fit")
    return data.sample_weights


def test_balanced_sampling_gives_every_class_the_same_total_weight():
    pairs = Pairs(60)
    pairs.targets = [int(index >= 48) for index in range(60)]
    for data in (Digits(sampling="balanced"), make(pairs, sampling="balanced"),
                 make(Subset(pairs, range(30, 60)), class_names=["a", "b"], sampling="balanced")):  # fmt: skip
        weights = weights_of(data)
        split = data.splits["train"]
        labels = split[1] if isinstance(split, tuple) else torch.tensor([split.dataset[i][1] for i in split.indices])
        shares = torch.zeros(data.num_classes, dtype=torch.double).index_add(0, labels, weights)
        assert len(shares.unique()) > 0
        torch.testing.assert_close(shares, shares[0].expand(len(shares)), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "bool"])
def test_class_labels_may_have_any_integer_or_bool_dtype(dtype):
    pairs = Pairs(5)
    pairs.targets = np.array([0, 1, 1, 0, 1], dtype=dtype)
    assert weights_of(make(pairs, val=Pairs(2), sampling="balanced")).tolist() == [1 / 2, 1 / 3, 1 / 3, 1 / 2, 1 / 3]


def test_weights_can_be_set_per_class_or_read_per_sample_from_a_file(tmp_path):
    data = Images(sampling={"b": 3, "d": 0})
    assert torch.equal(weights_of(data), torch.tensor([1.0, 3, 1, 0]).double()[data.splits["train"][1]])
    assert torch.equal(weights_of(Digits(sampling={3: 2})), 1.0 + (data_of(Digits()) == 3))  # keys are numbers in YAML
    file = tmp_path / "weights.txt"
    expected = torch.arange(29, dtype=torch.double) / 7
    file.write_text("\n".join(map(str, expected.tolist())) + "\n")
    assert torch.equal(weights_of(Images(sampling=str(file))), expected)


def data_of(data):
    data.setup("fit")
    return data.splits["train"][1]


def test_only_training_samples_are_resampled(trainer):
    data = Images(sampling={"a": 1000}, batch_size=4)
    data.setup("fit")
    data.setup("test")
    samples = {name: torch.cat([batch.indices for batch in getattr(data, f"{name}_dataloader")()]).tolist()
               for name in ("train", "val", "test")}  # fmt: skip
    assert len(samples["train"]) == 29 > 2 * len(set(samples["train"]))
    assert samples["val"] == samples["test"] == list(range(17))
    data.trainer = trainer(overfit_batches=2)  # repeats the same batches, so it disables sampling
    assert torch.cat([batch.indices for batch in data.train_dataloader()]).tolist() == list(range(29))
    assert Images().sample_weights is None


class ManyLabels(Images):
    def load(self, split):
        images, targets = super().load(split)
        return images, nn.functional.one_hot(targets, 4)


def table(**kwargs):
    return TabularData(torch.rand(50, 2), torch.rand(50, 1), ["x", "y"], ["z"], **kwargs)


@pytest.mark.parametrize(
    ("create", "sampling", "message"),
    [
        (table, "balanced", "weighting by class needs one integer target .* file with one weight per sample"),
        (table, {"a": 2}, "weighting by class needs one integer target"),
        (ManyLabels, "balanced", "weighting by class needs one integer target"),
        (Images, {"e": 2}, "there is no class 'e'; the classes are a, b, c, d"),
        (Digits, {"33": 2}, "there is no class '33'; did you mean 3"),
        (Images, {True: 2}, "there is no class 'True'; put yes, no, on and off in quotes"),
        (Images, {"a": -1}, "weights must be finite and not negative"),
        (Images, {"a": float("nan")}, "weights must be finite"),
        (Images, dict.fromkeys("abcd", 0), "weights .* at least one must be above 0"),
        (Images, "balance", "there is no file balance; did you mean balanced"),
        (Images, "words.txt", "words.txt must contain one number per line .*'two'"),
        (Images, "short.txt", "short.txt has 2 weights, but there are 29 training samples"),
    ],
)
def test_invalid_sampling_options_raise_one_line_errors(tmp_path, monkeypatch, create, sampling, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("1\ntwo\n")
    (tmp_path / "short.txt").write_text("1\n2\n")
    with pytest.raises(DataError, match=f"data.sampling: {message}") as raised:
        create(sampling=sampling).setup("fit")
    assert "\n" not in str(raised.value)


def test_per_sample_weights_work_for_tables(tmp_path):
    (tmp_path / "weights.txt").write_text("1\n" * 33 + "0\n")
    data = table(sampling=str(tmp_path / "weights.txt"))
    data.setup("fit")
    assert 33 not in torch.cat([batch.indices for batch in data.train_dataloader()])


def test_evaluation_does_not_need_the_weights_file():
    data = Images(sampling="gone.txt")
    data.setup("test")
    assert len(list(data.test_dataloader())) == 1
