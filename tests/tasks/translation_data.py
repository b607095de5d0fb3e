"""Helpers for testing the translation task: 44 pairs from the toy grammar, and a small float64 net."""

from functools import cache, partial

import torch

from lit_project.data.parallel_text.base import TranslationData
from lit_project.data.parallel_text.toy_grammar import ToyGrammar
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.tasks.translation.task import Translator


@cache
def grammar():
    """Return the pairs. They are cached because creating them takes a second."""
    return ToyGrammar(source="en", target="fr").read("train")


class Few(TranslationData):
    """Data with 20 training, 12 validation and 12 test pairs. Two of the sources have two references."""

    def read(self, split):
        pairs = grammar()
        first = {"train": 0, "val": 20, "test": 30}[split]
        chosen = pairs[first : first + (20 if split == "train" else 10)]
        if split != "train":
            chosen = [*chosen, (chosen[0][0], chosen[1][1]), (chosen[2][0], chosen[3][1])]
        return chosen


def few(**kwargs):
    return Few(source="en", target="fr", **kwargs)


def net(data, **kwargs):
    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_size": 12, "dropout": 0.0, **kwargs}
    return RNNSeq2Seq(data.source_size, data.target_size, **sizes)


SGD = partial(torch.optim.SGD, lr=0.5)


def translator(data, optimizer=SGD, dropout=0.0, **kwargs):
    return Translator(net(data, dropout=dropout).double(), optimizer, data.vocabularies, **kwargs)
