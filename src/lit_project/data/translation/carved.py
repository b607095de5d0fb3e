"""Corpora without official splits: validation and test are carved out without leaks."""

from typing import Any

from lit_project.data.splits import Split
from lit_project.data.translation.base import TranslationData
from lit_project.data.translation.graph import Pairs, leak_free_split


class CarvedData(TranslationData):
    """Base of corpora that come as one list of pairs; a subclass implements `pool`.

    No sentence of validation or test occurs in train, on either side: see `graph.leak_free_split`. The split depends
    on the data (after the filter of prefixes) alone, not on a seed, the direction or the preparation.

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

    def read(self, split: Split) -> list[tuple[str, str]]:
        """The pairs of a split."""
        if not self._carved:
            pool = self.keep(self.pool())
            sizes = {"val": self.val_size, "test": self.test_size}
            indices = leak_free_split(pool, **{name: sizes[name] for name in self.carved()})
            self._carved = {name: [pool[i] for i in own] for name, own in indices.items()}
        return list(self._carved[split])
