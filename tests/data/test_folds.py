"""Each sample is in the test split of exactly one fold, and training uses no information from the test split."""

import csv

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from lit_engine.data.images import DatasetImages
from lit_engine.data.module import folds_of
from lit_engine.errors import DataError
from lit_project.data.digits import Digits
from lit_project.data.image_folder import ImageFolder
from lit_project.data.mnist import MNIST
from lit_project.data.parallel_text.corpora import Multi30k, ParallelText
from lit_project.data.parallel_text.leak_free_split import leak_free_folds, sentence_key
from lit_project.data.parallel_text.toy_grammar import ToyGrammar
from lit_project.data.tables import CSV, Diabetes
from lit_project.text.vocabulary import WordVocabulary

SPLITS = ("train", "val", "test")


def loaded(data):
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def samples(split):
    """Return values that identify the samples of a split."""
    if isinstance(split, tuple):
        return [tuple(row.flatten().tolist()) for row in split[0]]
    inner = getattr(split.dataset, "indices", range(len(split.dataset)))
    return [inner[index] for index in split.indices]


@pytest.mark.parametrize("folds", [2, 3, 7])
def test_folds_are_stratified_to_within_one_sample(folds):
    labels = torch.tensor([0] * 50 + [1] * 13 + [2] * 2 + [3])[torch.randperm(66)]
    fold = folds_of(labels, folds)
    assert torch.equal(fold, folds_of(labels, folds))
    for kind in range(4):
        counts = torch.bincount(fold[labels == kind], minlength=folds)
        assert counts.max() - counts.min() <= 1
    sizes = torch.bincount(fold, minlength=folds)
    assert sizes.sum() == 66
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    "make", [Digits, Diabetes, lambda **fold: ImageFolder("data/images", **fold)], ids=["digits", "table", "folder"]
)
def test_each_sample_is_in_the_test_split_of_exactly_one_fold(make, image_folder):
    whole = [loaded(make(folds=4, fold=k)).splits for k in range(4)]
    everything = sorted(sample for split in loaded(make()).splits.values() for sample in samples(split))
    assert sorted(sample for splits in whole for sample in samples(splits["test"])) == everything
    for splits in whole:
        assert sorted(sample for split in SPLITS for sample in samples(splits[split])) == everything


def test_folds_are_stratified_and_statistics_use_only_the_training_split(image_folder):
    for k in range(3):
        digits, table = (loaded(kind(folds=3, fold=k)) for kind in (Digits, Diabetes))
        counts = [torch.bincount(digits.splits[split][1]) for split in SPLITS]
        assert set((counts[2] - sum(counts) // 3).tolist()) <= {0, 1}
        values = digits.splits["train"][0].double() / 255
        assert digits.mean + digits.std == pytest.approx([values.mean().item(), values.std().item()], abs=2e-3)
        assert table.feature_mean == pytest.approx(table.splits["train"][0].double().mean(dim=0).tolist())
        pictures = loaded(ImageFolder("data/images", folds=3, fold=k))
        _, labels = pictures.dataset("test")[torch.arange(pictures.size_of("test"))][:2]
        assert abs(int((labels == 0).sum() - (labels == 1).sum())) <= 1


@pytest.mark.parametrize("options", [{"test_size": 0.25}, {"test_size": 10}, {"folds": 4, "fold": 3}])
def test_multilabel_images_can_be_split_by_size_or_into_folds(options):
    images = TensorDataset(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), torch.arange(80).reshape(40, 2) % 2)
    images.targets = images.tensors[1]
    data = loaded(DatasetImages(images, class_names=["a", "b"], input_shape=(3, 8, 8), **options))
    assert [data.size_of(split) for split in SPLITS] == [27, 3, 10]
    assert len({index for split in data.splits.values() for index in samples(split)}) == 40


def test_no_sentence_is_in_two_folds():
    """No sentence is in two splits of the same fold either. The vocabulary is built from the training pairs."""
    make = {"size": 900, "val_size": 40, "source": "en", "target": "fr"}
    tests = []
    for k in range(3):
        data = ToyGrammar(**make, folds=3, fold=k)
        pairs = {split: data.pairs(split) for split in SPLITS}
        tests.append(pairs["test"])
        assert sum(map(len, pairs.values())) == 900
        for side in range(2):
            keys = [{sentence_key(pair[side]) for pair in pairs[split]} for split in SPLITS]
            assert not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
        own = WordVocabulary.build([target for _, target in pairs["train"]], language="fr")
        assert data.target_vocabulary.as_dict() == own.as_dict()
    assert sorted(map(len, tests)) == [300, 300, 300]
    assert len({pair for test in tests for pair in test}) == 900


def test_pairs_connected_by_a_shared_sentence_stay_in_the_same_fold():
    """Nine pairs share a sentence, and eleven share none."""
    pairs = [("one", f"un {n}") for n in range(9)] + [(f"word {n}", f"mot {n}") for n in range(11)]
    fold = leak_free_folds(pairs, 2).numpy()
    assert len(set(fold[:9])) == 1
    assert np.bincount(fold).tolist() == [10, 10]
    with pytest.raises(DataError, match="cannot create 2 folds: pairs with shared sentences form only 1 groups"):
        leak_free_folds(pairs[:9], 2)


def test_data_with_an_official_test_split_rejects_folds(tmp_path, splits):
    root, _ = splits
    for kind in (MNIST, Multi30k):  # rejected before downloading anything
        with pytest.raises(DataError, match=f"{kind.__name__} has its own test split, so folds"):
            kind(folds=2)
    for name, words in (("train", "abcdefghijkl"), ("test", "xyz")):
        (tmp_path / name).write_text("".join(f"{word}\tmot {word}\n" for word in words))
    corpus = ParallelText(str(tmp_path / "train"), test=str(tmp_path / "test"), folds=2, val_size=2)
    for data in (ImageFolder(root, folds=2), corpus):
        with pytest.raises(DataError, match=f"{type(data).__name__} has its own test split, so folds"):
            data.setup("test")


def test_invalid_folds_are_rejected(tmp_path):
    with pytest.raises(DataError, match="folds must be at least 2, and fold must be from 0 to folds - 1, got 3 and 3"):
        Digits(folds=3, fold=3)
    with (tmp_path / "few.csv").open("w") as file:
        csv.writer(file).writerows([["a", "b"], *([n, n] for n in range(9))])
    with pytest.raises(DataError, match="9 samples cannot be divided into 10 folds"):
        CSV(tmp_path / "few.csv", "b", folds=10)
    assert sum(CSV(tmp_path / "few.csv", "b", folds=3, fold=k).size_of("test") for k in range(3)) == 9
