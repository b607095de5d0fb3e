"""For the tests of the translation task: 44 pairs of the small grammar, and a small net in double precision."""

from functools import cache, partial

import torch

from lit_project.data.parallel_text.base import TranslationData
from lit_project.data.parallel_text.toy_grammar import ToyGrammar
from lit_project.models.seq2seq.rnn import RNNSeq2Seq
from lit_project.tasks.translation.task import Translator


@cache
def grammar():
    """The pairs, made once: that takes a second."""
    return ToyGrammar(source="en", target="fr").read("train")


class Few(TranslationData):
    """20 training pairs, 12 each for validation and test; two sources of those have a second reference."""

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
