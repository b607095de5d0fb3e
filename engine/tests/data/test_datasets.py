"""Tests map-style datasets that are used as image data."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset
from torchvision.transforms.v2.functional import to_pil_image

from lit_engine.data.images import DatasetImages, ImageData, Samples
from lit_engine.errors import DataError


class Pairs(Dataset):
    """Dataset of `size` pairs `(image, target)`. Each image is filled with its index."""

    classes = ("a", "b")

    def __init__(self, size, convert=torch.clone):
        self.size, self.convert = size, convert
        self.targets = [index % 2 for index in range(size)]

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return self.convert(torch.full((1, 3, 3), index, dtype=torch.uint8)), self.targets[index]


def make(train=None, **kwargs):
    return DatasetImages(train, input_shape=(1, 3, 3), mean=[0.5], std=[0.5], num_workers=0, **kwargs)


@pytest.mark.parametrize("convert", [torch.clone, torch.Tensor.numpy, to_pil_image])
def test_batches_match_the_dataset_samples(convert):
    data = make(Pairs(20, convert), val=Pairs(5), batch_size=6)
    data.setup("fit")
    seen = []
    for batch in data.train_dataloader():
        assert batch.images.dtype == torch.uint8
        assert torch.equal(batch.images, batch.indices.view(-1, 1, 1, 1).expand(-1, 1, 3, 3).to(torch.uint8))
        assert torch.equal(batch.targets, batch.indices % 2)
        seen += batch.indices.tolist()
    assert sorted(seen) == list(range(20))
    assert data.class_names == ["a", "b"]


def test_validation_split_is_stratified_for_datasets_and_subsets():
    everything = Pairs(60)
    everything.targets = [int(index >= 48) for index in range(60)]
    for train, of_each in ((everything, [8, 2]), (Subset(everything, range(30, 60)), [3, 2])):
        data = make(train, val_size=len(train) // 6, class_names=["a", "b"])
        data.setup("fit")
        targets = torch.cat([batch.targets for batch in data.loader("val")])
        assert targets.bincount().tolist() == of_each


def test_targets_of_the_wrong_length_are_ignored_when_splitting():
    train = Pairs(20)
    train.targets = [0, 1] * 8
    data = make(train, val_size=0.2)
    data.setup("fit")
    assert data.size_of("val") == 4
    assert sorted([*data.splits["train"].indices, *data.splits["val"].indices]) == list(range(20))


def test_missing_split_error_lists_the_available_splits():
    data = make(Pairs(20))
    with pytest.raises(DataError, match="no test split: only train, val"):
        data.setup("test")


def test_load_may_return_a_dataset():
    class Own(ImageData):
        def __init__(self, **kwargs):
            super().__init__(num_workers=0, **kwargs)
            self.class_names, self.input_shape, self.mean, self.std = ["a", "b"], (1, 3, 3), [0.5], [0.5]

        def load(self, split):
            return Pairs(20)

    data = Own(batch_size=6, seed=1)
    data.setup("fit")
    assert [data.size_of(split) for split in ("train", "val")] == [20, 20]
    batches = list(data.train_dataloader())
    assert [len(batch.targets) for batch in batches] == [6, 6, 6, 2]
    for batch in batches:
        assert torch.equal(batch.images[:, 0, 0, 0], batch.indices.to(torch.uint8))
        assert torch.equal(batch.targets, batch.indices % 2)
    wrong = Pairs(20)
    wrong.targets[3] = 2
    Own.load = lambda self, split: wrong
    with pytest.raises(DataError, match="the train split has label 2 in sample 3"):
        Own().setup("fit")


class Unlisted(Pairs):
    """Dataset without a list of its targets, so an invalid target is only found when its sample is loaded."""

    def __init__(self, size, wrong):
        super().__init__(size)
        self.all, self.wrong = self.targets, wrong
        del self.targets

    def __getitem__(self, index):
        return torch.zeros(1, 3, 3), self.wrong.get(index, self.all[index])


@pytest.mark.parametrize(("wrong", "message"), [
    ({3: 2}, r"the dataset has label 2 in sample 3, but there are 2 classes \(0 to 1\)"),
    ({3: torch.tensor([0, 1])}, "the dataset has targets of different shapes"),
    ({3: "cat"}, "targets must be classes or labels, got 'cat'"),
    ({3: None}, "targets must be classes or labels, got None"),
    ({index: torch.zeros(3, 4) for index in range(20)}, r"targets of shape \(3, 4\), expected \(3, 3\)"),
])  # fmt: skip
@pytest.mark.parametrize("num_workers", [0, 1])
def test_invalid_targets_of_loaded_samples_are_errors(wrong, message, num_workers):
    data = make(Unlisted(20, wrong), val=Pairs(5), batch_size=20)
    data.num_workers = num_workers
    data.setup("fit")
    with pytest.raises(DataError, match=message):
        list(data.train_dataloader())


class Cropped(Pairs):
    """Dataset that crops masks. `targets` contains the whole masks."""

    def __init__(self, size):
        super().__init__(size)
        self.targets = np.zeros((size, 5, 4), int)

    def __getitem__(self, index):
        return torch.zeros(1, 3, 3), self.targets[index, :3, :3]


def test_listed_masks_may_be_larger_than_the_masks_of_the_samples():
    data = make(Cropped(20), val=Cropped(5), batch_size=20)
    data.setup("fit")
    assert next(iter(data.train_dataloader())).targets.shape == (20, 3, 3)


@pytest.mark.parametrize(("sample", "message"), [
    ((Image.new("F", (3, 3)), 0), "image 1 of the dataset cannot be used: the range of the pixel values"),
    ((torch.full((1, 3, 3), torch.inf), 0), "image 1 of the dataset contains NaN or infinity"),
    ({"img": Image.new("L", (3, 3)), "label": 0}, r"return pairs \(image, target\), not dicts with img, label"),
    (7, r"return pairs \(image, target\), not int"),
    ((Image.new("L", (3, 3)), 0, 1), r"return pairs \(image, target\), not 3 values"),
])  # fmt: skip
def test_unsupported_samples_raise_an_error(sample, message):
    with pytest.raises(DataError, match=message):
        Samples([None, sample], (1, 3, 3), 2)[torch.tensor([1])]


def test_target_transform_determines_the_classes():
    """The dataset lists the classes 1 and 2, but its samples have the classes 0 and 1."""

    class Shifted(Pairs):
        target_transform = staticmethod(lambda target: target - 1)

        def __getitem__(self, index):
            return torch.zeros(1, 3, 3), self.target_transform(self.targets[index])

    train = Shifted(20)
    train.targets = [1 + index % 2 for index in range(20)]
    data = make(train, val_size=4, batch_size=20, sampling={"a": 0, "b": 1})
    data.setup("fit")
    assert torch.cat([batch.targets for batch in data.train_dataloader()]).tolist() == [1] * 16
    assert torch.cat([batch.targets for batch in data.loader("val")]).bincount().tolist() == [2, 2]
