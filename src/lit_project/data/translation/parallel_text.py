"""Parallel text that the user has: two aligned files, or one file with tabs."""

from pathlib import Path
from typing import Any

from lit_project.data.splits import Split
from lit_project.data.translation.carved import CarvedData
from lit_project.data.translation.graph import Pairs
from lit_project.data.translation.pairs import read_aligned, read_tsv
from lit_project.errors import DataError

Files = str | list[str]


class ParallelText(CarvedData):
    """Any parallel corpus, plain or `.gz`, in UTF-8.

    A split is a list of two files (line n of the source file, line n of the target file) or one file of lines
    `source<TAB>target`. Validation or test that is not given is carved out of train without leaks; training pairs of
    which a sentence occurs in the one that is given are then left out, and counted. Where both are given, all three are
    used as they are, and the report says what they share.

    Args:
        train: file or files of the training pairs.
        val: of validation; null carves `val_size` pairs out of train.
        test: of test; null carves `test_size` pairs out of train.
        **kwargs: of `CarvedData` and `TranslationData`; `source` and `target` name the languages.

    Raises:
        DataError: a file is missing or damaged; files of different lengths; a line without a tab or with an empty
            side.
    """

    def __init__(self, train: Files, val: Files | None = None, test: Files | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.files = {"train": train, "val": val, "test": test}
        for split, files in self.files.items():
            if isinstance(files, list) and len(files) not in (1, 2):
                raise DataError(f"{split} must be one file with tabs or [source file, target file], got {files}")

    def carved(self) -> tuple[Split, ...]:
        """The splits that have no files."""
        names: tuple[Split, ...] = ("val", "test")
        return tuple(name for name in names if self.files[name] is None)

    def pool(self) -> Pairs:
        """The pairs of the training files."""
        return self._read("train")

    def given(self) -> Pairs:
        """The pairs of the validation and test files."""
        names: tuple[Split, ...] = ("val", "test")
        return [pair for name in names if self.files[name] is not None for pair in self._read(name)]

    def read(self, split: Split) -> list[tuple[str, str]]:
        """The pairs of a split."""
        return super().read(split) if self.files[split] is None or split == "train" else self._read(split)

    def _read(self, split: Split) -> list[tuple[str, str]]:
        files = self.files[split]
        assert files is not None
        paths = [Path(file).expanduser() for file in ([files] if isinstance(files, str) else files)]
        return read_tsv(paths[0]) if len(paths) == 1 else read_aligned(paths[0], paths[1])
