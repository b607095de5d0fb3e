"""Corpora without official splits: validation and test are carved out without leaks."""

from typing import Any

from lit_project.data.splits import Split
from lit_project.data.translation.base import TranslationData
from lit_project.data.translation.graph import Pairs, apart, leak_free_split
from lit_project.data.translation.overlong import short
from lit_project.processes import print_once
from lit_project.text.tokens import split_words


class CarvedData(TranslationData):
    """Base of corpora that come as one list of pairs; a subclass implements `pool`.

    No sentence of validation or test occurs in train, on either side: see `graph.leak_free_split`. The split depends
    on the data (after the filters of prefixes and length) alone, not on a seed or the direction.

    Args:
        val_size: pairs of validation, approximately: whole components of the sentence graph are taken.
        test_size: pairs of test, likewise.
        **kwargs: of `TranslationData`.
    """

    def __init__(self, val_size: int = 1000, test_size: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.val_size = val_size
        self.test_size = test_size
        self._carved: dict[str, Pairs] = {}

    def pool(self) -> Pairs:
        """All pairs as (source, target), as they are written in the data."""
        raise NotImplementedError

    def carved(self) -> tuple[Split, ...]:
        """The splits that are taken out of the pool."""
        return ("val", "test")

    def given(self) -> Pairs:
        """The pairs of the splits that are not taken out of the pool."""
        return []

    def read(self, split: Split) -> list[tuple[str, str]]:
        """The pairs of a split."""
        if not self._carved:
            pool = self.keep(self.pool())
            if self.carved():
                pool = self._apart(self._short(pool))
            sizes = {"val": self.val_size, "test": self.test_size}
            indices = leak_free_split(pool, **{name: sizes[name] for name in self.carved()})
            self._carved = {name: [pool[i] for i in own] for name, own in indices.items()}
        return list(self._carved[split])

    def words(self, sentence: str, language: str) -> int:
        """Length of a sentence by which it is dropped: its words and marks, of which subwords are parts."""
        prepared = self.preparation(sentence)
        return len(split_words(prepared, language) if self.options.kind == "word" else prepared.split())

    def _short(self, pool: Pairs) -> Pairs:
        """Without the pairs that are longer than the config says, if they are to be dropped."""
        if self.overlong != "drop":
            return pool
        sides = (lambda text: self.words(text, self.source)), (lambda text: self.words(text, self.target))
        kept = short(pool, self.max_length, sides)
        self._leave_out("overlong", pool, kept, f"exceed max_length {self.max_length}")
        return kept

    def _apart(self, pool: Pairs) -> Pairs:
        """Without the pairs of which a sentence is in a split that is given."""
        given = self.given()
        kept = apart(pool, given) if given else pool
        self._leave_out("given", pool, kept, "share a sentence with the given evaluation pairs")
        return kept

    def _leave_out(self, name: str, pool: Pairs, kept: Pairs, why: str) -> None:
        self.left_out[name] = len(pool) - len(kept)
        if self.left_out[name]:
            print_once(f"{self.left_out[name]:,} of {len(pool):,} pairs {why} and were dropped before the split")
