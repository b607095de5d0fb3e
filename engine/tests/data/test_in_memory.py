"""Tests the splits and batches of in-memory images, and the checks of their labels and sizes."""

import pytest
import torch

from lit_engine.data.images import ImageData
from lit_engine.data.module import random_split, stratified_split
from lit_engine.errors import DataError
from toy.data import Pictures


@pytest.mark.parametrize(("size", "val_size"), [(10, 3), (1000, 999), (7, 0)])
def test_random_split_is_disjoint_complete_and_ascending(size, val_size):
    train, val = random_split(size, val_size)
    assert len(val) == val_size
    assert sorted([*train.tolist(), *val.tolist()]) == list(range(size))
    assert train.tolist() == sorted(train.tolist())
    assert val.tolist() == sorted(val.tolist())


@pytest.mark.parametrize("seed", [1, 2])
def test_random_split_does_not_depend_on_the_seed(seed_run, seed):
    seed_run(seed)
    # This split is the same in all versions of this project, so that validation results of old runs stay comparable.
    assert random_split(12, 4)[1].tolist() == [5, 6, 10, 11]


LABELS = torch.tensor([3] * 50 + [7] * 7 + [0] * 2 + [9])


@pytest.mark.parametrize("val_size", [0, 5, 30, 60])
def test_stratified_split_preserves_class_proportions_to_within_one_sample(val_size):
    train, val = stratified_split(LABELS, val_size)
    assert len(val) == val_size
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(60))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(val, val.sort().values)
    for label in (3, 7, 0, 9):
        due = LABELS.eq(label).sum().item() * val_size / 60
        assert abs(LABELS[val].eq(label).sum().item() - due) <= 1
    with pytest.raises(DataError, match="cannot split off 61 of 60 samples: reduce val_size"):
        stratified_split(LABELS, 61)


@pytest.mark.parametrize(("stage", "splits"), [("fit", ["train", "val"]), ("validate", ["val"]), ("test", ["test"])])
def test_each_stage_loads_only_its_splits_and_only_once(stage, splits):
    loaded = []

    class Counted(Pictures):
        def load(self, split):
            loaded.append(split)
            return super().load(split)

    data = Counted()
    data.setup(stage)
    data.setup(stage)
    assert loaded == splits


def test_training_is_shuffled_with_the_seed_and_evaluation_is_in_order():
    def indices(loader):
        return torch.cat([batch.indices for batch in loader]).tolist()

    data = {seed: Pictures(batch_size=5, eval_batch_size=4, seed=seed) for seed in (1, 2)}
    for module in data.values():
        module.setup("fit")
        module.setup("test")
    assert indices(data[1].val_dataloader()) == indices(data[1].test_dataloader()) == list(range(11))
    orders = [indices(module.train_dataloader()) for module in data.values()]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(23))
    assert [len(batch.targets) for batch in data[1].train_dataloader()] == [5, 5, 5, 5, 3]
    assert [len(batch.targets) for batch in data[1].val_dataloader()] == [4, 4, 3]
    data[1].drop_last = True
    assert [len(batch.targets) for batch in data[1].train_dataloader()] == [5, 5, 5, 5]
    assert [len(batch.targets) for batch in data[1].val_dataloader()] == [4, 4, 3]  # evaluation drops no samples


def test_without_a_data_seed_the_order_follows_the_run_seed(seed_run):
    orders = []
    for seed in (1, 2, 1):
        seed_run(seed)
        data = Pictures(batch_size=23)
        data.setup("fit")
        orders.append(next(iter(data.train_dataloader())).indices.tolist())
    assert orders[0] == orders[2] != orders[1]


@pytest.mark.parametrize("label", [3, -1])
def test_out_of_range_label_error_reports_sample_and_label(label):
    class Wrong(Pictures):
        def load(self, split):
            images, targets = super().load(split)
            targets[4] = label
            return images, targets

    message = rf"the train split has label {label} in sample 4, but there are 3 classes \(0 to 2\)"
    with pytest.raises(DataError, match=message):
        Wrong().setup("fit")


