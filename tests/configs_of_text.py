"""Settings of the translation configs for `small_data` and test_configs.py."""

from functools import cache

import pytest

SCORE, FIGURE = "bleu", "test_bleu_by_length.png"
AS_WHILE_FITTING = False  # greedy while fitting, beam search afterwards
# Test options by config name prefix: subword vocabularies for a small corpus, small nets, and small batches because an
# untrained net translates until the length limit.
FEW = "--data.eval_batch_tokens=100"
OPTIONS = {
    **dict.fromkeys(("tatoeba_eng_fra_full", "multi30k"), f"{FEW} --data.vocabulary_size=80 --model.net.size=32"),
    "tatoeba_fra_eng": FEW,
    "translation_": FEW,
}


@cache
def sentences() -> list[tuple[str, str]]:
    """Return English and French sentences. They are cached because creating them takes a second."""
    from lit_project.data.parallel_text.toy_grammar import ToyGrammar

    return ToyGrammar(source="en", target="fr").read("train")[:400]


def replace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace Tatoeba and Multi30k with sentences from the toy grammar."""
    from lit_project.data.parallel_text.corpora import Multi30k, Tatoeba

    def read(self: Tatoeba | Multi30k, split: str) -> list[tuple[str, str]]:
        pairs = sentences()
        pairs = {"train": pairs[:-60], "val": pairs[-60:-30], "test": pairs[-30:]}[split]
        return pairs if self.source == "en" else [(target, source) for source, target in pairs]

    for corpus in (Tatoeba, Multi30k):
        monkeypatch.setattr(corpus, "prepare_data", lambda self: None)
        monkeypatch.setattr(corpus, "read", read)
        monkeypatch.setattr(corpus, "keep", lambda self, pairs: pairs)  # few pairs pass the classic filter


def check(rows: list[dict[str, str]], metrics: dict[str, float]) -> None:
    """Check that all sentences are translated, and that the table is sorted by score."""
    assert len(rows) == metrics["test/samples"]
    assert all(row["source"] and row["references"] for row in rows)
