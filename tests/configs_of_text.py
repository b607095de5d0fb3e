"""What `small_data` and test_configs.py know of the configs of translation."""

from functools import cache

import pytest

SCORE, FIGURE = "bleu", "test_bleu_by_length.png"
AS_WHILE_FITTING = False  # greedy, by beam search afterwards
# beginning of a config's name → options of its test: subwords of a corpus of a few sentences, a small net, and few of
# what an untrained net translates without an end
FEW = "--data.eval_batch_tokens=100"
OPTIONS = {
    "tatoeba_eng_fra_full": f"{FEW} --data.vocabulary_size=80 --model.net.hidden_size=32 --model.net.embedding_size=32",
    "tatoeba_fra_eng": FEW,
    "multi30k": f"{FEW} --data.vocabulary_size=80 --model.net.size=32",
    "translation_": FEW,
}


@cache
def sentences() -> list[tuple[str, str]]:
    """English and French, made once: that takes a second."""
    from lit_project.data.parallel_text.toy_grammar import ToyGrammar

    return ToyGrammar(source="en", target="fr").read("train")[:400]


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tatoeba and Multi30k become some sentences of the small grammar."""
    from lit_project.data.parallel_text.corpora import Multi30k, Tatoeba

    def read(self: Tatoeba | Multi30k, split: str) -> list[tuple[str, str]]:
        pairs = sentences()
        pairs = {"train": pairs[:-60], "val": pairs[-60:-30], "test": pairs[-30:]}[split]
        return pairs if self.source == "en" else [(target, source) for source, target in pairs]

    for corpus in (Tatoeba, Multi30k):
        monkeypatch.setattr(corpus, "prepare_data", lambda self: None)
        monkeypatch.setattr(corpus, "read", read)
        monkeypatch.setattr(corpus, "keep", lambda self, pairs: pairs)  # few of them begin as the classic filter says


def check(rows: list[dict[str, str]], metrics: dict[str, float]) -> None:
    """All sentences are translated; the table is sorted by their scores."""
    assert len(rows) == metrics["test/samples"]
    assert all(row["source"] and row["references"] for row in rows)