def test_rejects_missing_methods_and_statistics_that_do_not_match_the_channels():
    class Unfinished(ImageData):
        input_shape, mean, std = (1, 6, 5), [0.5], [0.5]

    with pytest.raises(DataError, match=r"Unfinished must implement load\(split\)"):
        Unfinished().setup("fit")

    data = Pictures()
    data.mean = data.std = None  # no normalization
    data.setup("fit")
    data.mean = [0.5, 0.5, 0.5]
    with pytest.raises(DataError, match=r"Pictures\.mean has 3 values, but input_shape is"):
        data.setup("fit")


@pytest.mark.parametrize(("shape", "known", "wrong", "valid"), [
    ((23, 3), (0, 1), 2, "multi-label targets must be 0 or 1"),
    ((23, 6, 5), (-1, 2), 3, r"there are 3 classes \(-1 to 2\)"),
])  # fmt: skip
def test_targets_may_be_multilabel_or_segmentation_masks(shape, known, wrong, valid):
    class Other(Pictures):
        targets = torch.tensor(known)[torch.randint(2, shape, generator=torch.Generator().manual_seed(0))]

        def load(self, split):
            images, _ = super().load(split)
            return images, self.targets[: len(images)]

    data = Other()
    data.setup("fit")
    assert torch.equal(next(iter(data.val_dataloader())).targets, Other.targets[:11])
    Other.targets[7, 1] = wrong
    with pytest.raises(DataError, match=f"the train split has label {wrong} in sample 7, but {valid}"):
        Other().setup("fit")


def replace_image_3(value):
    return lambda images: torch.where(torch.arange(len(images))[:, None, None, None] == 3, value, images / 255)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda images: images.float(), r"has values from 0 to 25\d: floats must be in \[0, 1\]"),
        (replace_image_3(torch.nan), r"contains NaN or infinity \(sample 3\)"),
        (replace_image_3(torch.inf), r"contains NaN or infinity \(sample 3\)"),
        (lambda images: images.long(), r"has dtype torch.int64: use torch.uint8"),
        (lambda images: images[:, 0], r"has the shape \(6, 5\), not \(1, 6, 5\)"),
        (lambda images: images[:-1], "the train split has 22 images and 23 targets"),
    ],
    ids=["range", "nan", "infinity", "dtype", "shape", "count"],
)
def test_rejects_images_with_wrong_range_dtype_shape_or_count(change, message):
    class Wrong(Pictures):
        def load(self, split):
            images, targets = super().load(split)
            return change(images), targets

    with pytest.raises(DataError, match=message):
        Wrong().setup("fit")


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (None, r"Wrong.load must return a tuple \(images, targets\) or a map-style dataset, not NoneType"),
        ({"images": [], "labels": []}, "or a map-style dataset, not dict"),
        ((["a.png", "b.png"], [0, 1]), "the train split's images must be a tensor or an array, not list"),
    ],
)
def test_rejects_a_split_of_the_wrong_type(loaded, message):
    class Wrong(Pictures):
        def load(self, split):
            return loaded

    with pytest.raises(DataError, match=message):
        Wrong().setup("fit")


@pytest.mark.parametrize(
    ("counts", "val_size", "held"),
    [
        ((5, 3, 2), 3, [1, 1, 1]),  # shares 1.5, 0.9 and 0.6: the last two are rounded up
        ((1, 1, 8), 4, [0, 0, 4]),  # shares 0.4, 0.4 and 3.2: the last sample of a class stays in training
        ((2, 2, 8), 7, [1, 1, 5]),
    ],
)
def test_stratified_split_rounds_up_largest_remainders_and_leaves_no_class_empty(counts, val_size, held):
    labels = torch.arange(3).repeat_interleave(torch.tensor(counts))
    _, val = stratified_split(labels, val_size)
    assert labels[val].bincount(minlength=3).tolist() == held


def test_stratified_split_does_not_favour_the_first_of_equally_large_classes():
    labels = torch.arange(200).repeat_interleave(4)
    train, val = stratified_split(labels, 80)
    assert len(labels[val].unique()) == 80
    assert 30 < (labels[val] < 100).sum() < 50
    assert torch.equal(stratified_split(labels, 80)[0], train)
